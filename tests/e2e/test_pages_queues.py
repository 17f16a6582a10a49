"""The queue pages without a browser: what each role sees and may do, and how many queries they
cost."""

import html
import re

import pytest
from django.utils import timezone

from scheduling.engine.verdict import Reason
from scheduling.models import Cluster, Job, JobEvent, Placement
from scheduling.queries.queues.stages import STAGES, queues_now, stage_of
from tenants.models import AuditRecord, Queue, Tenant
from tests.cases import some

LIST = "/queues/"
WHY = {"reason": "The file server moves"}


def plain(answer) -> str:
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", answer.content.decode()).split()))


def tenant(name):
    return Tenant.objects.get(name=name)


def queue(name="default", of="vision"):
    return Queue.objects.get(tenant__name=of, name=name)


def url(name="default", of="vision", end=""):
    return f"{LIST}{of}/{name}/{end and f'{end}/'}"


@pytest.fixture
def nightly(played):
    return Queue.objects.create(tenant=tenant("vision"), name="nightly", title="At night")


def put_into(queue, *names):
    Job.objects.filter(name__in=names).update(queue=queue)


# --- the list -------------------------------------------------------------------------------------
def rows(answer) -> dict[str, str]:
    """Return {queue: its row as text}."""
    found = re.findall(r'<tr id="queue-\d+">(.*?)</tr>', answer.content.decode(), re.DOTALL)
    texts = [html.unescape(" ".join(re.sub(r"<[^>]+>", " ", row).split())) for row in found]
    return {" ".join(text.split()[:3]): text for text in texts}


def test_everybody_sees_the_queues_of_their_tenants_in_the_order_of_the_tree(as_user, nightly):
    shown = list(rows(as_user("operator").get(LIST)))
    research = shown.index("research / default")
    assert shown[research + 1] == "nlp / default"
    assert shown[shown.index("vision / default") + 1] == "vision / nightly"
    assert list(rows(as_user("erin").get(LIST))) == ["vision / default", "vision / nightly"]
    assert list(rows(as_user("vik").get(LIST))) == ["search / default"]
    page = as_user("erin").get("/jobs/").content.decode()
    assert 'href="/queues/"' in page


def test_a_row_tells_stages_head_oldest_and_what_runs(as_user, nightly):
    put_into("nightly", "wait-000", "wait-001", "wait-002", "wait-004")
    nightly.max_gpus, nightly.max_running = {"H200": 16}, 3
    nightly.save()
    text = rows(as_user("erin").get(LIST))["vision / nightly"]
    # By quota and by jobs that can never run; behind a head; by fragmentation.
    assert text.startswith("vision / nightly Open 2 1 1 0 wait-002 Behind in queue")
    assert "72 min" in text or "1 h 12 min" in text
    assert "0 of 3 jobs H200 0 / 16" in text
    assert "600 " in text
    answer = as_user("erin").get(LIST)
    stages = {s["title"]: s["jobs"] for s in answer.context["stages"]}
    waiting = Job.objects.filter(tenant__name="vision", state__in=("PENDING", "QUOTA_RESERVED"))
    assert sum(stages.values()) == waiting.count()


@pytest.mark.parametrize(
    ("state", "reason", "stage"),
    [
        ("PENDING", Reason.WAITING_FOR_QUOTA, "tenant-queue"),
        ("PENDING", Reason.PENDING_EVALUATION, "tenant-queue"),
        ("QUOTA_RESERVED", Reason.ON_HOLD, "tenant-queue"),
        ("QUOTA_RESERVED", Reason.QUEUE_HELD, "tenant-queue"),
        ("QUOTA_RESERVED", Reason.QUEUE_LIMIT_REACHED, "tenant-queue"),
        ("QUOTA_RESERVED", Reason.BEHIND_IN_QUEUE, "quota-admitted"),
        ("QUOTA_RESERVED", Reason.INSUFFICIENT_GPUS, "global-queue"),
        ("QUOTA_RESERVED", Reason.FRAGMENTED_CAPACITY, "global-queue"),
        ("PENDING", Reason.EXCEEDS_CAPACITY, "tenant-queue"),
        ("QUOTA_RESERVED", Reason.WAITING_FOR_PREEMPTION, "being-placed"),
        ("ADMITTED", "", "being-placed"),
        ("QUOTA_RESERVED", "", "tenant-queue"),
    ],
)
def test_each_open_job_that_does_not_run_is_at_one_stage(state, reason, stage):
    assert stage_of(state, reason) == stage
    if state != "ADMITTED" and reason != Reason.WAITING_FOR_PREEMPTION:
        assert stage_of(state, reason, held=True) == "tenant-queue"


