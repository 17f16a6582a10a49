"""Job pages without a browser: visibility by role, filters, paging, cancelling."""

import base64
import re
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from scheduling.engine.verdict import NEVER, Reason
from scheduling.models import Job, NodeRecord, Placement, StartEstimate
from scheduling.models.jobs import PlacementState
from scheduling.pages.jobs.filters import STATE_CHOICES
from scheduling.queries.explain import gates_of
from scheduling.templatetags.jobs import gates, spans
from tenants.models import GpuType

OPEN = ["PENDING", "QUOTA_RESERVED", "ADMITTED", "RUNNING"]


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
    assert "This address has no page" in answer.content.decode()


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
        ("state=open&q=n-00", {"state__in": OPEN, "name__contains": "n-00"}),
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


def test_page_and_rest_mean_the_same_by_a_filter(as_user):
    client = as_user("operator")
    one = Job.objects.get(name="wait-003")
    above = Job.objects.filter(tenant__parent__name="research", state__in=OPEN)
    assert above.exists()
    for query in ("tenant=research", f"q={str(one.pk)[:8]}", f"q={one.pk}", "q=wait-00"):
        rest = client.get(f"/api/v1/jobs?{query}&limit=50").json()["items"]
        assert names(client.get(f"/jobs/?{query}")) == {job["name"] for job in rest} != set()


@pytest.mark.parametrize(
    ("query", "text", "rest"),
    [
        ("state=ASLEEP&q=-00", "There is no job state “ASLEEP”", "?q=-00"),
        ("tenant=law", "There is no tenant “law” that you may see", "?"),
        (
            "tenant=search",
            "There is no tenant “search” that you may see, but there is “research”",
            "?",
        ),
        ("gpu=B200&user=me", "There is no GPU type “B200”, but there is “H200”", "?user=me"),
        ("since=2h", "There is no period “2h”, but there is “24h”", "?"),
        ("sort=size", "There is no order “size”", "?"),
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


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("user=nobody", "There is no user “nobody” that you may see"),
        ("min_gpus=1,024", "“1,024” is not a number of GPUs: Write thousands without a separator"),
        ("max_gpus=many", "“many” is not a number of GPUs"),
        ("columns=gpus,rank", "There is no column “rank”"),
        ("sort=gpus&state=ended", "Jobs that are over can only be sorted by time"),
    ],
)
def test_a_filter_that_cannot_be_read_says_why(as_user, query, text):
    page = as_user("vera").get(f"/jobs/?{query}")
    assert (page.status_code, names(page)) == (200, set())
    assert f"<h2>{text}" in page.content.decode()
    told = as_user("vera").get(f"/jobs/jobs.csv?{query}", follow=True)
    assert text in told.content.decode()


@pytest.mark.parametrize(
    ("page", "filters", "rest"),
    [
        (
            "/jobs/?staus=running&q=wait",
            "q, state, tenant, queue, gpu, user, reason, array, min_gpus, max_gpus, since, sort",
            "?q=wait",
        ),
        ("/quotas/changes/?gpu=H200&tenant=vision", "tenant", "?tenant=vision"),
        ("/quotas/?staus=running&tenant=vision", "tenant, gpu, edited", "?tenant=vision"),
        ("/ops/nodes/?staus=running&page=2", "q, gpu, cluster, show, free", "?"),
    ],
)
def test_a_filter_that_there_is_not_is_told_and_can_be_left_out(as_user, page, filters, rest):
    text = as_user("operator").get(page).content.decode()
    name = "gpu" if "gpu=" in page else "staus"
    assert f"<h2>There is no filter “{name}” here; the filters are {filters}</h2>" in text
    assert f'<a class="btn btn-plain" href="{rest}">Leave this filter out</a>' in text
    assert "<tbody>" not in text
    assert "This page has no filter" not in text


