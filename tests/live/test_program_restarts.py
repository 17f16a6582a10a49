"""A program that fails is restarted as often as its job allows."""

from itertools import pairwise

import pytest

from scheduling.engine.deltas import JobRequeued, PodRequeued
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.engine.types import JobRequest, PodPlacement, PodSetSpec
from scheduling.models import Job, JobEvent, PodSet
from scheduling.models.jobs import POD_FAILED
from scheduling.models.jobs import PlacementState as P
from scheduling.services.jobs.changes import change_job
from scheduling.session.memory.live import LiveJob, LivePod
from scheduling.session.pods import leave
from scheduling.session.pods.follow import Lifecycle
from scheduling.session.pods.steps import release

pytestmark = pytest.mark.live


def running(world, job):
    return world.placements(job, state=P.RUNNING)


def crash(world, placement, code=7):
    """End the program of a running pod with this exit code."""
    ended = {"name": "main", "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
    world.report(placement.pod_name, "Failed", containerStatuses=[ended])


def test_a_gang_is_restarted_as_often_as_it_may_be_and_then_fails(world):
    # A restart is not a failed placement, the first of which would end the job, and blames no node:
    # without one of its four nodes the gang could not be placed again.
    world.set_policy(max_attempts=1, backoff_cap_s=30.0)
    gang = world.submit("gang", pods=4, max_restarts=2)
    for attempt in (1, 2, 3):
        world.drive(lambda n=attempt: len(world.placements(gang, state=P.RUNNING, attempt=n)) == 4)
        crash(world, running(world, gang)[0], code=3)
    world.drive_to(gang, S.FAILED)
    once = [K.ADMITTED, K.RUNNING]
    again = [*once, K.REQUEUED]
    assert world.kinds(gang) == [K.SUBMITTED, *again, *again, *once, K.FAILED]
    row = Job.objects.get(pk=gang.pk)
    assert (row.attempt, row.restarts, row.failures, row.reason) == (3, 2, 0, POD_FAILED)
    assert "exit code 3" in row.message
    assert row.message.endswith("It was restarted 2 times")
    for nth, told in enumerate(JobEvent.objects.filter(job=gang, kind=K.REQUEUED), 1):
        assert told.reason == POD_FAILED
        assert "exit code 3" in told.message
        assert told.message.endswith(f"Restart {nth} of 2")
        assert told.evidence == {"restarts": nth, "max_restarts": 2}
        # The delay doubles each time; rows have microseconds.
        placed = min(p.intended_at for p in world.placements(gang, attempt=nth + 1))
        assert (placed - told.at).total_seconds() > 0.2 * 2 ** (nth - 1) - 1e-5
    # The back-off is not reported anew, since that would hide the reason.
    assert not JobEvent.objects.filter(job=gang, reason="BackingOff").exists()


def test_restarts_are_counted_over_a_restart_of_kant(world):
    world.set_policy(backoff_base_s=1.0)
    gang = world.submit("gang", pods=2, max_restarts=1)
    world.drive_to(gang, S.RUNNING)
    crash(world, running(world, gang)[0])
    world.drive(lambda: K.REQUEUED in world.kinds(gang))
    world.restart_scheduler()
    world.drive(lambda: len(running(world, gang)) == 2)
    assert Job.objects.get(pk=gang.pk).restarts == 1
    crash(world, running(world, gang)[1])
    world.restart_scheduler()
    world.drive_to(gang, S.FAILED)
    row = Job.objects.get(pk=gang.pk)
    assert (row.attempt, row.restarts) == (2, 1)
    assert row.message.endswith("It was restarted 1 time")


def test_what_a_lost_node_costs_is_no_restart(world, monkeypatch):
    monkeypatch.setattr(leave, "ASK_AGAIN_S", 1.0)
    gang = world.submit("gang", pods=2, max_restarts=1)
    world.drive_to(gang, S.RUNNING)
    world.fault("node-down", node=running(world, gang)[0].node)
    world.drive(lambda: world.state(gang) == S.RUNNING and K.REQUEUED in world.kinds(gang))
    row = Job.objects.get(pk=gang.pk)
    assert (row.attempt, row.restarts) == (2, 0)


def test_a_waiting_gang_is_given_more_restarts(world):
    gang = world.submit("gang", pods=2, max_restarts=1)
    world.drive_to(gang, S.RUNNING)
    # As soon as it stops, another job takes its place, so that it waits as long as it must.
    other = world.submit("other", pods=4, priority=10)
    crash(world, running(world, gang)[0])
    world.drive_to(other, S.RUNNING)
    change_job(world.user, Job.objects.get(pk=gang.pk), {"max_restarts": 2})
    world.cancel(other)
    world.drive(lambda: len(running(world, gang)) == 2)
    crash(world, running(world, gang)[0])
    world.drive(lambda: world.kinds(gang).count(K.REQUEUED) == 2)
    assert Job.objects.get(pk=gang.pk).restarts == 2


def test_of_a_service_only_the_pod_that_failed_is_placed_again(world):
    service = world.submit("service", pods=3, gang=False, max_restarts=5)
    world.drive(lambda: len(running(world, service)) == 3)
    failed = running(world, service)[1]
    crash(world, failed)
    world.drive(lambda: len(world.placements(service)) == 4 and len(running(world, service)) == 3)
    assert world.state(service) == S.RUNNING
    assert K.REQUEUED not in world.kinds(service)
    rows = {(p.ordinal, p.attempt): p for p in world.placements(service)}
    assert set(rows) == {(0, 1), (1, 1), (2, 1), (failed.ordinal, 2)}
    assert rows[failed.ordinal, 1].state == P.FAILED
    told = JobEvent.objects.get(job=service, reason=POD_FAILED)
    assert told.evidence == {"pods": 1, "restarts": 1, "max_restarts": 5}
    assert "exit code 7" in told.message
    row = Job.objects.get(pk=service.pk)
    assert (row.restarts, row.failures) == (1, 0)
    pods = {p.pod_name for p in running(world, service)}
    world.drive(lambda: set(world.pods()) == {failed.pod_name, *pods})
    world.restart_scheduler()
    crash(world, running(world, service)[0])
    world.drive(lambda: Job.objects.get(pk=service.pk).restarts == 2)
    world.drive(lambda: len(running(world, service)) == 3)


@pytest.mark.parametrize("gang", [True, False])
def test_the_pod_that_failed_last_stays_for_its_log(world, gang):
    world.set_policy(backoff_base_s=0.1, backoff_cap_s=0.1)
    job = world.submit("job", pods=2, gang=gang, max_restarts=5)

    def fail_again(number):
        world.drive(lambda: len(running(world, job)) == 2)
        failed = max(running(world, job), key=lambda p: p.ordinal)
        crash(world, failed)
        world.drive(lambda: Job.objects.get(pk=job.pk).restarts == number)
        world.drive(lambda: len(running(world, job)) == 2)
        stay = {failed.pod_name, *(p.pod_name for p in running(world, job))}
        world.drive(lambda: set(world.pods()) == stay)

    fail_again(1)
    fail_again(2)
    world.restart_scheduler()  # the new scheduler finds the pod that stays
    fail_again(3)


def test_it_goes_in_its_turn_though_kant_restarted_while_its_job_backed_off(world):
    world.set_policy(backoff_base_s=1.0)
    gang = world.submit("gang", pods=2, max_restarts=5)
    world.drive(lambda: len(running(world, gang)) == 2)
    first = running(world, gang)[1]
    crash(world, first)
    world.drive(lambda: K.REQUEUED in world.kinds(gang) and set(world.pods()) == {first.pod_name})
    world.restart_scheduler()
    world.drive(lambda: len(running(world, gang)) == 2)
    second = running(world, gang)[1]
    crash(world, second)
    world.drive(lambda: len(running(world, gang)) == 2 and running(world, gang)[1] != second)
    stay = {second.pod_name, *(p.pod_name for p in running(world, gang))}
    world.drive(lambda: set(world.pods()) == stay)


def test_a_copy_of_a_pod_that_failed_is_not_taken_for_it(world):
    job = world.submit("job", pods=1, max_restarts=5)
    world.drive(lambda: len(running(world, job)) == 1)
    first = running(world, job)[0]
    whole = world.pods()[first.pod_name]
    labels = {**whole["metadata"]["labels"], "kant.io/attempt": "0"}
    copy = {**whole, "metadata": {"name": "copy", "labels": labels}, "status": {}}
    copy["spec"] = {k: v for k, v in whole["spec"].items() if k != "nodeName"}
    world.call("POST", "/api/v1/namespaces/kant-jobs/pods", copy)
    ended = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    status = {"status": {"phase": "Failed", "containerStatuses": [ended]}}
    path = "/api/v1/namespaces/kant-jobs/pods/copy/status"
    world.call("PATCH", path, status, kind="merge-patch+json")
    crash(world, first)
    world.drive(lambda: Job.objects.get(pk=job.pk).restarts == 1)
    world.drive(lambda: len(running(world, job)) == 1)
    assert {"copy", first.pod_name} < set(world.pods())


def test_a_pod_that_fails_again_and_again_waits_longer_each_time(world):
    world.set_policy(backoff_cap_s=30.0)
    service = world.submit("service", pods=1, gang=False, max_restarts=3)
    good = PodSet.objects.get(job=service)
    bad = {"sim.kant.io/run-seconds": "0", "sim.kant.io/exit-code": "1"}
    fields = {"count": 1, "gpus": 8, "gpu_models": good.gpu_models, "annotations": bad}
    PodSet.objects.create(job=service, index=1, name="bad", **fields)
    world.drive_to(service, S.FAILED)
    row = Job.objects.get(pk=service.pk)
    assert (row.restarts, row.reason) == (3, POD_FAILED)
    assert [p.attempt for p in world.placements(service, pod_set=0)] == [1]
    again = world.placements(service, pod_set=1)
    assert len(again) == 4
    waited = [
        (later.intended_at - sooner.ended_at).total_seconds() for sooner, later in pairwise(again)
    ]
    # Rows have microseconds.
    assert all(w > wait - 1e-5 for w, wait in zip(waited, (0.2, 0.4, 0.8), strict=True)), waited


def test_an_elastic_gang_restarts_alone_what_it_can_do_without(world):
    gang = world.submit("gang", pods=3, min_count=2, max_restarts=1)
    world.drive(lambda: len(running(world, gang)) == 3)
    crash(world, running(world, gang)[2])
    world.drive(lambda: Job.objects.get(pk=gang.pk).restarts == 1)
    world.drive(lambda: len(running(world, gang)) == 3)
    assert sorted(p.attempt for p in running(world, gang)) == [1, 1, 2]
    assert K.REQUEUED not in world.kinds(gang)
    session = world.scheduler.led[world.cluster.pk, WHOLE].session
    live = session.life.jobs[str(gang.pk)]
    assert (live.failures.number, live.surplus.number) == (0, 0)
    crash(world, running(world, gang)[2])
    world.drive_to(gang, S.FAILED)
    assert Job.objects.get(pk=gang.pk).message.endswith("It was restarted 1 time")


# --- without a cluster ----------------------------------------------------------------------------
def live(pods, *, gang=False, max_restarts=100, **pod_set):
    life = Lifecycle()
    pod_sets = (PodSetSpec("set", pods, 1, **pod_set),)
    request = JobRequest("job", "team", 0.0, pod_sets, gang=gang)
    job = LiveJob(request, "job", (), S.RUNNING, 1, 1, max_restarts=max_restarts, bound_at=0.0)
    life.jobs[job.id] = job
    for ordinal in range(pods):
        add(job, ordinal, placed_at=0.0)
    return life, job


def add(job, ordinal, placed_at):
    place = PodPlacement(0, ordinal, f"n{ordinal}", (0,), 1000)
    name, uid = f"job-{ordinal}", f"u{ordinal}-{placed_at}"
    pod = LivePod(place, 1, name, "H100", P.RUNNING, 1, placed_at, uid=uid)
    job.add(pod)
    return pod


def waits(life, kind):
    """Return the time before which the pods that gave up their places are not placed again."""
    found = [delta.not_before for delta in life.out.deltas if isinstance(delta, kind)]
    life.out.deltas.clear()
    return found


def test_a_pod_that_ran_long_does_not_fail_in_a_row():
    life, job = live(2)
    base, cap = life.scope.policy.backoff_base_s, life.scope.policy.backoff_cap_s
    life.requeueing.crashed(job, job.pods[0, 1], "It failed", 10.0)
    assert waits(life, PodRequeued) == [10.0 + base]
    life.requeueing.crashed(job, add(job, 1, 20.0), "It failed", 30.0)
    assert waits(life, PodRequeued) == [30.0 + 2 * base]
    life.requeueing.crashed(job, add(job, 1, 50.0), "It failed", 51.0 + cap)
    assert waits(life, PodRequeued) == [51.0 + cap + base]
    # What happened to its other pod is another matter.
    life.requeueing.crashed(job, add(job, 1, 400.0), "It failed", 410.0)
    assert waits(life, PodRequeued) == [410.0 + 2 * base]
    add(job, 1, 500.0)
    life.requeueing.crashed(job, job.pods[0, 0], "It failed", 100.0)
    assert waits(life, PodRequeued) == [100.0 + base]


def test_the_longest_back_off_is_kept_to_however_often_a_pod_fails():
    life, job = live(2, max_restarts=5000)
    for now in range(2000):
        pod = job.pods.get((0, 1)) or add(job, 1, float(now))
        life.requeueing.crashed(job, pod, "It failed", float(now))
    assert waits(life, PodRequeued)[-1] == 1999.0 + life.scope.policy.backoff_cap_s


def test_a_gang_backs_off_whichever_of_its_pods_fails():
    life, job = live(2, gang=True)
    job.front = True
    base = life.scope.policy.backoff_base_s
    for nth, ordinal in enumerate((0, 1, 0)):
        job.state, now = S.RUNNING, 100.0 * nth + 10.0
        pods = [add(job, i, 100.0 * nth) for i in range(2)] if nth else list(job.pods.values())
        life.requeueing.crashed(job, pods[ordinal], "It failed", now)
        assert (job.state, job.reason, job.not_before) == (
            S.PENDING,
            POD_FAILED,
            now + base * 2**nth,
        )
        for pod in pods:
            release(life.out, job, pod)
        life.leave.settle(job)
        (word,) = [delta for delta in life.out.deltas if isinstance(delta, JobRequeued)]
        assert (word.avoided_nodes, word.front) == ((), False)
        life.out.deltas.clear()


def test_the_rest_of_its_slice_goes_with_a_pod_that_failed():
    life, job = live(4, gang=True, min_count=2, slice_size=2)
    life.requeueing.crashed(job, job.pods[0, 3], "It failed", 10.0)
    assert job.state == S.RUNNING
    assert [p.key for p in job.pods.values() if p.leaving] == [(0, 2)]
    (note,) = life.out.writes.notes
    assert note.evidence == (("pods", 2), ("restarts", 1), ("max_restarts", 100))
    # Without one of the two pods that it needs it cannot go on.
    life.requeueing.crashed(job, job.pods[0, 0], "It failed", 20.0)
    assert (job.state, job.restarts) == (S.PENDING, 2)