def test_every_reason_has_a_stage():
    for reason in Reason:
        assert stage_of("PENDING", reason) in STAGES


def test_what_came_and_started_in_the_last_hour(played):
    now = timezone.now()
    Job.objects.update(submitted_at=now - timezone.timedelta(hours=5))
    JobEvent.objects.update(at=now - timezone.timedelta(hours=5))
    job = Job.objects.get(name="wait-000")
    Job.objects.filter(pk=job.pk).update(submitted_at=now)
    for minutes in (1, 5, 61):
        at = now - timezone.timedelta(minutes=minutes)
        JobEvent.objects.create(job=job, at=at, kind="ADMITTED", to_state="ADMITTED")
    (found,) = queues_now([queue()])
    assert (found.arrived, found.started) == (1, 2)


def test_what_is_held_of_each_gpu_type(played):
    (found,) = queues_now([queue()])
    live = Placement.objects.filter(job__tenant__name="vision", state="RUNNING")
    assert sum(found.held.values()) == sum(live.values_list("held_milli", flat=True))
    assert found.running == live.values("job").distinct().count()


def test_the_head_is_the_first_that_stands_in_the_order(played):
    (found,) = queues_now([queue()])
    assert found.head.name == "wait-003"  # the oldest of those that wait their turn
    Job.objects.filter(name="wait-000").update(priority=1)
    assert queues_now([queue()])[0].head.name == "wait-000"
    Job.objects.filter(tenant__name="vision").update(held=True)
    assert queues_now([queue()])[0].head.name == "wait-000"  # nothing else is left
    Job.objects.all().update(state="SUCCEEDED")
    assert queues_now([queue()])[0].head is None


def test_the_page_costs_the_same_for_many_queues(as_user, django_assert_max_num_queries):
    client = as_user("operator")
    cluster = Cluster.objects.get()
    for number in range(60):
        made = Tenant.objects.create(name=f"team-{number}", parent=tenant("research"))
        Queue.objects.create(tenant=made, name="batch")
        Job.objects.create(
            name="j", tenant=made, cluster=cluster, queue="batch", submitted_at=timezone.now()
        )
    client.get(LIST)
    with django_assert_max_num_queries(20):
        answer = client.get(LIST)
    assert len(rows(answer)) == 60
    second = rows(client.get(f"{LIST}?page=3"))
    assert len(second) == 7 + 120 - 2 * 60
    assert "1–60 of 127" in plain(answer)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("q=night", ["vision / nightly"]),
        ("state=held", ["vision / nightly"]),
        ("tenant=vision", ["vision / default", "vision / nightly"]),
        ("tenant=research&q=speech", ["speech / default"]),
        ("q=nothing-like-it", []),
        ("state=lost", []),
        ("tenant=nobody", []),
        ("color=red", []),
    ],
)
def test_the_list_is_filtered(as_user, nightly, query, names):
    Queue.objects.filter(pk=nightly.pk).update(state="held")
    answer = as_user("operator").get(f"{LIST}?{query}")
    assert list(rows(answer)) == names
    if not names:
        text = plain(answer)
        assert "No queue matches" in text or "There is no" in text


def test_who_has_no_tenant_is_told(as_user):
    from tenants.models import User

    User.objects.create_user("new", password="x")
    assert "No queues yet" in plain(as_user("new").get(LIST))


