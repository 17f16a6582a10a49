"""Kant deletes what is past its retention, keeps what is still needed, and lets no counter fall."""

import importlib
import json
import uuid
from datetime import timedelta
from io import StringIO

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from kant.celery import app
from metrics import services
from metrics.gpu_time import totals
from metrics.models import CounterTotals, MetricSample
from scheduling.engine.states import JobEventKind, JobState
from scheduling.models import Job, JobEvent, JobPod, Placement, PodSet
from scheduling.models.jobs import PlacementState
from scheduling.services import retention
from scheduling.services.retention import prune_jobs
from tenants.models import AuditRecord, GpuType, Quota, Tenant, User
from tests.metrics import rows
from tests.metrics.rows import at, exposition
from tests.plans import plan, query

pytestmark = pytest.mark.django_db
DAY = 86400.0


@pytest.fixture
def cluster(db):
    found = rows.cluster(4)
    tenant, _ = Tenant.objects.get_or_create(name="vision")
    gpu_type = GpuType.objects.create(name="H100")
    Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=64_000)
    return found


def job(cluster, name, *, ended=None, state=None, array=None, **fields):
    """A job with events, ended at `ended` (seconds) or waiting."""
    bound = None if ended is None else ended - 10
    made = rows.job(
        cluster, name, submitted=(ended or 0) - 30, bound=bound, ended=ended, nodes=("n000",)
    )
    changes = {**fields, **({"state": state} if state else {})}
    if array is not None:
        changes |= {"array_id": array[0], "array_index": array[1]}
    Job.objects.filter(pk=made.pk).update(**changes)
    kinds = [(JobEventKind.SUBMITTED, (ended or 0) - 30)]
    kinds += [(JobEventKind.ADMITTED, ended - 20), (JobEventKind.SUCCEEDED, ended)] if ended else []
    for kind, second in kinds:
        JobEvent.objects.create(job=made, at=at(second), kind=kind, to_state="PENDING")
    return made


def left():
    return sorted(Job.objects.values_list("name", flat=True))


def pruned(before):
    return prune_jobs(at(before), budget_s=60)


def test_what_ended_early_enough_goes_with_all_that_hangs_on_it(cluster):
    for number in range(5):
        job(cluster, f"old-{number}", ended=100 + number)
    job(cluster, "late", ended=500)
    job(cluster, "waiting")
    for row in Job.objects.all():
        JobPod.objects.create(job=row, pod_set=0, ordinal=0, uid=row.pk, name=row.name)
    assert pruned(500) == 5
    assert left() == ["late", "waiting"]
    assert PodSet.objects.count() == 2
    assert set(JobPod.objects.values_list("name", flat=True)) == {"late", "waiting"}
    assert set(Placement.objects.values_list("job__name", flat=True)) == {"late"}
    assert set(JobEvent.objects.values_list("job__name", flat=True)) == {"late", "waiting"}
    assert pruned(500) == 0


def test_a_job_stays_while_one_of_its_pods_is_not_gone(cluster):
    leaving = job(cluster, "leaving", ended=100, state=JobState.CANCELLED)
    leaving.placements.update(state=PlacementState.RUNNING, ended_at=None)
    job(cluster, "newer")
    assert pruned(500) == 0
    leaving.placements.update(state=PlacementState.RELEASED, ended_at=at(200))
    assert pruned(500) == 1


@pytest.mark.parametrize("column", ["after", "after_ok"])
@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING])
def test_a_job_stays_until_those_that_wait_for_it_are_over(cluster, column, state):
    first = job(cluster, "first", ended=100, state=JobState.FAILED)
    job(cluster, "other", ended=100)
    second = job(cluster, "second", state=state, **{column: [str(first.pk)]})
    job(cluster, "newer")
    assert pruned(500) == 1
    assert left() == ["first", "newer", "second"]
    Job.objects.filter(pk=second.pk).update(state=JobState.CANCELLED, ended_at=at(600))
    assert pruned(500) == 1
    assert left() == ["newer", "second"]


