"""The submit form filled from a job: what it shows, what it cannot express, who may use it."""

import json
import re
import uuid
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from django.urls import reverse
from hypothesis import given, settings

from scheduling.models import Cluster, Job
from scheduling.pages.jobs.job_text import LANGUAGES, checked, document_in, json_of, text_of
from scheduling.pages.jobs.submit_again import filled_from, left_out, with_rest
from scheduling.pages.jobs.submit_form import JobForm, PodSets
from scheduling.services.jobs.document import document_of
from tenants.models import GpuType, Membership, Role, Tenant, User
from tests.cases import examples
from tests.e2e.test_pages_submission import FORM, FULL, documents
from tests.e2e.test_pages_submission import asked as asked_of
from tests.scheduling.test_job_document import documents as all_documents
from tests.scheduling.test_job_document import made_of

NOW = datetime(2029, 1, 1, tzinfo=UTC)
NOTE = "Kept, though this form cannot show it:"


class Sent(HTMLParser):
    """What a browser sends for a form whose fields nobody touches."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._name, self._text = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        name = given.get("name") or ""
        if tag == "input" and name:
            is_box = given.get("type") == "checkbox"
            if not is_box or "checked" in given:
                self.fields[name] = given.get("value", "on" if is_box else "")
        elif tag in ("select", "textarea"):
            self._name, self._text = name, tag == "textarea"
        elif tag == "option" and ("selected" in given or self._name not in self.fields):
            self.fields[self._name] = given["value"]

    def handle_data(self, data: str) -> None:
        if self._text:
            self.fields[self._name] = data.removeprefix("\n").replace("\n", "\r\n")

    def handle_endtag(self, tag: str) -> None:
        self._text = self._text and tag != "textarea"


def like(client, job: Job | str, status: int = 200) -> str:
    answer = client.get("/jobs/new/", {"like": job.pk if isinstance(job, Job) else job})
    assert answer.status_code == status
    return answer.content.decode()


def again(client, job: Job) -> Job:
    """Submit the form as it opens; return the job."""
    answer = client.post("/jobs/new/", Sent(like(client, job)).fields)
    assert answer.status_code == 302, re.findall(r'id="\S+-error">.*', answer.content.decode())
    return Job.objects.get(pk=answer["Location"].split("/")[2])


def note(page: str) -> str:
    """Return the notice that says where the values come from."""
    found = re.search(r'<div class="notice info">(.*?)</div></div>', page, re.DOTALL)
    assert found
    return unescape(" ".join(re.sub("<[^>]*>", " ", found[1]).split()))


# --- what it shows --------------------------------------------------------------------------------
@pytest.mark.parametrize("form", [FORM, FULL], ids=["short", "full"])
def test_what_the_form_made_is_submitted_again_as_it_is(as_user, form):
    client = as_user("erin")
    client.post("/jobs/new/", form)
    job = Job.objects.get(name="bert")
    page = like(client, job)
    assert note(page) == "Filled in from bert ."
    assert "This page has no filter" not in page
    page = client.get("/jobs/new/", {"like": job.pk, "x": 1}).content.decode()
    assert f'<a href="/jobs/new/?like={job.pk}">Leave it out</a>' in page
    assert ('<details class="more">' in page) == (form is FORM)
    other = again(client, job)
    first, second = asked_of(job), asked_of(other)
    assert (other.name, second) == ("bert", first)


@given(all_documents())
@settings(max_examples=examples(100))
def test_form_and_texts_say_any_document(document):
    document = document_of(made_of(document))
    for language in LANGUAGES:
        read = document_in(text_of(document, language), language)
        assert document_of(made_of(read)) == document, language
    filled = filled_from(document, NOW)
    places = {"tenants": ["vision"], "clusters": ["demo", "other"]}
    types = {"form_kwargs": {"gpu_types": ["H100", "A100", "T4"]}, "prefix": "sets"}
    sets = PodSets(initial=filled.sets, **types)
    page = f"{JobForm(initial=filled.job, **places)}{sets}" + "".join(str(s.volumes) for s in sets)
    sent = Sent(page).fields
    form, sets = JobForm(sent, **places), PodSets(sent, **types)
    assert (form.is_valid(), sets.is_valid()) == (True, True), (form.errors, sets.errors)
    said = {**form.document(), "pod_sets": [one.document() for one in sets]}
    rest = json.loads(json_of(filled.rest))  # as the page carries it
    if document.get("not_before", NOW) < NOW:
        del document["not_before"]  # it delays no new job
    assert document_of(made_of(checked(json.loads(json_of(with_rest(said, rest)))))) == document
    # It names the fields that it does not show.
    told = {name.split()[0] for name in left_out(rest)}
    assert told <= {name for one in (document, *document.get("pod_sets", [])) for name in one}
    assert ("labels" in told) == ("labels" in document)


# --- what it cannot express -----------------------------------------------------------------------
def test_what_is_kept_unseen_is_named(as_user):
    client = as_user("erin")
    document = {
        "name": "mixed",
        "tenant": "vision",
        "labels": {"team": "a"},
        "not_before": "2020-01-01T00:00:00Z",
        "gpu_types": ["H200", "H100"],
        "gpus": 8,
        "tolerations": [{"key": "maintenance", "operator": "Exists"}],
        # A label with the name of the field for the node.
        "node_affinity": [{"match_expressions": [{"key": "metadata.name", "operator": "Exists"}]}],
        "required_level": "spine",
        "preferred_level": "leaf",
        "env": {"GOOD": "1", "BAD": "two\nlines"},
        "command": ["python", "train.py", "--run=a b"],
    }
    client.post("/api/v1/jobs", document, content_type="application/json")
    job = Job.objects.get(name="mixed")
    page = like(client, job)
    assert note(page) == (
        f"Filled in from mixed . {NOTE} labels, gpu_types but the first, preferred_level, "
        "tolerations, node_affinity, env (BAD). YAML and JSON show all."
    )
    sent = Sent(page).fields
    assert sent["sets-0-gpu_type"] == "H200"
    assert sent["sets-0-env"] == "GOOD=1"
    assert sent["sets-0-command"] == "python train.py '--run=a b'"
    assert (sent["sets-0-required_level"], sent["not_before"]) == ("r:spine", "")
    # The notice stays until the job is submitted.
    for change in ({"add": "1"}, {"priority": "high"}):
        assert NOTE in note(client.post("/jobs/new/", {**sent, **change}).content.decode())
    first = asked_of(job)
    first[0]["start_not_before"] = None  # it has passed
    Job.objects.filter(pk=job.pk).delete()
    more = client.post("/jobs/new/", {**sent, "add": "1"}).content.decode()
    assert "Filled in from" not in more
    assert NOTE in note(more)
    assert client.post("/jobs/new/", sent).status_code == 302
    assert asked_of(Job.objects.get(name="mixed")) == first


def test_one_job_of_an_array_is_one_job(as_user):
    client = as_user("erin")
    sweep = {**documents(client, FORM), "name": "sweep-x", "array": {"count": 2}}
    client.post("/api/v1/jobs", sweep, content_type="application/json")
    job = Job.objects.get(name="sweep-x-1")
    other = again(client, job)
    assert (other.name, other.array_id) == ("sweep-x-1", None)
    assert other.pod_sets.get().env == {"KANT_ARRAY_INDEX": "1", "KANT_ARRAY_COUNT": "2"}


# --- who may use it -------------------------------------------------------------------------------
def test_the_page_of_a_job_leads_to_the_form(as_user):
    client = as_user("erin")
    job = Job.objects.filter(tenant__name="vision").first()
    link = f'href="/jobs/new/?like={job.pk}"'
    page = reverse("job", args=[job.pk])
    assert link in client.get(page).content.decode()
    Job.objects.filter(pk=job.pk).update(pod_namespace="web", pod_name="notebook-0")
    assert link not in client.get(page).content.decode()
    answer = client.get("/jobs/new/", {"like": str(job.pk).upper()}, follow=True)
    assert answer.redirect_chain == [(page, 302)]
    assert "stands for pod web/notebook-0, which Kant did not create." in answer.content.decode()


def test_a_job_that_one_may_not_see_is_not_there(as_user):
    client = as_user("erin")
    foreign = Job.objects.filter(tenant__name="search").first()
    for job in (foreign, str(uuid.uuid4()), "nonsense", "\0"):
        assert "Page not found" in like(client, job, 404)
    assert "You may not submit" in like(as_user("vik"), foreign)
    assert "Filled in from" not in like(as_user("erin"), "")


def test_where_one_may_not_submit_any_more_the_field_says_so(as_user):
    client = as_user("erin")
    client.post("/jobs/new/", FORM)
    job = Job.objects.get(name="bert")
    Membership.objects.filter(user__username="erin").update(role=Role.VIEWER)
    search = Tenant.objects.get(name="search")
    erin = User.objects.get(username="erin")
    Membership.objects.create(user=erin, tenant=search, role=Role.ENGINEER)
    page = unescape(like(client, job))
    error = re.search(r'id="id_tenant-error">.*?</svg>([^<]*)', page, re.DOTALL)
    assert error
    assert (
        error[1]
        == "The job was submitted to vision, where you may not submit. Choose another tenant."
    )
    assert re.findall(r"<[^>]* autofocus[^>]*>", page)[0].count('id="id_tenant"') == 1
    assert Sent(page).fields["sets-0-count"] == "2"


def test_places_and_gpu_types_that_are_gone_are_told(as_user):
    client = as_user("erin")
    client.post("/jobs/new/", FORM)
    job = Job.objects.get(name="bert")
    job.pod_sets.update(gpu_models=["V100"])
    page = unescape(like(client, job))
    assert re.search(r'id="id_sets-0-gpu_type-error">.*GPU type V100 does not exist', page)
    other = Cluster.objects.create(name="other", access={})
    Job.objects.filter(pk=job.pk).update(cluster=other)
    GpuType.objects.create(name="V100")
    assert Sent(like(client, job)).fields["cluster"] == "other"
    Cluster.objects.filter(pk=other.pk).update(is_active=False)
    page = unescape(like(client, job))
    assert "The job was submitted to cluster other, which is no longer active." in page
    assert "cluster" not in Sent(page).fields