def test_the_dashboard_refuses_a_filter_that_it_has_not(as_user):
    for page in ("/ops/?staus=running", "/ops/charts/waits.json?staus=running"):
        answer = as_user("operator").get(page)
        assert answer.status_code == 404
    assert "no filter “staus” here; the filters are cluster, gpu, window, at." in (
        as_user("operator").get("/ops/?staus=running").content.decode()
    )


@pytest.mark.parametrize(
    "page", ["/tenants/", "/tenants/vision/", "/jobs/new/", "/settings/tokens/", "JOB"]
)
def test_a_page_without_filters_says_so(as_user, page):
    page = job_url("wait-000") if page == "JOB" else page
    text = as_user("operator").get(f"{page}?staus=running&q=x").content.decode()
    assert "This page has no filter “staus”, “q”; it shows everything as usual." in text
    assert f'<a href="{page}">Leave them out</a>' in text
    assert "This page has no filter" not in as_user("operator").get(page).content.decode()


FAR = "0001-01-01T00:00:00+14:00|0b8f3c52-6d0e-4f7a-9a41-5c2d7e8f9a10"  # not a time in UTC


@pytest.mark.parametrize(
    "cursor", ["x", "YWJj", "%00", base64.urlsafe_b64encode(FAR.encode()).decode()]
)
def test_damaged_cursors_are_not_found(as_user, cursor):
    answer = as_user("operator").get(f"/jobs/?after={cursor}")
    assert answer.status_code == 404
    assert "Page not found" in answer.content.decode()


@pytest.mark.parametrize(
    "page",
    [
        "/jobs/?q=%00",
        "/jobs/?reason=a%00b",
        "/ops/nodes/?q=%00",
        "/ops/nodes/demo/%00/",
        "/quotas/changes/?tenant=%00",
        "/quotas/vision/%00/",
    ],
)
def test_no_page_takes_what_postgresql_cannot_compare(as_user, page):
    answer = as_user("operator").get(page)
    assert answer.status_code == 404
    assert "Neither an address nor a form can contain a NUL character." in answer.content.decode()
    typed = {"name": "a\0b", "lasts": "30"}
    assert as_user("operator").post("/settings/tokens/", typed).status_code == 404


def test_a_reason_that_filters_is_shown_and_sent_with_other_filters(as_user):
    client = as_user("operator")
    shown = '<option value="ExceedsMaxQuota" selected>Exceeds max quota</option>'
    assert shown in client.get("/jobs/?reason=ExceedsMaxQuota").content.decode()
    assert shown.replace(" selected", "") in client.get("/jobs/").content.decode()


def test_no_two_choices_of_a_filter_are_called_the_same():
    titles = [title for _, title in STATE_CHOICES]
    assert len(set(titles)) == len(titles)


def test_cursor_walks_over_every_job_once(as_user, monkeypatch):
    monkeypatch.setattr("scheduling.pages.jobs.table.JOBS_PER_PAGE", 17)
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
    assert ">0–7<" in text


def test_job_page_shows_what_pods_use_of_their_namespace(as_user):
    job = Job.objects.get(name="wait-000")
    path = reverse("job", args=[job.pk])
    pods = job.pod_sets.get()
    before = as_user("erin").get(path).content.decode()
    assert "Its pods use" not in before
    pods.count, pods.service_account, pods.shm_mib = 2, "trainer", 1024
    pods.volumes = [{"name": "d", "secret": "keys", "mount_path": "/keys", "read_only": True}]
    pods.env_from_secrets = {"WANDB_API_KEY": {"secret": "wandb", "key": "api"}}
    pods.save()
    text = as_user("erin").get(path).content.decode()
    for part in (
        f"worker-0.job-{job.pk}<",
        ">trainer<",
        ">1024 MiB<",
        ">/keys: secret keys, read-only<",
        ">WANDB_API_KEY: secret wandb, key api<",
    ):
        assert part in text