# --- one queue ------------------------------------------------------------------------------------
def test_a_queue_has_a_page(as_user, nightly):
    put_into("nightly", "wait-000", "wait-003")
    text = plain(as_user("erin").get(url("nightly")))
    for part in ("Queues / vision", "At night", "vision/nightly", "Next in this queue", "wait-003"):
        assert part in text
    assert "Hold" not in text.split("Next in this queue")[0]
    assert "Changes" not in text
    assert as_user("erin").get(url(of="search")).status_code == 404
    assert as_user("erin").get(url("nope")).status_code == 404
    empty = plain(as_user("vera").get(url(of="nlp")))
    assert "Nothing waits" in empty
    live = as_user("vera").get(url("nightly"), headers={"HX-Request": "true"})
    assert "<html" not in live.content.decode()


@pytest.mark.parametrize(
    ("verb", "state"),
    [("hold", "held"), ("drain", "draining"), ("close", "closed")],
)
def test_a_state_is_set_with_a_reason(as_user, nightly, verb, state):
    client = as_user("vera")
    page = client.post(url("nightly", end=verb), WHY, follow=True)
    assert page.redirect_chain == [(url("nightly"), 302)]
    text = plain(page)
    assert f"Queue vision/nightly is {state} now." in text
    assert "by vera: The file server moves" in text
    found = queue("nightly")
    assert (found.state, found.state_by) == (state, "vera")
    record = AuditRecord.objects.get(action="queue.changed")
    assert (record.reason, record.source) == (WHY["reason"], "page")
    again = plain(client.post(url("nightly", end=verb), WHY, follow=True))
    assert f"stays {state}. Queue vision/nightly is {state} already" in again
    client.post(url("nightly", end="open"), WHY)
    assert queue("nightly").state == "open"


def test_a_held_queue_is_released_from_the_list(as_user, nightly):
    client = as_user("vera")
    client.post(url("nightly", end="hold"), WHY)
    assert "vision/nightly" in rows(client.get(LIST))["vision / nightly"]
    page = client.post(url("nightly", end="release"), {**WHY, "from": "list"}, follow=True)
    assert page.redirect_chain == [(LIST, 302)]
    assert queue("nightly").state == "open"


def test_without_a_reason_nothing_is_done(as_user, nightly):
    client = as_user("vera")
    text = plain(client.post(url("nightly", end="hold"), {"reason": " "}, follow=True))
    assert "stays open. Say why" in text
    assert queue("nightly").version == 1


def test_who_does_not_administer_the_tenant_changes_nothing(as_user, nightly):
    client = as_user("erin")
    for end in ("hold", "settings", "delete"):
        assert client.post(url("nightly", end=end), WHY).status_code == 404
    assert client.post("/queues/new/", {"tenant": "vision", "name": "x"}).status_code == 404
    assert as_user("piet").post(url("nightly", end="hold"), WHY).status_code == 404
    assert as_user("vera").post(url("nightly", end="burn"), WHY).status_code == 404
    assert client.get(url("nightly", end="hold")).status_code == 405
    assert queue("nightly").version == 1
    assert "New queue" not in plain(as_user("erin").get(LIST))


# --- settings -------------------------------------------------------------------------------------
def sent(client, path, **typed):
    """Return what a browser sends for the form as shown, with some fields typed."""
    form = client.get(path).context["form"]
    data = {}
    for field in form:
        value = field.value()
        data[field.html_name] = "" if value is None else value
        if field.field.show_hidden_initial:
            data[field.html_initial_name] = data[field.html_name]
    return {**data, **typed}