def test_an_array_goes_as_a_whole(cluster):
    array = uuid.uuid4()
    members = [job(cluster, f"a-{i}", ended=100 + i, array=(array, i)) for i in range(4)]
    job(cluster, "newer")
    for blocking, mended in (
        ({"state": JobState.RUNNING, "ended_at": None}, {"state": JobState.FAILED}),
        ({"ended_at": at(501)}, {"ended_at": at(103)}),
    ):
        last = Job.objects.filter(pk=members[3].pk)
        last.update(**blocking)
        assert pruned(500) == 0
        last.update(**{"ended_at": at(103), **mended})
    members[1].placements.update(state=PlacementState.BOUND)
    assert pruned(500) == 0
    members[1].placements.update(state=PlacementState.RELEASED)
    waiting = job(cluster, "waiting", after_ok=[str(array)])
    assert pruned(500) == 0
    Job.objects.filter(pk=waiting.pk).update(after_ok=[str(members[2].pk)])
    assert pruned(500) == 0
    Job.objects.filter(pk=waiting.pk).update(after_ok=[])
    assert pruned(500) == 4


def test_an_array_larger_than_a_batch_goes_whole_and_its_first_job_last(cluster, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 3)
    array = uuid.uuid4()
    for i in range(8):
        job(cluster, f"a-{i}", ended=100 + i, array=(array, i))
    job(cluster, "newer")
    gone = []
    delete = retention._delete_rows

    def watched(model, ids):
        if model is Placement:
            gone.append(set(Job.objects.filter(pk__in=ids).values_list("array_index", flat=True)))
        delete(model, ids)

    monkeypatch.setattr(retention, "_delete_rows", watched)
    assert pruned(500) == 8
    assert gone == [{7, 6, 5}, {4, 3, 2}, {1, 0}]
    assert left() == ["newer"]


def test_no_transaction_deletes_more_than_its_share(cluster, monkeypatch):
    monkeypatch.setattr(retention, "ROWS", 4)
    for i in range(6):
        job(cluster, f"old-{i}", ended=100)
    job(cluster, "newer")
    with CaptureQueriesContext(connection) as queries:
        assert pruned(500) == 6
    events = [
        q["sql"] for q in queries.captured_queries if 'DELETE FROM "scheduling_jobev' in q["sql"]
    ]
    assert len([sql for sql in events if "LIMIT 4" in sql]) == 5  # 18 events, four at a time
    assert not JobEvent.objects.filter(job__name__startswith="old").exists()


def test_time_that_is_up_leaves_the_rest_for_the_next_time(cluster, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 2)
    for i in range(6):
        job(cluster, f"old-{i}", ended=100 + i)
    job(cluster, "newer")
    assert prune_jobs(at(500), budget_s=0) == 2
    assert left() == ["newer", "old-2", "old-3", "old-4", "old-5"]
    assert pruned(500) == 4


def test_the_job_of_the_newest_event_stays(cluster):
    job(cluster, "only", ended=100)
    assert pruned(500) == 0


def test_what_is_over_is_found_by_an_index(cluster):
    first = query(lambda: pruned(500), "ORDER BY 3 ASC", "LIMIT")
    assert "scheduling__ended_a_52461e" in plan(first), plan(first)


def counters():
    text = exposition().decode()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith(("kant_job_events_total", "kant_job_wait_seconds"))
    }


def test_counters_say_the_same_folded_and_pruned(cluster, settings):
    settings.KANT_KEEP_DAYS = 1
    for i in range(7):
        job(cluster, f"old-{i}", ended=100.5 * (i + 1))
    moved = Job.objects.get(name="old-3")
    JobEvent.objects.create(
        job=moved, at=at(401), kind="REASON", reason="Moved", to_state="RUNNING"
    )
    rows.job(cluster, "runs", submitted=0, bound=7, nodes=("n001",))
    job(cluster, "late", ended=2 * DAY)
    before = counters()
    assert before['kant_job_events_total{cluster="c1",event="submitted"}'] == 8
    assert before['kant_job_events_total{cluster="c1",event="moved"}'] == 1
    pool = 'cluster="c1",gpu_type="H100"'
    assert before[f'kant_job_wait_seconds_count{{{pool},size_class="8"}}'] == 9
    assert before[f'kant_job_wait_seconds_sum{{{pool},size_class="8"}}'] == 8 * 20 + 7
    assert before[f'kant_job_wait_seconds_bucket{{{pool},le="15.0",size_class="8"}}'] == 1
    totals.fold(at(300))
    assert counters() == before
    totals.fold(at(2 * DAY))
    assert counters() == before
    assert services.prune(at(2 * DAY)) == 7
    assert counters() == before
    assert services.prune(at(2 * DAY)) == 0
    assert counters() == before


