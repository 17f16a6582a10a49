"""Wherever a scheduler dies, its successor completes the gang or gives its places back."""

import pytest
from django.db.models import F

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import TERMINAL, WAITING
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent, Placement, SchedulerLease
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.session import changes
from scheduling.session.session import Session
from tenants.models import Quota, Tenant
from tests.live.conftest import NODES, SchedulerProcess, wait

pytestmark = pytest.mark.live


def being_deleted(world):
    """Return the names of pods in deletion; their kubelets end them after the grace period."""
    return [name for name, p in world.pods().items() if "deletionTimestamp" in p["metadata"]]


def test_a_running_job_is_taken_up_and_goes_on(world):
    job, waiting = world.submit("first", pods=4), world.submit("second", pods=4, run_s=0.2)
    world.drive_to(job, S.RUNNING)
    before = {p["metadata"]["uid"] for p in world.pods().values()}
    world.restart_scheduler()
    world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
    assert {p["metadata"]["uid"] for p in world.pods().values()} == before
    world.drive(lambda: world.free_gpus() == 0)
    world.finish(job)
    world.drive_to(waiting, S.SUCCEEDED)
    assert (world.state(job), Job.objects.get(pk=job.pk).attempt) == (S.SUCCEEDED, 1)


def test_what_happened_while_nobody_watched_is_found_at_the_start(world):
    names = ("ends", "fails", "vanishes", "cancelled")
    ends = world.submit("ends", run_s=1)
    fails = world.submit("fails", run_s=1, exit_code=1)
    vanishes, cancelled = world.submit("vanishes"), world.submit("cancelled")
    jobs = dict(zip(names, (ends, fails, vanishes, cancelled), strict=True))
    for job in jobs.values():
        world.drive_to(job, S.RUNNING, S.SUCCEEDED, S.FAILED)
    world.restart_scheduler()
    pod = world.placements(vanishes)[0].pod_name
    world.call("DELETE", f"/api/v1/namespaces/kant-jobs/pods/{pod}", {"gracePeriodSeconds": 0})
    world.cancel(cancelled)
    wait(
        lambda: (
            not any(
                p["status"]["phase"] == "Running"
                for p in world.pods().values()
                if p["metadata"]["name"].startswith(("ends", "fails"))
            )
        )
    )
    world.drive_to(ends, S.SUCCEEDED)
    world.drive_to(fails, S.FAILED)
    world.drive(lambda: Job.objects.get(pk=vanishes.pk).attempt == 2)
    world.drive_to(vanishes, S.RUNNING)
    world.drive(lambda: not world.placements(cancelled, state__in=LIVE_PLACEMENTS))


def test_what_a_start_finds_is_written_before_rows_are_compared_with_it(world, monkeypatch):
    job = world.submit("web", pods=3, gang=False)
    world.drive_to(job, S.ADMITTED)
    wait(lambda: [p["status"]["phase"] for p in world.pods().values()] == ["Running"] * 3)
    world.restart_scheduler()
    assert world.state(job) == S.ADMITTED, "nobody has told that it runs"
    monkeypatch.setattr(changes, "COUNT_S", 0.0)
    restore = Session.restore

    def and_is_resized(session, *args):
        restore(session, *args)
        world.resize(job, 4)

    monkeypatch.setattr(Session, "restore", and_is_resized)
    world.drive(lambda: [p.state for p in world.placements(job)] == ["RUNNING"] * 4)
    world.finish(job)
    world.drive_to(job, S.SUCCEEDED)
    assert world.kinds(job).count(K.RUNNING) == 1


def test_how_often_and_for_whom_a_job_was_preempted_is_not_forgotten(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0, max_preemptions=1)
    low = world.submit("low", pods=4)
    world.drive_to(low, S.RUNNING)
    high = world.submit("high", pods=2, run_s=0.2, priority=10)
    world.drive_to(high, S.SUCCEEDED)
    world.drive_to(low, S.RUNNING)
    world.restart_scheduler()
    world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
    record = world.scheduler.led[world.cluster.pk, WHOLE].session.state.jobs[str(low.pk)]
    assert (record.preemptions, record.preempted_by) == (1, {str(high.pk)})
    again = world.submit("again", pods=2, priority=10)
    world.drive(lambda: Job.objects.get(pk=again.pk).reason == "InsufficientGpus")
    assert world.state(low) == S.RUNNING


def test_a_head_that_waited_half_of_its_threshold_waits_only_the_other_half(world):
    world.set_policy(queueing="backfill", backfill_after_s=600)
    full = world.submit("full", pods=4)
    world.drive_to(full, S.RUNNING)
    head = world.submit("head", pods=4)
    world.drive(lambda: Job.objects.get(pk=head.pk).blocked_since is not None)
    since = Job.objects.get(pk=head.pk).blocked_since
    world.restart_scheduler()
    world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
    record = world.scheduler.led[world.cluster.pk, WHOLE].session.state.jobs[str(head.pk)]
    assert record.blocked_since == since.timestamp()
    assert Job.objects.get(pk=head.pk).blocked_since == since
    world.cancel(full)
    world.drive_to(head, S.RUNNING)
    world.drive(lambda: Job.objects.get(pk=head.pk).blocked_since is None)