def test_settings_are_set(as_user, nightly):
    client = as_user("vera")
    path = url("nightly", end="settings")
    typed = {
        "rank": "2",
        "weight": "2.5",
        "order": "fifo",
        "max_running": "3",
        "max_gpus": "H200=16\r\nH100=0.5",
        "max_limit_min": "90",
        "default_preemptible": "no",
        "kinds": ["training", "development"],
        "roles": ["engineer"],
        "users": "erin vera",
        "reason": "Season",
    }
    page = client.post(path, sent(client, path, **typed), follow=True)
    assert page.redirect_chain == [(url("nightly"), 302)], page.context["form"].errors
    text = plain(page)
    assert "Queue vision/nightly is set." in text
    found = queue("nightly")
    assert (found.rank, found.weight, found.order, found.max_running) == (2, 2.5, "fifo", 3)
    assert (found.max_gpus, found.max_run_limit_s) == ({"H200": 16, "H100": 0.5}, 5400)
    assert (found.kinds, found.roles) == (["training", "development"], ["engineer"])
    assert (found.default_preemptible, found.users, found.title) == (
        False,
        ["erin", "vera"],
        "At night",
    )
    assert "Longest run-time limit 1 h 30 min" in text
    assert "Who may submit engineer, erin, vera" in text
    record = AuditRecord.objects.get(action="queue.changed")
    assert record.reason == "Season"
    # The form shows the current settings, and sends them again.
    page = client.post(
        path, sent(client, path, max_gpus="", kinds=[], default_preemptible="", max_limit_min="")
    )
    found = queue("nightly")
    assert (found.max_gpus, found.kinds, found.max_run_limit_s) == ({}, [], None)
    assert found.default_preemptible is None
    assert (found.rank, found.users) == (2, ["erin", "vera"])


def test_only_what_was_touched_is_set(as_user, nightly):
    client = as_user("vera")
    path = url("nightly", end="settings")
    data = sent(client, path, max_running="3")
    Queue.objects.filter(pk=nightly.pk).update(max_waiting=7, kinds=["inference"])  # meanwhile
    client.post(path, {**data, "initial-kinds": []})
    found = queue("nightly")
    assert (found.max_running, found.max_waiting) == (3, 7)


@pytest.mark.parametrize(
    ("typed", "field", "text"),
    some(
        [
            ({"weight": "0"}, "weight", "Must be more than 0"),
            ({"weight": "-2"}, "weight", "0"),
            ({"rank": "high"}, "rank", "whole number"),
            ({"max_running": "-1"}, "max_running", "from 0 to"),
            ({"max_gpus": "H200"}, "max_gpus", "Line 1: write TYPE=GPUS"),
            ({"max_gpus": "B300=8"}, "max_gpus", "There is no GPU type “B300”"),
            ({"max_gpus": "H200=-8"}, "max_gpus", "Line 1: write TYPE=GPUS"),
            ({"users": "nobody"}, "users", "There is no user “nobody”"),
            ({"default_priority": "9", "max_priority": "3"}, "default_priority", "more than"),
            ({"default_limit_min": "9", "max_limit_min": "3"}, "default_limit_min", "more than"),
            ({}, None, "Nothing was changed."),
        ]
    ),
)
def test_what_cannot_be_set_is_told_beside_its_field(as_user, nightly, typed, field, text):
    client = as_user("vera")
    path = url("nightly", end="settings")
    answer = client.post(path, sent(client, path, **typed))
    assert answer.status_code == 422
    assert text in plain(answer)
    if field:
        assert field in answer.context["form"].errors
    assert queue("nightly").version == 1


def test_a_limit_below_what_runs_is_set_and_told(as_user, played):
    client = as_user("vera")
    path = url(end="settings")
    page = client.post(path, sent(client, path, max_running="1"), follow=True)
    assert "of its jobs run, and the limit is 1: they keep running" in plain(page)


# --- make and delete ------------------------------------------------------------------------------
def test_a_queue_is_made(as_user, played):
    client = as_user("vera")
    path = "/queues/new/?tenant=speech"
    data = sent(client, path, name="batch", max_running="2", reason="new")
    assert data["tenant"] == "speech"
    page = client.post("/queues/new/", data, follow=True)
    assert page.redirect_chain == [(url("batch", "speech"), 302)]
    assert queue("batch", "speech").max_running == 2
    again = client.post("/queues/new/", data)
    assert (again.status_code, "already" in plain(again)) == (422, True)
    wrong = client.post("/queues/new/", {**data, "name": "No Name"})
    assert "name" in wrong.context["form"].errors
    foreign = client.post("/queues/new/", {**data, "tenant": "search"})
    assert "tenant" in foreign.context["form"].errors


