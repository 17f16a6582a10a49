"""GPU time is exact, is written once for each finished day, and outlives its jobs."""

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection

from metrics import services
from metrics.gpu_time import accounting, usage
from metrics.gpu_time.accounting import account, measured
from metrics.gpu_time.usage import Period, UsageScope
from metrics.models import UsageDay, UsageLedger
from scheduling.engine.states import JobEventKind, JobState
from scheduling.models import Cluster, Job, JobEvent, Placement, Retention
from scheduling.models.jobs import PlacementState
from tenants.models import Tenant, User
from tests.metrics import rows
from tests.metrics.rows import at
from tests.plans import plan, query

pytestmark = pytest.mark.django_db
HOUR, DAY = 3600.0, 86400.0
MS = 3_600_000  # milliseconds in an hour
NEW_YEAR = date(2026, 1, 1)  # the day of rows.T0


@pytest.fixture
def cluster(db):
    return rows.cluster(2)


def held(job, begun, ended, *, milli=8000, model="H100", attempt=1, ordinal=0):
    """Add a pod to a job, from `begun` to `ended` seconds; None = it still runs."""
    return Placement.objects.create(
        job=job, attempt=attempt, pod_set=0, ordinal=ordinal, node="n000", gpu_model=model,
        pod_name=f"{job.name}-{attempt}-{ordinal}", held_milli=milli,
        state=PlacementState.RUNNING if ended is None else PlacementState.RELEASED,
        intended_at=at(begun), bound_at=at(begun), held_from=at(begun),
        ended_at=None if ended is None else at(ended),
    )  # fmt: skip


def job(cluster, name, *, tenant="vision", user=None, kind="training"):
    owner, _ = Tenant.objects.get_or_create(name=tenant)
    return Job.objects.create(
        name=name, tenant=owner, cluster=cluster, user=user, kind=kind, gpu_milli=8000,
        state=JobState.RUNNING, submitted_at=at(0),
    )  # fmt: skip


def told(by, now, *, since=NEW_YEAR, days=60):
    """Return {labels of a row: (milli-GPU x ms held, lost, pods started)}."""
    scope = UsageScope(Period(since, since + timedelta(days=days)))
    found = usage.usage(scope, by, now)
    return {labels: (a.held, a.lost, a.pods) for labels, a in found.items()}


# --- what is measured -----------------------------------------------------------------------------
def test_a_pod_counts_on_each_day_as_long_as_it_held_its_gpus_there(cluster):
    one = job(cluster, "one")
    held(one, DAY - 1.5, 2 * DAY + 0.25)  # two midnights
    found = {key.day: (a.held, a.pods) for key, a in measured(at(0), at(3 * DAY)).items()}
    assert found == {
        date(2026, 1, 1): (8000 * 1500, 1),
        date(2026, 1, 2): (8000 * 24 * MS, 0),
        date(2026, 1, 3): (8000 * 250, 0),
    }


def test_what_runs_counts_up_to_now_and_what_is_not_bound_not_at_all(cluster):
    one = job(cluster, "one")
    held(one, HOUR, None, milli=500)  # half a GPU
    waiting = held(one, HOUR, None, ordinal=1)
    Placement.objects.filter(pk=waiting.pk).update(held_from=None, bound_at=None)
    held(one, HOUR, None, milli=0, model="", ordinal=2)  # a pod without GPUs
    assert told(["gpu_type"], at(3 * HOUR)) == {("H100",): (500 * 2 * MS, 0, 1)}
    assert told(["gpu_type"], at(HOUR)) == {}


def test_microseconds_are_added_up_before_they_are_rounded(cluster):
    one = job(cluster, "one")
    for i in range(1000):
        held(one, i, i + 0.000001, ordinal=i)
    assert told(["tenant"], at(DAY)) == {("vision",): (8000, 0, 1000)}


