"""The submit form converts its job to YAML or JSON and back, without a browser."""

import json
import re
from html import unescape
from typing import Any

import pytest
import yaml

from scheduling.models import Job
from scheduling.pages.jobs.job_text import MOST_OF_A_TEXT
from tests.cases import paired, some
from tests.e2e.test_pages_submission import FORM, FULL, asked
from tests.e2e.test_pages_submit_again import NOTE, Sent, note

TEXT = "/jobs/new/text/"
# Fields that the form does not have.
RICH = """\
name: rich
tenant: vision
labels: {team: a}
gang: false
pod_sets:
  - name: chief
    count: 1
    gpu_types: [H200, H100]
    gpus: 8
    tolerations:
      - {key: maintenance, operator: Exists}
    command: [python, train.py]
    env:
      BAD: |
        two
        lines
      GOOD: "1"
    volumes:
      - {name: data, mount_path: /data, config_map: sets}
  - name: helper
    count: 2
    gpus: 0
    cpu_milli: 500
    annotations: {note: b}
"""


def as_text(client, form: dict[str, str], language: str) -> dict[str, str]:
    """Return the fields of the page that shows a form, or a text in this language."""
    answer = client.post(TEXT, {**form, "as": language})
    assert answer.status_code == 200, faults(answer)
    return Sent(answer.content.decode()).fields


def typed(text: str, language: str = "yaml", **more: str) -> dict[str, str]:
    return {"text": text.replace("\n", "\r\n"), "language": language, **more}


def faults(answer) -> list[str]:
    """Return the messages in the error notice."""
    page = answer.content.decode()
    found = page.partition('id="text-faults"')[2].partition("</ul>")[0]
    lines = re.findall("<li>(.*?)</li>", found)
    return [unescape(re.sub("<[^>]*>", "", line)) for line in lines]


# --- one document, three views -------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ways", "form"),
    paired([["yaml"], ["json"], ["yaml", "json", "form", "json", "yaml"]], [FORM, FULL]),
)
def test_a_job_is_the_same_however_it_is_shown(as_user, form, ways):
    client = as_user("erin")
    client.post("/jobs/new/", form)
    shown = {**form, "name": "as-text"}
    for way in ways:
        shown = as_text(client, shown, way)
    assert client.post(TEXT, shown).status_code == 302
    back = as_text(client, {**shown, "text": shown["text"].replace("as-text", "back")}, "form")
    assert NOTE not in back
    assert "rest" not in back
    assert client.post("/jobs/new/", back).status_code == 302
    first, *others = (asked(Job.objects.get(name=name)) for name in ("bert", "as-text", "back"))
    assert others == [first, first]


def test_what_the_form_cannot_show_is_kept_and_said(as_user):
    client = as_user("erin")
    answer = client.post(TEXT, typed(RICH, **{"as": "form"}))
    page = answer.content.decode()
    assert note(page) == (
        f"{NOTE} labels, gpu_types but the first, tolerations, env (BAD), annotations. YAML "
        "and JSON show all."
    )
    form = Sent(page).fields
    assert (form["sets-0-env"], form["sets-0-command"]) == ("GOOD=1", "python train.py")
    assert yaml.safe_load(as_text(client, form, "yaml")["text"])["labels"] == {"team": "a"}
    assert client.post("/jobs/new/", form).status_code == 302
    body = {**yaml.safe_load(RICH), "name": "over-rest"}
    assert client.post("/api/v1/jobs", body, content_type="application/json").status_code == 201
    one, other = (asked(Job.objects.get(name=name)) for name in ("rich", "over-rest"))
    assert one == other


def test_what_is_changed_in_the_form_counts(as_user):
    client = as_user("erin")
    form = as_text(client, typed(RICH), "form")
    form |= {"sets-0-gpu_type": "H100", "sets-0-command": "", "sets-0-env": "GOOD=2\r\nBAD=3"}
    chief, helper = yaml.safe_load(as_text(client, form, "yaml")["text"])["pod_sets"]
    assert (chief["gpu_type"], chief["env"]) == ("H100", {"GOOD": "2", "BAD": "3"})
    assert chief.keys().isdisjoint({"gpu_types", "command"})
    assert chief["tolerations"]
    assert helper["annotations"] == {"note": "b"}
    # Removing a pod set removes the extra fields kept for it.
    less = Sent(client.post("/jobs/new/", {**form, "remove": "0"}).content.decode()).fields
    assert json.loads(less["rest"])["pod_sets"] == [{"annotations": {"note": "b"}}]
    [left] = json.loads(as_text(client, less, "json")["text"])["pod_sets"]
    assert (left["name"], left["annotations"]) == ("helper", {"note": "b"})