def test_job_page_shows_which_nodes_its_pods_may_be_on(as_user):
    pods = Job.objects.get(name="wait-000").pod_sets.get()
    pods.node_selector = {"disk": "ssd"}
    zone = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    new = {"key": "old", "operator": "DoesNotExist", "values": []}
    fast = {"key": "mhz", "operator": "Gt", "values": ["3000"]}
    pods.node_affinity = [{"match_expressions": [zone, new]}, {"match_expressions": [fast]}]
    pods.save()
    text = as_user("erin").get(job_url("wait-000")).content.decode()
    assert "<dt>Only on nodes with</dt>" in text
    assert ">disk = ssd<" in text
    assert ">zone in a, b and old not set or mhz above 3000<" in text


def test_job_page_says_how_often_it_was_restarted(as_user):
    erin = as_user("erin")
    assert "Restarts" not in erin.get(job_url("wait-000")).content.decode()
    Job.objects.filter(name="wait-000").update(max_restarts=5, restarts=2)
    text = erin.get(job_url("wait-000")).content.decode()
    assert "<dt>Restarts</dt><dd>2 of 5</dd>" in text


def test_a_job_of_very_many_pods_shows_some_and_counts_all(as_user, monkeypatch):
    monkeypatch.setattr("scheduling.pages.jobs.job.PODS_SHOWN", 1)
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


@pytest.mark.parametrize("reason", list(Reason))
def test_page_and_rest_stop_a_job_at_the_same_gate(reason):
    job = Job(state="PENDING", reason=reason.value)
    told = [g.ok for g in gates_of(job)]
    stop = "never" if reason in NEVER else "no"
    assert [g.status for g in gates(job)] == [
        {True: "ok", False: stop, None: ""}[ok] for ok in told
    ]
    assert told.count(False) == (reason is not Reason.PENDING_EVALUATION)


@pytest.mark.parametrize("reason", list(Reason))
def test_the_order_is_passed_at_the_front_alone(reason):
    job = Job(state="PENDING", reason=reason.value)
    first, behind = gates(job, 1), gates(job, 16)
    assert first == gates(job)
    changed = [(a, b) for a, b in zip(first, behind, strict=True) if a != b]
    passed = [g for g in first if (g.title, g.status) == ("Queue order", "ok")]
    assert [a for a, _ in changed] == passed
    assert [(b.status, b.text) for _, b in changed] == [("", "15 ahead of it")] * len(passed)


@pytest.mark.parametrize("by", ["reservation", "head"])
@pytest.mark.parametrize("late_s", [41, 3700])
def test_a_start_that_has_passed_is_overdue(as_user, by, late_s):
    at = timezone.now() - timedelta(seconds=late_s)
    jobs = Job.objects.filter(name="wait-000")
    if by == "reservation":
        jobs.update(reserved_start=at, reserved_nodes=[], reason="InsufficientGpus", evidence={})
    else:
        told = {"starts_at": at.timestamp()}
        jobs.update(reserved_start=None, reason="ReservedForHead", evidence=told)
    text = as_user("erin").get(job_url("wait-000")).content.decode()
    start = re.search(r"<dt>Expected start</dt><dd>(.*?)</dd>", text, re.DOTALL)[1]
    assert ">overdue by " in start
    assert "ago" not in start
    assert "not before" not in start
    assert text.count(">overdue by ") == 2  # and in the notice, or among the numbers
    jobs.update(
        reserved_start=timezone.now() + timedelta(hours=2) if by == "reservation" else None,
        evidence={"starts_at": timezone.now().timestamp() + 7200} if by == "head" else {},
    )
    assert "overdue" not in as_user("erin").get(job_url("wait-000")).content.decode()


