"""Job pages without a browser: who sees what, filters, paging, the submit form, cancelling."""

import re

import pytest
from django.urls import reverse

from scheduling import views
from scheduling.engine.verdict import NEVER, Reason
from scheduling.explain import gates_of
from scheduling.models import Job, JobEvent, NodeRecord, Placement
from scheduling.models.jobs import PlacementState
from scheduling.templatetags.jobs import gates
from tenants.models import Quota

OPEN = ["PENDING", "QUOTA_RESERVED", "ADMITTED", "RUNNING"]
FORM = {
    "name": "bert",
    "tenant": "vision",
    "kind": "training",
    "priority": "0",
    "declared_min": "",
    "gang": "on",
    "sets-TOTAL_FORMS": "1",
    "sets-INITIAL_FORMS": "0",
    "sets-0-name": "worker",
    "sets-0-count": "2",
    "sets-0-gpus": "8",
    "sets-0-gpu_type": "H200",
    "sets-0-required_level": "r:leaf",
    "sets-0-image": "busybox:stable",
}


def names(response) -> set[str]:
    return set(re.findall(r'/jobs/[0-9a-f-]{36}/">([\w-]+)</a>', response.content.decode()))


def job_url(name: str) -> str:
    return reverse("job", args=[Job.objects.get(name=name).pk])


def test_pages_ask_to_sign_in_and_fragments_reload_their_page(client, db):
    answer = client.get("/jobs/?state=waiting")
    assert answer.status_code == 302
    assert answer["Location"] == "/login/?next=/jobs/%3Fstate%3Dwaiting"
    fragment = client.get("/jobs/", headers={"HX-Request": "true"})
    assert fragment.status_code == 401
    assert fragment["HX-Refresh"] == "true"


@pytest.mark.parametrize(
    ("origin", "goes_on"),
    [
        ("http://testserver/settings/tokens/?a=1", "/settings/tokens/%3Fa%3D1"),
        ("http://elsewhere.example/settings/tokens/", "/"),
        ("", "/"),
    ],
)
def test_after_signing_in_again_a_button_leads_back_to_its_page(client, db, origin, goes_on):
    answer = client.post("/settings/tokens/5/revoke/", headers={"Referer": origin})
    assert (answer.status_code, answer["Location"]) == (302, f"/login/?next={goes_on}")


@pytest.mark.parametrize("path", ["/logout/", "/settings/tokens/5/revoke/"])
def test_an_address_that_only_takes_a_button_says_so(as_user, path):
    answer = as_user("erin").get(path)
    assert answer.status_code == 405
    assert "POST" in answer["Allow"]
    assert "This address only takes a button" in answer.content.decode()


def test_table_shows_only_tenants_of_the_reader(as_user):
    seen = names(as_user("vik").get("/jobs/"))
    assert seen
    assert set(Job.objects.filter(name__in=seen).values_list("tenant__name", flat=True)) == {
        "search"
    }


def test_a_fragment_is_not_a_whole_page(as_user):
    client = as_user("erin")
    assert "<html" in client.get("/jobs/").content.decode()
    assert "<html" not in client.get("/jobs/", headers={"HX-Request": "true"}).content.decode()


@pytest.mark.parametrize(
    ("query", "lookup"),
    [
        ("state=open&q=-00", {"state__in": OPEN, "name__contains": "-00"}),
        ("state=waiting", {"state__in": ["PENDING", "QUOTA_RESERVED"]}),
        ("state=RUNNING", {"state": "RUNNING"}),
        ("reason=ExceedsMaxQuota", {"reason": "ExceedsMaxQuota"}),
        ("user=me", {"user__username": "operator"}),
        ("gpu=L40S&state=waiting", {"name": "wait-003"}),
        ("q=wait-00", {"name__startswith": "wait-00"}),
    ],
)
def test_filters_are_applied_by_the_server(as_user, query, lookup):
    answer = as_user("operator").get(f"/jobs/?{query}")
    expected = set(Job.objects.filter(**lookup).values_list("name", flat=True))
    assert names(answer) == expected
    assert bool(expected) != ("No job matches these filters" in answer.content.decode())