def test_a_queue_is_deleted_once_its_jobs_are_over(as_user, nightly):
    put_into("nightly", "wait-000")
    client = as_user("vera")
    page = client.post(url("nightly", end="delete"), WHY, follow=True)
    assert "has 1 job not over, 1 of which wait (wait-000)" in plain(page)
    Job.objects.filter(name="wait-000").update(state="CANCELLED")
    page = client.post(url("nightly", end="delete"), WHY, follow=True)
    assert "Queue vision/nightly is deleted." in plain(page)
    kept = plain(client.post(url(end="delete"), WHY, follow=True))
    assert "takes the jobs that name no queue" in kept
    assert 'data-dialog="delete"' not in client.get(url()).content.decode()


# --- undo -----------------------------------------------------------------------------------------
def test_a_change_is_taken_back_on_a_page(as_user, nightly):
    client = as_user("vera")
    client.post(url("nightly", end="hold"), WHY)
    record = AuditRecord.objects.get(action="queue.changed")
    path = f"/queues/changes/{record.pk}/revert/"
    assert path in client.get(url("nightly")).content.decode()
    text = plain(client.get(path))
    assert "State open to held held open" in text
    assert client.post(path, {"version": "2", "reason": ""}).status_code == 422
    stale = client.post(path, {"version": "1", "reason": "x"})
    assert "Somebody has changed this queue in the meantime" in plain(stale)
    page = client.post(path, {"version": "2", "reason": "Done"}, follow=True)
    assert page.redirect_chain == [(url("nightly"), 302)]
    assert queue("nightly").state == "open"
    refused = plain(client.get(path))
    assert "It cannot be reverted. The queue already has its values from before" in refused
    assert as_user("erin").get(path).status_code == 404
    assert as_user("piet").get(path).status_code == 404


def test_a_deleted_queue_comes_back(as_user, nightly):
    client = as_user("vera")
    client.post(url("nightly", end="delete"), WHY)
    record = AuditRecord.objects.get(action="queue.deleted")
    path = f"/queues/changes/{record.pk}/revert/"
    assert "The queue would be made again" in plain(client.get(path))
    client.post(path, {"version": "0", "reason": "x"})
    assert queue("nightly").title == "At night"
    made = AuditRecord.objects.get(action="queue.created")
    gone = f"/queues/changes/{made.pk}/revert/"
    page = client.post(gone, {"version": "1", "reason": "x"}, follow=True)
    assert page.redirect_chain == [(LIST, 302)]


# --- the global queue -----------------------------------------------------------------------------
GLOBAL = "/clusters/demo/queue/"


def names(answer):
    return [p.job.name if p.visible else None for p in answer.context["places"]]


def test_the_global_queue_is_in_the_order_of_the_scheduler(as_user):
    client = as_user("operator")
    assert names(client.get(GLOBAL)) == ["wait-003", "wait-002", "wait-001", "wait-000"]
    Job.objects.filter(name="wait-000").update(priority=5)
    Job.objects.filter(name="wait-003").update(held=True)
    answer = client.get(GLOBAL)
    assert names(answer) == ["wait-000", "wait-002", "wait-001"]
    heads = {p.job.name: p.heads for p in answer.context["places"]}
    assert heads == {"wait-000": ("H200",), "wait-002": (), "wait-001": ("H100",)}
    text = plain(answer)
    assert "Head of H200" in text
    assert "Needs 8 whole H200 nodes in one leaf" in text
    assert "Two jobs of the same pool" not in text
    answer = client.get(f"{GLOBAL}?gpu=H200")
    assert [(p.number, p.job.name) for p in answer.context["places"]] == [
        (1, "wait-000"),
        (2, "wait-002"),
    ]
    assert "No job waits its turn for L40S" in plain(client.get(f"{GLOBAL}?gpu=L40S"))
    assert "There is no GPU type “H300”" in plain(client.get(f"{GLOBAL}?gpu=H300"))
    assert client.get("/clusters/nowhere/queue/").status_code == 404