def test_what_was_held_in_the_past_counts_for_the_next_scheduler(world, clock):
    world.set_policy(
        queueing="strict-fifo", fair_share=True, fair_users=True, usage_half_life_s=600
    )
    other = Tenant.objects.create(name="other", weight=2.0)
    quota = world.tenant.quotas.get()
    Quota.objects.create(tenant=other, gpu_type=quota.gpu_type, guaranteed_milli=1_000_000)
    long = world.submit("long", pods=4, user=world.user)
    world.drive_to(long, S.RUNNING)
    clock.ahead = 3600
    world.finish(long)
    world.drive_to(long, S.SUCCEEDED)
    full = world.submit("full", pods=4, tenant=other)
    world.drive_to(full, S.RUNNING)
    waits = [world.submit("first", pods=4), world.submit("second", pods=4, tenant=other)]
    world.drive(lambda: all(Job.objects.get(pk=job.pk).reason for job in waits))

    def shares():
        world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
        return world.scheduler.led[world.cluster.pk, WHOLE].session.state.shares()

    clock.at = clock.time() + 60
    tenants, users = shares()
    world.restart_scheduler()
    near = [pytest.approx(each, abs=1e-5) for each in (tenants, users)]  # of a millisecond
    assert list(shares()) == near
    assert 1 > tenants["team"] > 0.8
    assert 0.5 < tenants["other"] < 0.6  # it holds all, of weight 2, and has for a while
    assert users["team", str(world.user.pk)] > 0.8
    world.finish(full)
    world.drive_to(waits[1], S.RUNNING)
    assert world.state(waits[0]) in WAITING


def test_every_link_of_a_dead_chain_is_told_so_by_the_next_scheduler(world):
    first = world.submit("first", pods=2)
    second = world.submit("second", after_ok=[str(first.pk)])
    third = world.submit("third", after_ok=[str(second.pk)])
    world.drive_to(first, S.RUNNING)
    world.cancel(first)
    told = Job.objects.filter(pk__in=[second.pk, third.pk])
    world.drive(lambda: all(job.reason == "Misconfigured" for job in told.all()))
    told.update(reason="OnHold", evidence={})
    world.restart_scheduler()
    world.drive(lambda: all(job.reason == "Misconfigured" for job in told.all()))
    assert {job.evidence["after"] for job in told.all()} == {str(first.pk)}


def test_each_pod_of_a_service_is_known_to_run_since_its_own_start(world):
    first = world.submit("first", pods=2)
    world.drive_to(first, S.RUNNING)
    service = world.submit("service", pods=3, gang=False)
    world.drive(lambda: len(world.placements(service)) == 2)
    world.cancel(first)
    world.drive(lambda: len(world.placements(service)) == 3)

    def known():
        state = world.scheduler.led[world.cluster.pk, WHOLE].session.state
        return state.jobs[str(service.pk)].placed_at

    rows = world.placements(service)
    stored = {(row.pod_set, row.ordinal): row.intended_at.timestamp() for row in rows}
    assert len(set(stored.values())) == 2
    world.restart_scheduler()
    world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
    assert known() == stored


def test_a_gang_that_a_fault_stopped_stays_in_front(world):
    """A larger, older job that came to wait meanwhile stays behind it."""
    world.set_policy(queueing="strict-fifo", backoff_base_s=0.1)
    older = world.submit("older", pods=4, held=True)
    gang = world.submit("gang", pods=4)
    world.drive_to(gang, S.RUNNING)
    node = world.placements(gang)[0].node
    world.fault("gpu-bad", node=node, gpu=0)
    world.drive(lambda: Job.objects.get(pk=gang.pk).front)
    Job.objects.filter(pk=older.pk).update(held=False, version=F("version") + 1)
    world.event(older, K.RELEASED)
    world.drive(lambda: Job.objects.get(pk=older.pk).reason not in ("", "OnHold"))
    world.restart_scheduler()
    world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
    world.fault("gpu-good", node=node, gpu=0)
    world.drive_to(gang, S.RUNNING)
    assert world.state(older) in WAITING
    assert K.ADMITTED not in world.kinds(older)