def test_a_long_history_is_folded_a_part_at_a_time(cluster, monkeypatch):
    week = 7 * DAY
    for number in range(4):
        job(cluster, f"old-{number}", ended=number * week + 100)
    before = counters()
    monkeypatch.setattr(totals, "BUDGET_S", 0.0)
    known = [totals.fold(at(5 * week)) for _ in range(3)]
    assert known == [
        at(70 + (number + 1) * week) for number in range(3)
    ]  # since the first submission
    JobEvent.objects.filter(at__lt=known[-1]).delete()
    Job.objects.filter(ended_at__lt=known[-1]).delete()
    assert counters() == before
    monkeypatch.undo()
    assert totals.fold(at(5 * week)) == at(5 * week) - totals.LAG
    assert counters() == before


def test_what_was_counted_before_pools_were_told_apart_stays_counted(cluster):
    division = importlib.import_module("metrics.migrations.0004_waits_by_pool")
    within = [0, 0, *[3] * (len(totals.WAIT_BUCKETS_S) - 2)]
    old = {"8": {"count": 3, "sum_us": 30_000_000, "within": within}}
    row = CounterTotals.objects.create(until=at(50), waits=old)
    division.divide(apps, None)
    rows.job(cluster, "runs", submitted=0, bound=7, nodes=("n001",))
    found = counters()
    assert found['kant_job_wait_seconds_sum{cluster="",gpu_type="",size_class="8"}'] == 30
    assert found['kant_job_wait_seconds_sum{cluster="c1",gpu_type="H100",size_class="8"}'] == 7
    job(cluster, "ended", ended=100)
    totals.fold(at(DAY))
    division.join(apps, None)
    row.refresh_from_db()
    assert (row.waits["8"]["count"], row.waits["8"]["sum_us"]) == (4, 50_000_000)
    assert row.waits["8"]["within"][-1] == 4


def test_nothing_is_deleted_that_is_not_counted(cluster, settings, monkeypatch):
    settings.KANT_KEEP_DAYS = 1
    monkeypatch.setattr(totals, "LAG", timedelta(days=3))
    job(cluster, "old", ended=100)
    job(cluster, "newer")
    assert services.prune(at(2 * DAY)) == 0
    assert services.prune(at(4 * DAY)) == 1


def test_what_is_folded_while_the_page_is_made_is_counted_once(cluster, monkeypatch):
    job(cluster, "old", ended=100)
    before = counters()
    counted = totals._counted

    def meanwhile(events, jobs):
        monkeypatch.setattr(totals, "_counted", counted)
        totals.fold(at(DAY))
        JobEvent.objects.all().delete()
        return counted(events, jobs)

    monkeypatch.setattr(totals, "_counted", meanwhile)
    assert counters() == before


def test_samples_go_too_and_the_audit_trail_stays(cluster, settings):
    settings.KANT_KEEP_DAYS = 4
    AuditRecord.objects.create(actor_name="ops", action="quota.changed", subject="s", source="api")
    AuditRecord.objects.update(at=at(0))
    for day in range(6):
        services.record_sample(cluster, at(day * DAY))
    services.thin_samples(at(5 * DAY + 1))
    kept = {(s.at - rows.T0).days for s in MetricSample.objects.filter(gpu_model="")}
    assert kept == {2, 3, 4, 5}
    assert AuditRecord.objects.count() == 1


def test_beat_prunes_and_drops_what_came_too_late(cluster):
    entry = app.conf.beat_schedule["prune"]
    assert entry["options"]["expires"] <= entry["schedule"]
    old = job(cluster, "old", ended=100)
    job(cluster, "newer")
    app.loader.import_default_modules()  # as a worker does
    app.tasks[entry["task"]]()
    assert not Job.objects.filter(pk=old.pk).exists()