def test_a_row_for_each_cluster_tenant_user_model_and_kind(cluster):
    other, eve = Cluster.objects.create(name="c2"), User.objects.create_user("eve")
    held(job(cluster, "a", user=eve), 0, HOUR)
    held(job(other, "b", user=eve), 0, HOUR, milli=4000)
    held(job(cluster, "c", tenant="law", kind="inference"), 0, HOUR, model="A100")
    by = ["cluster", "tenant", "user", "gpu_type", "kind", "day", "month"]
    assert told(by, at(DAY)) == {
        ("c1", "law", None, "A100", "inference", "2026-01-01", "2026-01"): (8000 * MS, 0, 1),
        ("c1", "vision", "eve", "H100", "training", "2026-01-01", "2026-01"): (8000 * MS, 0, 1),
        ("c2", "vision", "eve", "H100", "training", "2026-01-01", "2026-01"): (4000 * MS, 0, 1),
    }
    law = Tenant.objects.get(name="law").pk
    period = Period(NEW_YEAR, NEW_YEAR)
    for scope, milli in (
        (UsageScope(period, frozenset({law})), 8000),
        (UsageScope(period, None, "H100"), 12_000),
        (UsageScope(period, None, "", other.pk), 4000),
        (UsageScope(period, frozenset()), 0),
    ):
        for _ in "before the day is written", "after":
            found = usage.usage(scope, ["day"], at(DAY + HOUR))
            assert usage.total_of(found.values()).held == milli * MS
            account(at(DAY + HOUR))
        UsageDay.objects.all().delete()
        UsageLedger.objects.all().delete()


def preempted(of, second, cost, *, kind=JobEventKind.PREEMPTED, **evidence):
    JobEvent.objects.create(
        job=of, at=at(second), kind=kind, reason="Preempted", to_state="PENDING",
        evidence={"by": "x", "kind": "priority", "pods": 1, "cost_gpu_s": cost, **evidence},
    )  # fmt: skip


def test_a_job_that_is_preempted_and_started_again_counts_both_times_and_what_it_lost(cluster):
    one = job(cluster, "one")
    held(one, 0, 2 * HOUR)
    preempted(one, 2 * HOUR - 5, 28_000.5)
    held(one, 3 * HOUR, 4 * HOUR, attempt=2)
    assert told(["gpu_type"], at(DAY)) == {("H100",): (3 * 8000 * MS, 28_000_500_000, 2)}


def test_what_several_models_lost_is_told_apart_and_adds_up(cluster):
    one = job(cluster, "one")
    held(one, 0, HOUR, milli=8000)
    held(one, 0, HOUR, milli=4000, model="A100", ordinal=1)
    held(one, 0, 60, milli=4000, model="A100", ordinal=2)  # gone before
    preempted(one, HOUR, 0.1)
    pod = held(one, 2 * HOUR, None, milli=4000, model="A100", attempt=2, ordinal=1)
    held(one, 2 * HOUR, None, attempt=2)
    preempted(one, 3 * HOUR, 60.0, kind=JobEventKind.REASON, which=pod.pod_name)
    found = told(["gpu_type"], at(DAY))
    lost = {model: amount[1] for (model,), amount in found.items()}
    assert lost == {"A100": 33_333 + 60_000_000, "H100": 66_667}


def test_a_loss_counts_on_the_day_of_the_preemption(cluster):
    one = job(cluster, "one")
    held(one, 0, DAY + 60)
    preempted(one, DAY + 30, 691_440.0)
    found = told(["day"], at(2 * DAY))
    assert [a[1] for a in found.values()] == [0, 691_440_000_000]


# --- what is written ------------------------------------------------------------------------------
def written():
    return sorted(UsageDay.objects.values_list("day", "held", "lost", "pods"))


@pytest.fixture
def three_days(cluster):
    one = job(cluster, "one", user=User.objects.create_user("eve"))
    held(one, HOUR, 2 * DAY + HOUR)
    preempted(one, 2 * DAY + 60, 100.0)
    return one


def test_a_day_is_written_when_it_is_over_and_once(three_days):
    assert account(at(DAY + 299)) == at(0)  # the day's last transactions may be uncommitted
    assert written() == []
    assert account(at(DAY + 300)) == at(DAY)
    first = [(date(2026, 1, 1), 8000 * 23 * MS, 0, 1)]
    assert written() == first
    assert account(at(2 * DAY - 1)) == at(DAY)
    assert written() == first
    # Nothing was written for three days.
    assert account(at(5 * DAY + HOUR)) == at(5 * DAY)
    all_of_it = [
        *first,
        (date(2026, 1, 2), 8000 * 24 * MS, 0, 0),
        (date(2026, 1, 3), 8000 * MS, 100_000_000, 0),
    ]
    assert written() == all_of_it
    assert UsageLedger.objects.get().until == date(2026, 1, 6)  # days without use are finished too
    account(at(5 * DAY + HOUR))
    assert written() == all_of_it