@pytest.mark.parametrize(
    ("query", "text", "rest"),
    [
        ("state=ASLEEP&q=-00", "There is no job state “ASLEEP”", "?q=-00"),
        ("tenant=law", "There is no tenant “law” that you may see", "?"),
        ("tenant=search", "There is no tenant “search” that you may see", "?"),
        ("gpu=B200&user=me", "There is no GPU type “B200”", "?user=me"),
        ("user=vik", "Jobs are shown of anybody or of you alone, not of “vik”", "?"),
    ],
)
def test_a_filter_that_names_nothing_is_told_and_can_be_left_out(as_user, query, text, rest):
    page = as_user("vera").get(f"/jobs/?{query}")
    told = page.content.decode()
    assert (page.status_code, names(page)) == (200, set())
    assert f"<h2>{text}</h2>" in told
    assert f'<a class="btn btn-plain" href="{rest}">Leave this filter out</a>' in told
    value = text.partition("“")[2].partition("”")[0]
    assert f'<option value="{value}" selected>{value} (unknown)</option>' in told
    fragment = as_user("vera").get(f"/jobs/?{query}", headers={"HX-Request": "true"})
    assert f"<h2>{text}</h2>" in fragment.content.decode()


@pytest.mark.parametrize("query", ["after=x", "after=YWJj", "after=%00"])
def test_damaged_cursors_are_not_found(as_user, query):
    answer = as_user("operator").get(f"/jobs/?{query}")
    assert answer.status_code == 404
    assert "There is nothing here" in answer.content.decode()


def test_a_reason_that_filters_is_shown_and_sent_with_other_filters(as_user):
    client = as_user("operator")
    shown = '<option value="ExceedsMaxQuota" selected>Exceeds max quota</option>'
    assert shown in client.get("/jobs/?reason=ExceedsMaxQuota").content.decode()
    assert 'name="reason"' not in client.get("/jobs/").content.decode()


def test_no_two_choices_of_a_filter_are_called_the_same():
    titles = [title for _, title in views.STATE_CHOICES]
    assert len(set(titles)) == len(titles)


def test_cursor_walks_over_every_job_once(as_user, monkeypatch):
    monkeypatch.setattr("scheduling.views.JOBS_PER_PAGE", 17)
    client, found, url = as_user("operator"), [], "/jobs/"
    while url:
        answer = client.get(url)
        found += sorted(names(answer))
        older = re.search(r'href="(\?after=[^"]+)"', answer.content.decode())
        url = f"/jobs/{older[1]}" if older else ""
    assert len(found) == len(set(found)) == Job.objects.count()


def test_job_page_explains_why_it_waits(as_user):
    text = as_user("erin").get(job_url("wait-000")).content.decode()
    for part in ("Why it is waiting", "Needs 8 whole H200 nodes", "Ask for 48 GPUs.", ">48</dd>"):
        assert part in text
    assert "Why it will not run" in as_user("erin").get(job_url("wait-004")).content.decode()


def test_job_page_shows_pods_with_node_gpus_and_nics(as_user):
    job = Job.objects.filter(state="RUNNING", gpu_milli__gte=16000).first()
    text = as_user("operator").get(reverse("job", args=[job.pk])).content.decode()
    for place in job.placements.all():
        assert f"/ops/nodes/demo/{place.node}/" in text
    assert "0, 1, 2, 3, 4, 5, 6, 7" in text


def test_a_job_of_very_many_pods_shows_some_and_counts_all(as_user, monkeypatch):
    monkeypatch.setattr("scheduling.job_views.PODS_SHOWN", 1)
    job = Job.objects.filter(state="RUNNING", gpu_milli__gte=16000).first()
    pods = job.placements.count()
    client = as_user("operator")
    text = client.get(reverse("job", args=[job.pk])).content.decode()
    assert pods > 1
    assert f">{pods} <small>of {pods}<" in text
    assert f"{pods - 1} more pods" in text
    assert f"GET /api/v1/jobs/{job.pk}/pods<" in text
    assert len(client.get(f"/api/v1/jobs/{job.pk}/pods").json()["items"]) == pods


def test_cancelling_tells_what_is_held_now_not_what_was_asked_for(as_user):
    job = Job.objects.filter(state="RUNNING", gpu_milli=16_000).first()
    last = job.placements.last()
    Placement.objects.filter(pk=last.pk).update(state=PlacementState.SUCCEEDED)
    text = as_user("operator").get(reverse("job", args=[job.pk])).content.decode()
    assert "Its 1 pod on 1 node end, 8 GPUs become free" in text


def test_a_foreign_job_is_not_found(as_user):
    assert as_user("vik").get(job_url("wait-000")).status_code == 404


def test_cancel_belongs_to_the_submitter_and_to_admins(as_user):
    url = job_url("wait-000")
    assert "Cancel job" in as_user("erin").get(url).content.decode()
    client = as_user("vik")
    assert client.post(f"{url}cancel/").status_code == 404
    assert Job.objects.get(name="wait-000").state == "QUOTA_RESERVED"
    answer = as_user("erin").post(f"{url}cancel/", follow=True)
    assert "wait-000 is cancelled." in answer.content.decode()
    assert Job.objects.get(name="wait-000").state == "CANCELLED"
    again = as_user("erin").post(f"{url}cancel/", follow=True)
    assert "The job is already cancelled" in again.content.decode()


