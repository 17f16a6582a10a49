"""A job that waits on one cluster moves to another one if it gains enough by that, and only
once."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from scheduling.engine.decisions import Blocked, Reservation
from scheduling.engine.states import JobEventKind, JobState
from scheduling.engine.verdict import Reason, Verdict
from scheduling.models import Cluster, Job, JobConstraints, JobEvent, NodeRecord, StartEstimate
from scheduling.queries.whatif.state import KeptState
from scheduling.services.cluster_choice.moves import (
    Mover,
    is_wanted,
    may_move,
    move_waiting,
    nothing_is_kept,
)
from scheduling.services.common.lease import take_or_renew
from scheduling.services.jobs.submission import acceptance
from scheduling.services.scheduler.apply import apply_decisions
from scheduling.session.memory import load
from scheduling.session.memory.live import ReasonChange, Transition, Writes
from scheduling.session.memory.news import News
from tests.scheduling.two_clusters import fill, submit, two

__all__ = ["two"]  # a fixture


@pytest.fixture
def waits(two):
    """A job for any cluster that waits on demo; other jobs hold all of demo and far."""
    holders = fill("demo", 4), fill("far", 2)
    job = submit(two)["id"]
    Job.objects.filter(pk=job).update(reason="InsufficientGpus")  # its scheduler has examined it
    job = Job.objects.get(pk=job)
    assert job.cluster.name == "demo"
    return job, holders


def ends(holder):
    """End a running job and free its nodes."""
    nodes = holder.placements.values("node")
    NodeRecord.objects.filter(name__in=nodes).update(free_gpus=8, allocated_milli=0)
    holder.placements.update(state="SUCCEEDED", ended_at=timezone.now())
    Job.objects.filter(pk=holder.pk).update(state="SUCCEEDED", ended_at=timezone.now())


def later(seconds=60):
    return timezone.now() + timedelta(seconds=seconds)


def where(job):
    return Job.objects.get(pk=job.pk).cluster.name


def kept(cluster):
    """Return the state of a cluster as the process that keeps states has it."""
    state = KeptState(cluster)
    state.refresh(time.time())
    return state


@pytest.mark.parametrize("keeps", [nothing_is_kept, kept])
def test_a_waiting_job_moves_when_another_cluster_frees_up(waits, keeps):
    job, (_, of_far) = waits
    assert (move_waiting(later(), keeps), where(job)) == ([], "demo")  # nothing is free anywhere
    ends(of_far)
    assert (move_waiting(later(1), keeps), where(job)) == ([], "demo")  # it has only just arrived
    [moved] = move_waiting(later(), keeps)
    now = Job.objects.get(pk=job.pk)
    assert (moved.pk, now.cluster.name, now.state) == (job.pk, "far", "PENDING")
    assert (now.submitted_at, now.version) == (job.submitted_at, job.version + 1)
    told = "Runs on far: starts there at once; on demo at an unknown time"
    assert now.chosen["summary"].startswith(told)
    assert now.chosen["moves"] == 1
    event = JobEvent.objects.filter(job=job).last()
    assert (event.kind, event.message) == (JobEventKind.ROUTED, now.chosen["summary"])
    assert event.evidence == {"from_cluster": "demo", "to_cluster": "far"}
    # It starts there: no reason to go back, whatever becomes free.
    ends(waits[1][0])
    assert (move_waiting(later(600), keeps), where(job)) == ([], "far")


@pytest.mark.parametrize("keeps", [nothing_is_kept, kept])
def test_no_two_jobs_are_sent_to_one_place(two, keeps):
    fill("demo", 4)
    far = fill("far", 2)
    jobs = [submit(two, replicas=2, priority=at)["id"] for at in (0, 5, 0)]
    Job.objects.update(cluster=Cluster.objects.get(name="demo"))
    Job.objects.filter(pk=far.pk).update(cluster=Cluster.objects.get(name="far"))
    ends(far)
    [moved] = move_waiting(later(), keeps)
    assert str(moved.pk) == jobs[1]  # the job that goes first


def test_quota_that_is_used_up_moves_nobody(two, waits):
    job, (_, of_far) = waits
    ends(of_far)
    two.tenants["vision"].quotas.update(guaranteed_milli=0)
    assert (move_waiting(later()), where(job)) == ([], "demo")


@pytest.mark.parametrize(
    "change",
    [
        {"any_cluster": False},
        {"held": True},
        {"attempt": 1},
        {"state": JobState.ADMITTED},
        {"after": ["00000000-0000-0000-0000-000000000000"]},
        {"start_not_before": timezone.now() + timedelta(days=1)},
        {"cluster_selector": {"data": "here"}},
    ],
)
def test_who_stays(waits, change):
    job, (_, of_far) = waits
    ends(of_far)
    Job.objects.filter(pk=job.pk).update(**change)
    assert (move_waiting(later()), where(job)) == ([], "demo")


def test_a_job_that_others_wait_for_stays_beside_them(two, waits):
    job, (_, of_far) = waits
    ends(of_far)
    submit(two, cluster="demo", after=[str(job.pk)])
    assert (move_waiting(later()), where(job)) == ([], "demo")


def test_who_comes_to_wait_for_a_job_finds_it_where_it_is(two, waits, monkeypatch):
    """The job moves after it was examined and before the job that depends on it is written."""
    job, _ = waits
    far = Cluster.objects.get(name="far")
    held = acceptance.hold_all

    def moves_first(cluster_id):
        held(cluster_id)
        Job.objects.filter(pk=job.pk).update(cluster=far)

    monkeypatch.setattr(acceptance, "hold_all", moves_first)
    detail = submit(two, 409, cluster="demo", after=[str(job.pk)])["detail"]
    assert "is not on cluster “demo”" in detail
    monkeypatch.undo()
    assert submit(two, after=[str(job.pk)])["cluster"] == "demo"
    other = submit(two, cluster="far")["id"]
    body = {"after": [str(job.pk)]}
    answer = two.client("eve").patch(f"/api/v1/jobs/{other}", body, format="json")
    assert answer.status_code == 422


def test_jobs_of_one_array_move_alone_and_are_changed_together(two, waits):
    ends(waits[1][1])
    array = submit(two, array={"count": 3}, cluster="any", name="many")["id"]
    Job.objects.filter(array_id=array).update(cluster=two.cluster, reason="InsufficientGpus")
    assert len(move_waiting(later())) == 2  # with the job that waited before them
    jobs = Job.objects.filter(array_id=array).order_by("array_index")
    assert [job.cluster.name for job in jobs] == ["far", "demo", "demo"]
    ops, path = two.client("eve"), f"/api/v1/job-arrays/{array}"
    assert ops.post(f"{path}/hold").status_code == 200
    assert set(jobs.values_list("held", flat=True)) == {True}
    detail = submit(two, 422, cluster="demo", after=[array])["errors"][0]["detail"]
    assert "are on several clusters" in detail
    assert ops.post(f"{path}/cancel").status_code == 200
    assert set(jobs.values_list("state", flat=True)) == {"CANCELLED"}


def test_jobs_leave_a_cluster_that_is_silent_but_for_those_that_had_places(waits):
    job, (of_demo, _) = waits
    since = timezone.now() - timedelta(minutes=5)
    Cluster.objects.filter(name="demo").update(last_cycle_at=since)
    [moved] = move_waiting(timezone.now())
    assert (moved.pk, where(job), where(of_demo)) == (job.pk, "far", "demo")
    summary = Job.objects.get(pk=job.pk).chosen["summary"]
    assert f"demo is passed over: not heard from since {since:%Y-%m-%d %H:%M:%S} UTC" in summary
    # If no scheduler is active anywhere, it stays.
    Cluster.objects.filter(name="far").update(connected=False)
    assert (move_waiting(timezone.now()), where(job)) == ([], "far")
    # It is not sent to a cluster that takes no jobs, but it can leave one.
    Cluster.objects.filter(name="demo").update(last_cycle_at=later(3600), is_active=False)
    assert (move_waiting(timezone.now()), where(job)) == ([], "far")
    Cluster.objects.filter(name="demo").update(is_active=True)
    Cluster.objects.filter(name="far").update(is_active=False)
    [moved] = move_waiting(timezone.now())
    assert where(job) == "demo"


@pytest.mark.parametrize("keeps", [nothing_is_kept, kept])
def test_jobs_leave_a_cluster_in_maintenance_and_none_goes_there(two, waits, keeps):
    job, (of_demo, _) = waits
    named = Job.objects.get(pk=submit(two, cluster="demo")["id"])
    too_large = Job.objects.get(pk=submit(two, replicas=4)["id"])  # for far
    Cluster.objects.filter(name="demo").update(takes_any=False)
    [moved] = move_waiting(later(), keeps)
    assert (moved.pk, where(job)) == (job.pk, "far")
    assert (where(named), where(too_large)) == ("demo", "demo")
    summary = Job.objects.get(pk=job.pk).chosen["summary"]
    assert "demo is passed over: takes only jobs that name it" in summary
    ends(of_demo)
    assert (move_waiting(later(600), keeps), where(job)) == ([], "far")


def test_a_start_that_is_expected_is_weighed_against_the_estimate(waits):
    """Nobody waits on far, where a job will end as declared; on demo the forecast gives the
    start."""
    job, (_, of_far) = waits
    Job.objects.filter(pk=of_far.pk).update(declared_s=600)
    at = later(7200)
    StartEstimate.objects.create(
        job=job, p10=at, p50=at, p90=at, basis="declared", as_of=timezone.now()
    )
    moved = move_waiting(later())
    told = Job.objects.get(pk=job.pk).chosen["summary"]
    assert moved, told
    assert "on demo in 2 h" in told
    assert not StartEstimate.objects.filter(job=job).exists()


def test_a_damaged_job_keeps_nobody_from_moving(two, waits):
    job, (_, of_far) = waits
    ends(of_far)
    bad = submit(two, priority=9)["id"]
    Job.objects.get(pk=bad).pod_sets.all().delete()
    [moved] = move_waiting(later())
    assert moved.pk == job.pk


def test_the_mover_rests_and_says_whether_it_is_needed(waits, monkeypatch):
    job, _ = waits
    rounds = []
    monkeypatch.setattr(
        "scheduling.services.cluster_choice.moves.move_waiting",
        lambda now, _keeps: rounds.append(now),
    )
    mover = Mover()
    assert (mover.turn(), mover.turn(), len(rounds)) == (True, True, 1)
    assert (is_wanted(timezone.now()), is_wanted(later())) == (False, True)
    Job.objects.filter(pk=job.pk).update(state="CANCELLED")
    assert (mover.turn(), is_wanted(later()), may_move().exists()) == (False, False, False)


# --- against the scheduler of the cluster that it leaves ------------------------------------------
def step_of(job):
    """Return the write by which the scheduler of its cluster starts the job."""
    kind, state = JobEventKind.ADMITTED, JobState(job.state)
    step = Transition(str(job.pk), kind, state, JobState.ADMITTED, job.version)
    return Writes(transitions=[step])


def test_whoever_comes_second_changes_nothing(waits):
    job, (_, of_far) = waits
    ends(of_far)
    now = timezone.now()
    lease = take_or_renew(job.cluster_id, "a", now=now, seconds=60)
    news = News(job.cluster_id)
    news.start()
    there = News(Cluster.objects.get(name="far").pk)
    there.start()
    assert move_waiting(later())
    # The scheduler of the old cluster comes too late and is told; the new one hears of a new job.
    assert apply_decisions(lease, step_of(job), now).stale == {str(job.pk)}
    assert news.read({str(job.pk): job})[1] == [(str(job.pk), "")]
    assert there.read()[1] == [(str(job.pk), "")]
    [row], _ = load.jobs([str(job.pk)])
    assert row.cluster != job.cluster_id
    # The other way round: the job was admitted before.
    job.refresh_from_db()
    lease = take_or_renew(job.cluster_id, "b", now=now, seconds=60)
    assert apply_decisions(lease, step_of(job), now).stale == set()
    Cluster.objects.filter(name="far").update(last_cycle_at=now - timedelta(hours=1))
    assert (move_waiting(later()), where(job)) == ([], "far")


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="writers to SQLite take turns")
def test_of_a_scheduler_and_a_move_at_once_one_wins(waits):
    """Both begin at the same instant, again and again: the job starts here or moves there."""
    job, (_, of_far) = waits
    ends(of_far)
    home = job.cluster
    for _ in range(4):
        Job.objects.filter(pk=job.pk).update(
            cluster=home, state="PENDING", attempt=0, cluster_choice=job.cluster_choice
        )
        job.refresh_from_db()
        started, moved = at_once(job)
        now = Job.objects.get(pk=job.pk)
        assert started != moved
        assert (now.cluster_id == home.pk, now.state == "ADMITTED") == (started, started)


def at_once(job):
    """Begin both together; return whether the scheduler started the job and whether it moved."""
    lease = take_or_renew(job.cluster_id, "a", now=timezone.now(), seconds=60)
    both = threading.Barrier(2)

    def starts():
        both.wait()
        return not apply_decisions(lease, step_of(job), timezone.now()).stale

    def moves():
        both.wait()
        return bool(move_waiting(later()))

    def alone(act):
        try:
            return act()
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        return tuple(threads.map(alone, (starts, moves)))


def test_of_a_job_that_left_the_scheduler_there_writes_nothing_any_more(waits):
    job, (_, of_far) = waits
    ends(of_far)
    lease = take_or_renew(job.cluster_id, "a", now=timezone.now(), seconds=60)
    stays = Job.objects.create(
        name="stays", tenant=job.tenant, cluster=job.cluster, submitted_at=job.submitted_at
    )
    ids, at = (str(job.pk), str(stays.pk)), timezone.now().timestamp() + 99.0
    assert move_waiting(later())
    before = Job.objects.filter(pk=job.pk).values().get()
    why = Verdict(Reason.ON_HOLD, "Late.")
    late = Writes(
        reservations=[Reservation(name, at, ("h000",)) for name in ids],
        blocked=[Blocked(name, at) for name in ids],
        stand_at=dict.fromkeys(ids, at),
        constraints={name: {"late": True} for name in ids},
        reasons=[ReasonChange(name, JobState.PENDING, why, True, True) for name in ids],
    )
    apply_decisions(lease, late, timezone.now())
    assert Job.objects.filter(pk=job.pk).values().get() == before
    assert not JobConstraints.objects.filter(job=job).exists()
    stays.refresh_from_db()
    told = (stays.reserved_start, stays.blocked_since, stays.stands_at)
    assert {one.timestamp() for one in told} == {at}
    apply_decisions(lease, Writes(stand_as_submitted=list(ids)), timezone.now())
    stays.refresh_from_db()
    assert stays.stands_at is None