@pytest.mark.parametrize("told", ["nothing", "a band", "the earliest start", "why there is none"])
def test_one_answer_tells_when_a_job_starts(as_user, told):
    job = Job.objects.get(name="wait-001")
    now = timezone.now()
    if told != "nothing":
        band = [None] * 3 if told != "a band" else [now + timedelta(hours=n) for n in (1, 2, 3)]
        StartEstimate.objects.create(
            job=job, as_of=now, basis="runs", text="2 h",
            **dict(zip(("p10", "p50", "p90"), band, strict=True)),
            none="" if any(band) else "No run of the next week reaches it.",
            earliest=now + timedelta(days=9.5) if told == "the earliest start" else None,
        )  # fmt: skip
    client = as_user("erin")
    part = client.get(f"{job_url(job.name)}outlook/").content.decode()
    page = client.get(job_url(job.name)).content.decode()
    assert "no estimate" not in page.lower()
    known = told in ("a band", "the earliest start")
    assert page.count(' id="starts">') == known
    assert page.count(' id="starts">Starts in less than 3 h</p>') == (told == "a band")
    later = (
        ' id="starts">Starts in 9 d or later</p><p class="more">Nine of ten such jobs do not start'
    )
    assert re.sub(r">\s+<", "><", page).count(later) == (told == "the earliest start")
    for text in (part, page):
        assert text.count("<dt>Expected start</dt>") == (not known)


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
    # A pod that gave up its place waits for another one; a pod that has finished does not.
    first, second = job.placements.order_by("ordinal")[:2]
    Placement.objects.filter(pk=first.pk).update(state=PlacementState.RELEASED)
    Placement.objects.filter(pk=second.pk).update(state=PlacementState.SUCCEEDED)
    text = client.get(url).content.decode()
    assert f"{pods - 1} of its {pods + 1} pods" in text
    assert "The other 2 wait in the queue, and each starts as soon as" in text
    assert f">{pods - 1} <small>of {pods + 1}<" in text
    # A running gang has all that it was promised; an elastic one may get more if its quota allows.
    Job.objects.filter(pk=job.pk).update(gang=True)
    text = client.get(url).content.decode()
    assert "in the queue, and each" not in text
    assert "gets more when quotas allow it and no waiting job can use the room." in text
    assert "until its pods were bound" in text


def test_a_job_that_waits_says_what_would_start_and_when_as_before_it_was_submitted(as_user):
    client = as_user("erin")
    url = job_url("wait-001")  # it waits for quota
    page = client.get(url).content.decode()
    assert "Working out when it could start" in page
    part = client.get(f"{url}outlook/").content.decode()
    assert "<dt>Quota</dt><dd>vision uses" in part
    assert "<dt>Expected start</dt>" in part
    # From now on the page has the log from its beginning.
    again = client.get(url, headers={"HX-Request": "true"}).content.decode()
    assert "Working out when it could start" not in again
    assert "<dt>Quota</dt><dd>vision uses" in again
    running = Job.objects.filter(state="RUNNING").first()
    assert 'id="outlook"' not in as_user("operator").get(f"/jobs/{running.pk}/").content.decode()


def test_a_reason_that_holds_for_ever_is_not_as_of_a_time(as_user):
    client = as_user("erin")
    never = client.get(job_url("wait-004")).content.decode()
    assert "and unchanged since. Kant checks again when nodes, quotas" in never
    assert 'class="aside soft">since ' in never
    assert "at most once a minute" not in never
    waits = client.get(job_url("wait-000")).content.decode()
    assert "at most once a minute" in waits
    assert "The scheduler was at work" in waits
    Job.objects.first().cluster.__class__.objects.update(connected=False)
    assert "The scheduler was at work" not in client.get(job_url("wait-000")).content.decode()


@pytest.mark.parametrize(
    "path", ["/jobs/", "/jobs/new/", "/quotas/", "/quotas/loans/", "/clusters/demo/queue/"]
)
def test_gpu_types_are_chosen_without_their_vendor(as_user, path):
    GpuType.objects.create(name="NVIDIA-X100")
    text = as_user("vera").get(path).content.decode()
    assert re.search(r'<option value="NVIDIA-X100"[^>]*>X100</option>', text)


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        ([], ""),
        ([3], "3"),
        (range(8), "0–7"),
        ([0, 1, 4, 6, 7, 5, 9], "0–1, 4–7, 9"),
        ([2, 2], "2"),
    ],
)
def test_devices_that_follow_each_other_are_a_span(devices, told):
    assert spans(devices) == told