def test_a_job_like_another_is_shown_as_a_text_with_all_of_it(as_user):
    client = as_user("erin")
    client.post(TEXT, typed(RICH))
    job = Job.objects.get(name="rich")
    form = Sent(client.get("/jobs/new/", {"like": job.pk}).content.decode()).fields
    shown = as_text(client, form, "json")
    assert shown["like"] == str(job.pk)
    document = json.loads(shown["text"])
    assert document["labels"] == {"team": "a"}
    page = client.post(TEXT, {**shown, "as": "form"}).content.decode()
    assert note(page).startswith("Filled in from rich .")


def test_a_form_that_is_not_filled_in_yet_is_a_text_that_is_not_either(as_user):
    client = as_user("erin")
    shown = as_text(client, {**FORM, "name": "", "sets-0-count": ""}, "yaml")
    assert shown["text"].startswith("name: ''")
    assert Sent(client.post(TEXT, {**shown, "as": "form"}).content.decode()).fields["name"] == ""
    answer = client.post(TEXT, shown)
    assert answer.status_code == 422
    assert any(fault.startswith("Line 1, name:") for fault in faults(answer))


def test_a_form_with_faults_stays_a_form(as_user):
    for wrong, told in (
        ({"sets-0-gpus": "many"}, "id_sets-0-gpus-error"),
        ({"sets-0-env": "=x"}, "Line 1: write NAME=VALUE."),
        ({"sets-TOTAL_FORMS": "x"}, "Give at least one pod set."),
    ):
        answer = as_user("erin").post(TEXT, {**FORM, **wrong, "as": "yaml"})
        assert answer.status_code == 422
        assert told in answer.content.decode()


def test_a_text_is_drawn_again_as_it_is_after_a_sign_in(as_user):
    text = "name: [\n"
    answer = as_user("erin").post(TEXT, typed(text, show="1"))
    assert (answer.status_code, faults(answer)) == (200, [])
    assert Sent(answer.content.decode()).fields["text"].strip() == "name: ["


def test_an_array_is_submitted_by_a_text(as_user):
    client = as_user("erin")
    text = "name: sweep-t\ntenant: vision\narray: {count: 2}\ngpus: 1\n"
    form = as_text(client, typed(text), "form")
    for sent, at in ((form, "/jobs/new/"), (typed(text), TEXT)):
        answer = client.post(at, sent)
        assert answer["Location"].startswith("/jobs/?array="), faults(answer)
    assert Job.objects.filter(name__startswith="sweep-t-").count() == 4
    assert "2 jobs" in client.get(answer["Location"]).content.decode()


# --- errors ---------------------------------------------------------------------------------------
HEAD = "name: wrong\ntenant: vision\n"