def test_of_other_tenants_only_sizes_are_shown(as_user):
    answer = as_user("piet").get(GLOBAL)
    assert names(answer) == [None] * 4
    text = plain(answer)
    assert "wait-" not in text
    assert "vision" not in text
    assert "of another tenant" in text
    assert "Fragmented capacity" in text


def test_an_empty_global_queue_says_so(as_user):
    Job.objects.update(state="SUCCEEDED")
    assert "Nothing waits its turn" in plain(as_user("operator").get(GLOBAL))


def test_a_long_global_queue_has_pages(as_user, django_assert_max_num_queries):
    client = as_user("operator")
    cluster, vision, now = Cluster.objects.get(), tenant("vision"), timezone.now()
    rows = [Job(name=f"j{i}", tenant=vision, cluster=cluster, submitted_at=now) for i in range(120)]
    Job.objects.bulk_create(rows)
    client.get(GLOBAL)
    with django_assert_max_num_queries(20):
        answer = client.get(f"{GLOBAL}?page=3")
    assert [p.number for p in answer.context["places"]] == list(range(101, 125))
    assert "101–124 of 124" in plain(answer)


def test_shards_have_queues_of_their_own(as_user):
    from scheduling.models import SchedulerLease

    client = as_user("operator")
    cluster = Cluster.objects.get()
    for scope in ("a", "b"):
        SchedulerLease.objects.create(cluster=cluster, scope=scope)
    Job.objects.filter(name="wait-000").update(scope="a")
    Job.objects.filter(name="wait-001").update(scope="b")
    assert names(client.get(GLOBAL)) == ["wait-000"]
    assert names(client.get(f"{GLOBAL}?scope=b")) == ["wait-001"]
    assert "There is no shard “c”" in plain(client.get(f"{GLOBAL}?scope=c"))


def test_jobs_are_filtered_by_queue(as_user, nightly):
    put_into("nightly", "wait-000")
    client = as_user("erin")
    page = client.get("/jobs/?tenant=vision&queue=nightly&state=open")
    assert [job.name for job in page.context["jobs"]] == ["wait-000"]
    listed = client.get("/api/v1/jobs?tenant=vision&queue=nightly")
    assert [job["name"] for job in listed.json()["items"]] == ["wait-000"]


# --- moving a job ---------------------------------------------------------------------------------
def test_a_waiting_job_is_moved_on_its_page(as_user, nightly):
    client = as_user("erin")
    job = Job.objects.get(name="wait-000")
    page = client.get(f"/jobs/{job.pk}/")
    assert f'href="{url()}"' in page.content.decode()
    assert [name for name, _ in page.context["form"].fields["queue"].choices] == [
        "default",
        "nightly",
    ]
    typed = {"initial-change-queue": "default", "change-queue": "nightly"}
    typed |= {"initial-change-priority": "0", "change-priority": "0"}
    moved = client.post(f"/jobs/{job.pk}/change/", typed, follow=True)
    assert "wait-000 is changed." in plain(moved)
    after = Job.objects.get(pk=job.pk)
    assert (after.queue, after.submitted_at) == ("nightly", job.submitted_at)
    Queue.objects.filter(pk=nightly.pk).update(kinds=["inference"], state="draining")
    other = Job.objects.get(name="wait-001")
    refused = client.post(f"/jobs/{other.pk}/change/", typed)
    assert (refused.status_code, "accepts no jobs: it is draining" in plain(refused)) == (422, True)
    Queue.objects.filter(pk=nightly.pk).update(kinds=[], state="open")
    Job.objects.filter(pk=other.pk).update(state="RUNNING")
    late = client.post(f"/jobs/{other.pk}/change/", typed)
    assert (late.status_code, "after a job has started, only" in plain(late)) == (422, True)
    assert Job.objects.get(pk=other.pk).queue == "default"


def test_who_has_one_queue_is_not_asked_for_another(as_user):
    job = Job.objects.get(name="wait-000")
    page = as_user("erin").get(f"/jobs/{job.pk}/")
    assert "queue" not in page.context["form"].fields
    assert (
        'href="/queues/?tenant=vision"' in as_user("erin").get("/tenants/vision/").content.decode()
    )