def test_submit_stores_the_job_as_typed(as_user):
    answer = as_user("erin").post("/jobs/new/", FORM)
    job = Job.objects.get(name="bert")
    assert answer["Location"] == reverse("job", args=[job.pk])
    assert (job.gpu_milli, job.gang, job.preemptible) == (16_000, True, False)
    [pod_set] = job.pod_sets.all()
    assert (pod_set.count, pod_set.gpus, pod_set.gpu_models) == (2, 8, ["H200"])
    assert pod_set.required_level == "leaf"
    assert JobEvent.objects.get(job=job).actor == "erin"


def test_half_a_gpu_is_a_share_of_one(as_user):
    as_user("erin").post("/jobs/new/", {**FORM, "sets-0-gpus": "0.5"})
    [pod_set] = Job.objects.get(name="bert").pod_sets.all()
    assert (pod_set.gpus, pod_set.gpu_milli) == (1, 500)


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"name": ""}, "id_name", "Fill this in."),
        ({"name": "Big Job"}, "id_name", "Use lower-case letters"),
        ({"priority": "high"}, "id_priority", "Write a whole number"),
        ({"priority": "1" + 30 * "0"}, "id_priority", "less than or equal to"),
        ({"sets-0-gpus": "9"}, "id_sets-0-gpus", "has 8. Ask for at most 8"),
        ({"sets-0-gpus": "1.5"}, "id_sets-0-gpus", "A share is of one GPU"),
        ({"sets-0-gpus": "0"}, "id_sets-0-gpus", "The job asks for no GPU"),
        ({"sets-0-gpus": "NaN"}, "id_sets-0-gpus", "Write a number"),
        ({"sets-0-count": "-1"}, "id_sets-0-count", "greater than or equal to 1"),
        ({"sets-0-count": "500"}, "id_sets-0-gpus", "Ask for fewer, or set gang to false"),
        ({"sets-0-gpu_type": "B200"}, "id_sets-0-gpu_type", "not one of the available choices"),
        ({"sets-0-image": "two words"}, "id_sets-0-image", "Not the name of an image"),
        ({"tenant": "search"}, "id_tenant", "not one of the available choices"),
    ],
)
def test_a_wrong_field_says_so_beside_itself(as_user, change, field, message):
    answer = as_user("erin").post("/jobs/new/", {**FORM, **change})
    assert answer.status_code == 422
    text = answer.content.decode()
    error = re.search(rf'id="{field}-error">.*?</svg>([^<]*)', text, re.DOTALL)
    assert error, "no message beside the field"
    assert message in error[1]
    assert f'aria-describedby="{field}-error"' in text
    assert re.findall(r"<[^>]* autofocus[^>]*>", text)[0].count(f'id="{field}"') == 1
    assert not Job.objects.filter(name="bert").exists()


def test_the_rule_of_names_is_told_with_the_other_faults(as_user):
    wrong = {"name": "Big Job", "priority": "high", "sets-0-name": "A B"}
    text = as_user("erin").post("/jobs/new/", {**FORM, **wrong}).content.decode()
    for field in ("id_name", "id_priority", "id_sets-0-name"):
        assert f'id="{field}-error"' in text
    assert text.count(" autofocus") == 1


def test_pod_sets_are_added_and_removed_without_losing_what_was_typed(as_user):
    client = as_user("erin")
    added = client.post("/jobs/new/", {**FORM, "name": "Not Yet Right", "add": "1"})
    text = added.content.decode()
    assert 'value="Not Yet Right"' in text
    assert 'name="sets-1-count"' in text
    assert 'id="id_preemptible" checked' not in text
    assert re.findall(r' autofocus[^>]* id="(\S+)"', text) == ["id_sets-1-count"]
    removed = client.post("/jobs/new/", {**FORM, "sets-TOTAL_FORMS": "2", "remove": "1"})
    assert 'name="sets-1-count"' not in removed.content.decode()
    assert not Job.objects.filter(name="bert").exists()


@pytest.mark.parametrize("total", ["", "x", "-1", "99999999999999999999", "0"])
def test_a_damaged_form_is_refused_in_words(as_user, total):
    client = as_user("erin")
    for more in ({}, {"add": "1"}):
        answer = client.post("/jobs/new/", {**FORM, "sets-TOTAL_FORMS": total, **more})
        assert answer.status_code in (200, 422)
    assert not Job.objects.filter(name="bert").exists()