def test_answers_are_the_same_whichever_days_are_written(three_days):
    by = ["day", "tenant", "user", "gpu_type", "kind", "cluster"]
    now = at(2 * DAY + 2 * HOUR)
    before = told(by, now)
    assert sum(a[0] for a in before.values()) == 8000 * 48 * MS
    for seconds in (DAY + HOUR, 2 * DAY + HOUR):
        account(at(seconds))
        assert told(by, now) == before
    assert UsageDay.objects.count() == 2


def test_a_day_is_written_whole_or_not_at_all_and_the_next_run_goes_on(three_days, monkeypatch):
    real, wrote = UsageDay.objects.bulk_create, []

    def fails_the_second_time(rows, **how):
        wrote.append(rows)
        if len(wrote) == 2:
            raise RuntimeError("the worker is killed")
        return real(rows, **how)

    monkeypatch.setattr(UsageDay.objects, "bulk_create", fails_the_second_time)
    with pytest.raises(RuntimeError):
        account(at(4 * DAY))
    assert UsageLedger.objects.get().until == date(2026, 1, 2)
    assert len(written()) == 1
    account(at(4 * DAY))
    assert [day for day, *_ in written()] == [date(2026, 1, d) for d in (1, 2, 3)]


def test_a_run_writes_no_longer_than_its_budget_and_the_next_goes_on(three_days, monkeypatch):
    monkeypatch.setattr(accounting, "BUDGET_S", 0.0)
    by, now = ["day", "tenant"], at(4 * DAY)
    before = told(by, now)
    for day in (1, 2, 3, 3):
        assert account(now) == at(day * DAY)
        assert told(by, now) == before
    assert [day for day, *_ in written()] == [date(2026, 1, d) for d in (1, 2, 3)]


def test_a_run_reads_only_the_day_that_it_writes(three_days, monkeypatch):
    measure, spans = accounting.measured, []

    def noted(begin, end, *more):
        spans.append((begin, end))
        return measure(begin, end, *more)

    monkeypatch.setattr(accounting, "measured", noted)
    account(at(3 * DAY + HOUR))
    assert spans == [(at(day * DAY), at((day + 1) * DAY)) for day in range(3)]


def test_of_two_that_write_the_same_day_one_does(three_days, monkeypatch):
    measure = accounting.measured

    def while_another_does(*told):
        monkeypatch.setattr(accounting, "measured", measure)
        account(at(4 * DAY))
        return measure(*told)

    monkeypatch.setattr(accounting, "measured", while_another_does)
    account(at(4 * DAY))
    assert [day for day, *_ in written()] == [date(2026, 1, d) for d in (1, 2, 3)]


def test_a_day_that_is_written_while_it_is_asked_for_counts_once(three_days, monkeypatch):
    now = at(2 * DAY + 2 * HOUR)
    before, real = told(["tenant"], now), usage._open

    def meanwhile(*args):
        monkeypatch.setattr(usage, "_open", real)
        account(now)
        return real(*args)

    monkeypatch.setattr(usage, "_open", meanwhile)
    assert told(["tenant"], now) == before


def test_it_begins_with_the_first_whole_day_of_which_no_job_is_gone(three_days):
    Retention.objects.create(complete_from=at(0.5 * DAY))
    account(at(4 * DAY))
    assert [day for day, *_ in written()] == [date(2026, 1, 2), date(2026, 1, 3)]
    assert usage.days_known().complete_from == date(2026, 1, 2)
    UsageLedger.objects.all().delete()
    Retention.objects.update(complete_from=at(DAY))
    account(at(4 * DAY))
    assert usage.days_known().complete_from == date(2026, 1, 2)


def test_where_nothing_ran_yet_it_begins_today(cluster):
    assert account(at(3 * DAY + HOUR)) == at(3 * DAY)
    assert (written(), usage.days_known().complete_from) == ([], None)


# --- what outlives what ---------------------------------------------------------------------------
def over(of, ended):
    Job.objects.filter(pk=of.pk).update(state=JobState.SUCCEEDED, ended_at=at(ended))
    JobEvent.objects.create(job=of, at=at(ended), kind="SUCCEEDED", to_state="SUCCEEDED")


def test_usage_is_the_same_when_its_jobs_are_deleted(three_days, cluster, settings):
    settings.KANT_KEEP_DAYS = 1
    over(three_days, 2 * DAY + HOUR)
    over(job(cluster, "newest"), 99 * DAY)
    by = ["day", "tenant", "user", "gpu_type", "kind", "cluster"]
    before = told(by, at(10 * DAY))
    assert services.prune(at(10 * DAY)) == 1
    assert not Placement.objects.exists()
    assert told(by, at(10 * DAY)) == before
    assert usage.days_known().complete_from is None  # it was counted before it was deleted