# What keeps each table from growing for ever.
BOUNDS = {
    "deleted with the jobs that are over": [
        "scheduling.Job", "scheduling.PodSet", "scheduling.JobPod", "scheduling.JobEvent",
        "scheduling.Placement", "scheduling.StartEstimate", "scheduling.JobConstraints",
        "scheduling.JobGpuUse",
    ],
    "by a task of beat": [
        "metrics.MetricSample", "metrics.Replay", "tenants.IdempotencyKey", "tenants.ApiToken",
        "sessions.Session", "tenants.QuotaDraft", "tenants.DraftCell", "tenants.QuotaOrder",
        "tenants.OrderCell", "tenants.DraftTenant", "tenants.OrderTenant", "webhooks.HookDelivery",
        "scheduling.PlanOrder",
    ],
    "one row, or one for each of something": [
        "scheduling.Retention", "metrics.CounterTotals", "metrics.UsageLedger",
        "metrics.ThinnedSamples", "metrics.GpuUseLedger",
        "scheduling.ClusterPolicy", "scheduling.SchedulerLease", "scheduling.StandingOrder",
        "scheduling.NodeRecord", "scheduling.NodeOrder", "scheduling.Forecasting",
        "tenants.Identity", "scheduling.JobTable", "webhooks.HookOutbox",
        "scheduling.ToldGroups",
    ],
    "people make them": [
        "scheduling.Cluster", "tenants.User", "tenants.Tenant", "tenants.Membership",
        "tenants.GpuType", "tenants.Quota", "tenants.Queue", "tenants.AppliedDocument",
        "auth.Group", "auth.Permission", "contenttypes.ContentType", "webhooks.Webhook",
        "scheduling.JobTemplate",
    ],
    "kept for ever, as the operator guide says": [
        "tenants.AuditRecord", "tenants.ChangePreview", "metrics.UsageDay", "metrics.BorrowedDay",
        "metrics.GpuUseDay",
        "admin.LogEntry",
    ],
}  # fmt: skip


def test_of_every_table_is_known_what_bounds_it():
    known = [name for names in BOUNDS.values() for name in names]
    assert sorted(known) == sorted(model._meta.label for model in apps.get_models())


# --- who asks about earlier times is told ---------------------------------------------------------
@pytest.fixture
def pruned_yesterday(cluster, settings, now):
    """Kant keeps one day; an older job is gone, a newer one is there."""
    settings.KANT_KEEP_DAYS = 1
    seconds = (now - rows.T0).total_seconds()
    gone = job(cluster, "gone", ended=seconds - 2 * DAY)
    job(cluster, "kept", ended=seconds - 600)
    services.prune(now)
    assert left() == ["kept"]
    return gone


def test_pages_say_from_when_on_there_are_jobs(client, pruned_yesterday, now):
    client.force_login(User.objects.create_user("ops", is_operator=True))
    since = f"{now - timedelta(days=1):%Y-%m-%d}"
    said = f"Jobs that ended before {since}"
    assert said in client.get("/jobs/").content.decode()
    assert said in client.get("/ops/?window=7d").content.decode()
    assert said not in client.get("/ops/?window=1h").content.decode()
    missing = client.get(f"/jobs/{pruned_yesterday.pk}/")
    assert missing.status_code == 404
    assert said in missing.content.decode()


def test_rest_says_from_when_on_there_are_jobs(client, pruned_yesterday):
    client.force_login(User.objects.create_user("ops", is_operator=True))
    body = client.get("/api/v1/metrics?window=30d").json()
    assert body["since"] < body["complete_from"] < body["until"]
    assert body["jobs"]["SUCCEEDED"] == 1
    answer = client.get(f"/api/v1/jobs/{pruned_yesterday.pk}")
    assert answer.status_code == 404
    assert "Jobs that ended before" in answer.json()["detail"]


def test_nothing_is_said_where_nothing_was_deleted(client, cluster):
    client.force_login(User.objects.create_user("ops", is_operator=True))
    assert client.get("/api/v1/metrics?window=30d").json()["complete_from"] is None
    assert "are deleted" not in client.get("/ops/?window=7d").content.decode()


def test_a_simulated_history_says_what_it_lacks(pruned_yesterday):
    def run(since):
        out, err = StringIO(), StringIO()
        call_command(
            "simulate", "--from-history", "--since", since, "--json", stdout=out, stderr=err
        )
        return json.loads(out.getvalue()), err.getvalue()

    assert "the run is complete from then on" in run("7d")[1]
    assert "complete" not in run("1h")[1]