def test_preview_rehearses_and_writes_nothing(as_user):
    client = as_user("erin")
    good = client.post("/jobs/new/preview/", FORM).content.decode()
    assert "Would be accepted" in good
    assert "-d &#x27;{" in good
    bad = client.post("/jobs/new/preview/", {**FORM, "sets-0-gpus": "9"}).content.decode()
    assert "Would be refused" in bad
    assert "GPUs per pod: A pod asks for 9 GPUs" in bad
    assert not Job.objects.filter(name="bert").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # vision may borrow all that research and products leave idle.
        ({"sets-0-gpu_type": "H100", "sets-0-count": "28"}, ""),
        (
            {"sets-0-gpu_type": "L40S", "sets-0-gpus": "4", "sets-0-count": "23"},
            "It asks for 92 L40S GPUs; tenant vision can never hold more than 88 L40S GPUs",
        ),
        (
            {"sets-0-gpu_type": "L40S", "sets-0-gpus": "4", "sets-0-count": "23", "gang": ""},
            "",
        ),
        ({"sets-0-gpu_type": "", "sets-0-count": "61"}, "It asks for 488 GPUs of one type;"),
    ],
)
def test_preview_warns_of_what_quotas_never_let_start(as_user, change, message):
    text = as_user("erin").post("/jobs/new/preview/", {**FORM, **change}).content.decode()
    assert message in text
    assert ("Would never start" in text) == bool(message)
    assert ("Would be accepted" in text) != bool(message)


def test_preview_warns_where_there_is_no_quota_at_all(as_user):
    Quota.objects.filter(gpu_type__name="H200").delete()
    text = as_user("erin").post("/jobs/new/preview/", FORM).content.decode()
    assert "Tenant vision has no quota for H200." in text


def test_a_viewer_is_told_why_there_is_no_form(as_user):
    assert "You may not submit" in as_user("vik").get("/jobs/new/").content.decode()
    assert as_user("vik").post("/jobs/new/", FORM).status_code == 200
    assert not Job.objects.filter(name="bert").exists()


@pytest.mark.parametrize("reason", list(Reason))
def test_page_and_rest_stop_a_job_at_the_same_gate(reason):
    job = Job(state="PENDING", reason=reason.value)
    told = [g.ok for g in gates_of(job)]
    stop = "never" if reason in NEVER else "no"
    assert [g.status for g in gates(job)] == [
        {True: "ok", False: stop, None: ""}[ok] for ok in told
    ]
    assert told.count(False) == (reason is not Reason.PENDING_EVALUATION)


def test_a_pod_that_was_moved_stands_where_it_is_now(as_user):
    job = Job.objects.filter(state="RUNNING").first()
    pod = job.placements.order_by("pod_set", "ordinal").first()
    before = pod.node
    node = NodeRecord.objects.filter(cluster=job.cluster).exclude(name=before).last()
    Placement.objects.filter(pk=pod.pk).update(state=PlacementState.RELEASED, message="Moved away")
    pod.pk, pod.attempt, pod.node = None, job.attempt + 1, node.name
    pod.pod_name += "-again"
    pod.save()
    page = as_user("operator").get(reverse("job", args=[job.pk])).content.decode()
    assert node.name in page
    assert "Moved away" not in page


def test_a_job_that_misses_pods_says_how_many_wait(as_user):
    job = Job.objects.filter(state="RUNNING", gpu_milli__gte=16_000).first()
    pods = job.placements.count()
    url = reverse("job", args=[job.pk])
    Job.objects.filter(pk=job.pk).update(gang=False)
    client = as_user("operator")
    assert "in the queue and start" not in client.get(url).content.decode()
    job.pod_sets.update(count=pods + 1)
    text = client.get(url).content.decode()
    assert f"{pods} of its {pods + 1} pods have places." in text
    assert (
        "The other one waits in the queue and starts as soon as quotas and free GPUs allow it."
        in text
    )
    # A pod that gave its place back waits for another, one that has done its work does not.
    first, second = job.placements.order_by("ordinal")[:2]
    Placement.objects.filter(pk=first.pk).update(state=PlacementState.RELEASED)
    Placement.objects.filter(pk=second.pk).update(state=PlacementState.SUCCEEDED)
    text = client.get(url).content.decode()
    assert f"{pods - 1} of its {pods + 1} pods" in text
    assert "The other 2 wait in the queue, and each starts as soon as" in text
    assert f">{pods - 1} <small>of {pods + 1}<" in text
    # A gang that runs has all it was promised; an elastic one may get more, as its quota allows.
    Job.objects.filter(pk=job.pk).update(gang=True)
    text = client.get(url).content.decode()
    assert "in the queue, and each" not in text
    assert "gets more when quotas allow it and there is room that nobody who waits can use." in text
    assert "until its pods were bound" in text