def test_no_job_goes_before_all_its_days_are_written(three_days, cluster, settings, monkeypatch):
    settings.KANT_KEEP_DAYS = 1
    # The job ended on the second day, its pod left on the third.
    over(three_days, 2 * DAY - 60)
    over(job(cluster, "newest"), 99 * DAY)
    monkeypatch.setattr(services, "account", lambda now: at(2 * DAY))
    assert services.prune(at(10 * DAY)) == 0
    monkeypatch.setattr(services, "account", lambda now: at(3 * DAY))
    assert services.prune(at(10 * DAY)) == 1


def test_who_is_deleted_keeps_a_name_and_who_is_renamed_has_the_new_one(three_days, cluster):
    account(at(4 * DAY))
    by = ["tenant", "user", "cluster"]
    User.objects.filter(username="eve").update(username="eva")
    assert list(told(by, at(4 * DAY))) == [("vision", "eva", "c1")]
    Job.objects.all().delete()
    User.objects.get(username="eva").delete()
    Tenant.objects.get(name="vision").delete()
    Cluster.objects.get(name="c1").delete()
    assert list(told(by, at(4 * DAY))) == [("vision", "eve", "c1")]
    # A new tenant of the same name sees nothing of the old one.
    new = Tenant.objects.create(name="vision")
    scope = UsageScope(Period(NEW_YEAR, date(2026, 2, 1)), frozenset({new.pk}))
    assert usage.usage(scope, by, at(4 * DAY)) == {}


# --- what it costs --------------------------------------------------------------------------------
def test_a_question_is_a_handful_of_queries(cluster, django_assert_max_num_queries):
    for number in range(20):
        one = job(cluster, f"j{number}", tenant=f"t{number}")
        held(one, 0, 2 * DAY)
        preempted(one, 2 * DAY, 5.0)
    account(at(DAY + HOUR))
    for most in (15, 10):  # first with the finished, unwritten day
        with django_assert_max_num_queries(most):
            assert len(told(["tenant", "user", "day"], at(2 * DAY + HOUR))) == 60


def test_a_day_that_is_over_and_not_written_is_measured_once(cluster, three_days, monkeypatch):
    read, real = [], accounting.measured

    def noted(begin, end, borrowing=None):
        read.append((begin, end))
        return real(begin, end, borrowing)

    monkeypatch.setattr(accounting, "measured", noted)
    monkeypatch.setattr(usage, "measured", noted)
    by, now = ["day", "user", "gpu_type"], at(2 * DAY + 2 * HOUR)
    first = told(by, now)
    assert read == [(at(0), at(2 * DAY)), (at(2 * DAY), now)]
    read.clear()
    assert told(by, now) == first
    assert read == [(at(2 * DAY), now)]
    read.clear()
    told(by, at(2 * DAY + 60))  # rows dated before midnight may still be uncommitted
    assert read == [(at(DAY), at(2 * DAY + 60))]
    Tenant.objects.create(name="other")
    read.clear()
    assert told(by, now) == first
    assert len(read) == 2


def test_the_open_day_is_found_by_an_index(cluster):
    held(job(cluster, "one"), 0, HOUR)
    found = query(lambda: measured(at(0), at(DAY)), '"held_milli" > 0', "job_id", "held_from")
    # On tables this small, PostgreSQL's choice of joins depends on statistics alone.
    assert connection.vendor != "sqlite" or "scheduling__ended_a" in plan(found), plan(found)


# --- periods --------------------------------------------------------------------------------------
TODAY = date(2026, 11, 23)


@pytest.mark.parametrize(
    ("since", "until", "first", "last"),
    [
        ("", "", (11, 1), (11, 23)),
        ("1d", "", (11, 23), (11, 23)),
        ("30d", "", (10, 25), (11, 23)),
        ("2026-10-01", "2026-10-31", (10, 1), (10, 31)),
        ("2026-10-01", "2027-01-01", (10, 1), (11, 23)),  # days to come do not count yet
    ],
)
def test_a_period_is_whole_days_and_its_last_is_included(since, until, first, last):
    period = usage.period_of(since, until, TODAY)
    assert (period.since, period.until) == (date(2026, *first), date(2026, *last))
    assert period.end == datetime(2026, *last, tzinfo=UTC) + timedelta(days=1)