def test_a_pod_that_was_leaving_alone_is_placed_again_and_is_no_failure(world):
    """The pod is gone before the next scheduler looks."""
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    service = world.submit("service", pods=4, gang=False, stop_s=600.0)
    world.drive(lambda: len(world.placements(service, state="RUNNING")) == 4)
    high = world.submit("high", priority=10, run_s=0.3)
    world.drive(lambda: being_deleted(world))
    world.restart_scheduler()
    for pod in being_deleted(world):
        world.kill(pod)
    world.drive_to(high, S.SUCCEEDED)
    world.drive(lambda: len(world.placements(service, state="RUNNING")) == 4)
    row = Job.objects.get(pk=service.pk)
    assert (row.state, row.failures) == (S.RUNNING, 0)
    assert not JobEvent.objects.filter(job=service, reason="PodLost").exists()
    assert sorted(r.attempt for r in world.placements(service, state="RUNNING")) == [1, 1, 1, 2]


def test_attempts_of_single_pods_count_when_all_of_the_job_is_placed_anew(world):
    """Pods were placed again alone before the whole job had to wait: no attempt number occurs
    twice."""
    service = world.submit("service", pods=2, gang=False)
    full = world.submit("full", pods=2)
    world.drive_to(full, S.RUNNING)

    def delete(*rows):
        for row in rows:
            path = f"/api/v1/namespaces/kant-jobs/pods/{row.pod_name}"
            world.call("DELETE", path, {"gracePeriodSeconds": 0})

    def running():
        return world.placements(service, state="RUNNING")

    world.drive(lambda: len(running()) == 2)
    delete(running()[0])
    world.drive(lambda: sorted(row.attempt for row in running()) == [1, 2])
    # Another job takes each free place at once, so none of its pods is back before both go.
    others = [world.submit(f"other-{i}", priority=10) for i in range(2)]
    delete(*running())
    for other in others:
        world.drive_to(other, S.RUNNING)
    assert world.state(service) in WAITING
    world.restart_scheduler()
    world.cancel(full)
    world.drive(lambda: len(running()) == 2)
    assert [row.attempt for row in running()] == [3, 3]


def test_an_elastic_gang_goes_on_when_its_surplus_left_during_a_restart(world):
    """The deletion kills the pod with exit code 143 after the preemptor has gone."""
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    gang = world.submit("gang", pods=4, min_count=2, stop_s=600.0)
    world.drive_to(gang, S.RUNNING)
    high = world.submit("high", priority=10)
    world.drive(lambda: being_deleted(world))
    world.restart_scheduler()
    world.cancel(high)
    for pod in being_deleted(world):
        world.kill(pod)

    def attempts():
        return sorted(pod.attempt for pod in world.placements(gang, state="RUNNING"))

    world.drive(lambda: attempts() == [1, 1, 1, 2])
    assert K.REQUEUED not in world.kinds(gang)
    assert world.state(gang) == S.RUNNING


# --- kill -9 ------------------------------------------------------------------------------------
def bound_pods(world):
    return sum(1 for pod in world.pods().values() if pod["spec"].get("nodeName"))


CRASHES = {
    # The creates hang before their replies: nothing is bound, the intents are written.
    "after the intents": (
        {"verb": "create", "resource": "pods", "delay_ms": 60_000},
        lambda world: Placement.objects.exists(),
    ),
    # The API has the first pod bound, the rows have it as intended.
    "after the first bind": (
        {"verb": "create", "resource": "pods", "delay_ms": 60_000, "count": NODES - 1},
        lambda world: bound_pods(world) == 1,
    ),
    # Two creates hang, so only the other two pods of the gang are bound.
    "in the middle of a gang": (
        {"verb": "create", "resource": "pods", "delay_ms": 60_000, "count": 2},
        lambda world: bound_pods(world) == NODES - 2,
    ),
    # All pods are bound, and Kant knows of none yet.
    "before the confirmation": (
        {"verb": "bind", "delay_ms": 60_000},
        lambda world: bound_pods(world) == NODES,
    ),
}


@pytest.mark.parametrize("moment", CRASHES)
def test_killed(shared_world, moment):
    """The gangs have one pod per node, so a half-bound gang would block the next one for ever."""
    world = shared_world
    fault, reached = CRASHES[moment]
    victim = SchedulerProcess()
    try:
        world.fault("slow-replies", **{"count": 0, **fault})
        jobs = [world.submit(f"gang-{i}", pods=NODES, run_s=0.5) for i in range(3)]
        wait(lambda: reached(world))
    finally:
        victim.kill()
    world.call("DELETE", "/sim/faults")
    SchedulerLease.objects.update(expires_at=None)
    world.drive(lambda: all(world.state(job) in TERMINAL for job in jobs))
    assert [world.state(job) for job in jobs] == [S.SUCCEEDED] * 3
    audit = world.audit()
    assert audit["double_holdings"] == []
    assert not Placement.objects.filter(state__in=LIVE_PLACEMENTS).exists()
    # Each attempt that ran had all of its pods; nothing is left of any other.
    succeeded = Placement.objects.filter(state="SUCCEEDED")
    assert succeeded.count() == NODES * len(jobs)
    assert all(p["status"]["phase"] == "Succeeded" for p in world.pods().values())
    world.scheduler.stop()