@pytest.mark.parametrize(
    ("text", "told"),
    some([
        (f"{HEAD}gpus: many\n", "Line 3, gpus: "),
        (f"{HEAD}gpus: 1\ngpu_tpye: H200\n", "Line 4, gpu_tpye: "),
        (f"{HEAD}pod_sets:\n- gpus: 1\n- name: b\n  gpus: 8\n  count: 0\n",
         "Line 7, pod_sets.1.count: "),
        (f"{HEAD}pod_sets:\n- gpus: 1\n- tolerations: [{{key: 3}}]\n  gpus: 1\n",
         "Line 5, pod_sets.1.tolerations.0.key: "),
        (f"{HEAD}gpus: 1\nenv:\n  N: 3\n", "Line 5, env.N: "),
        (f"{HEAD}gpus: 8\ngpu_type: X1\n", "Line 4, gpu_type: "),
        (f"{HEAD}gpus: 1\nname: twice\n", "Line 4, name: This field appears twice. Keep one."),
        (f"{HEAD}gpus: [1\n", "Line 4: This is not valid YAML: "),
        (f"{HEAD}\tgpus: 1\n", "Line 3: This is not valid YAML: "),
        ("- a\n- b\n", "Line 1: Write one mapping of fields"),
        ("", "Line 1: Write one mapping of fields"),
        ("just words", "Line 1: Write one mapping of fields"),
        (
            f"{HEAD}gpus: 1\nenv: {{A: !!python/object:os.system x}}\n",
            "Line 4: This is not valid YAML",
        ),
        (f"{HEAD}env: {{A: !!binary aGk=}}\n", "This is not valid YAML: a bytes stands there"),
        (f"{HEAD}env: {{3: x}}\n", "This is not valid YAML: the name 3 is no text"),
        (f'{HEAD}image: "a\\0b"\n', "A text contains NUL"),
        (f"{HEAD}priority: 0x{'f' * 9000}\n", "This is not valid YAML: "),
        (f"{HEAD}gpus: .nan\n", "The text is not valid JSON: NaN is not a JSON number"),
        ("a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\n" + "".join(
            f"{n}: &{n} [*{m},*{m},*{m},*{m},*{m},*{m},*{m},*{m},*{m},*{m}]\n"
            for m, n in zip("bcdefgh", "cdefghi", strict=True)), "its aliases make it more than"),
        ("a: &a [*a]\n", "an alias leads back"),
        ("[" * 5000, "nested too deeply"),
        ("x" * (MOST_OF_A_TEXT + 1), "Use at most 131,072 characters."),
    ]),
)  # fmt: skip
def test_each_fault_of_a_text_has_its_line_and_field(as_user, text, told):
    client = as_user("erin")
    for more in ({}, {"as": "form"}, {"as": "json"}):
        answer = client.post(TEXT, typed(text, **more))
        # A text that is only shown is not checked for existing names or against rules.
        if more.get("as") and answer.status_code == 200:
            assert told.split(":")[0] in ("Line 4, gpu_type", "Line 7, pod_sets.1.count")
            continue
        assert answer.status_code == 422
        assert any(told in fault for fault in faults(answer)), faults(answer)
        assert (
            Sent(answer.content.decode()).fields.get("text", "").replace("\r\n", "\n").strip()
            == text.strip()
        )
    page = unescape(client.post("/jobs/new/text/preview/", typed(text)).content.decode())
    assert told in re.sub("<[^>]*>", "", page)
    assert not Job.objects.filter(name="wrong").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    some(
        [
            ('{\n  "name": "a",\n  "tenant" "b"\n}', "Line 3: This is not valid JSON: "),
            ('{\n\t"name": "a",\n\t"tenant": "vision",\n\t"gpus": "8"\n}', "Line 4, gpus: "),
            ('{"name": "a", "name": "b"}', "appears twice in one object"),
            ("name: a\n", "Line 1: This is not valid JSON: "),
            ("[" * 5000, "nested too deeply"),
            (f'{{"priority": {"9" * 5000}}}', "is too large"),
            ('{"name": "\\ud800"}', "half of a surrogate pair"),
        ]
    ),
)
def test_faults_of_json_have_their_lines_too(as_user, text, told):
    answer = as_user("erin").post(TEXT, typed(text, "json"))
    assert answer.status_code == 422
    assert any(told in fault for fault in faults(answer)), faults(answer)


def test_a_place_that_is_not_there_is_told_in_the_form(as_user):
    client = as_user("erin")
    text = "name: a\ntenant: search\ngpus: 1\ngpu_type: X1\ncluster: nowhere\n"
    shown = client.post(TEXT, typed(text, **{"as": "form"})).content.decode()
    page = unescape(shown)
    assert "You may not submit to search. Choose another tenant." in page
    assert "GPU type X1 does not exist" in page
    assert f"{NOTE} cluster." in note(page)
    answer = client.post("/jobs/new/", {**Sent(shown).fields, "tenant": "vision"})
    assert answer.status_code == 422
    assert "nowhere" in unescape(answer.content.decode())


def test_the_preview_of_a_text_is_that_of_its_form(as_user):
    client = as_user("erin")

    def told(answer) -> Any:
        page = unescape(answer.content.decode())
        curl = json.loads(page.partition("-d '")[2].partition("'</pre>")[0])
        return page.partition("The same with curl")[0], curl

    form = told(client.post("/jobs/new/preview/", FORM))
    text = told(client.post("/jobs/new/text/preview/", as_text(client, FORM, "json")))
    assert text == form


@pytest.mark.parametrize(
    ("at", "sent"),
    some(
        [
            (TEXT, {**FORM, "as": "toml"}),
            (TEXT, FORM),
            (TEXT, {"text": "a: 1", "language": "toml"}),
            (TEXT, {**FORM, "as": "yaml", "rest": "{"}),
            ("/jobs/new/", {**FORM, "rest": "[]"}),
            ("/jobs/new/", {**FORM, "rest": '{"labels": 3}'}),
            ("/jobs/new/", {**FORM, "add": "1", "rest": '{"pod_sets": 7}'}),
            ("/jobs/new/preview/", {**FORM, "rest": "[" * 5000}),
            ("/jobs/new/text/preview/", {"language": "yaml"}),
        ]
    ),
)
def test_what_no_page_of_ours_sends_is_not_found(as_user, at, sent):
    assert as_user("erin").post(at, sent).status_code == 404


def test_whoever_may_not_submit_submits_no_text(as_user):
    text = typed("name: a\ntenant: vision\ngpus: 1\n")
    answer = as_user("vik").post(TEXT, text)
    assert answer.status_code == 422
    assert as_user("vik").get(TEXT).status_code == 405
    assert not Job.objects.filter(name="a").exists()
