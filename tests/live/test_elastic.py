"""Elastic gangs: what they can do without leaves alone, and comes back."""

import pytest

from scheduling.engine.shards import WHOLE
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.engine.types import JobRequest, PodPlacement, PodSet
from scheduling.kube.manifests import pod_name
from scheduling.models import Job, JobEvent, Placement
from scheduling.models.jobs import PREEMPTED
from scheduling.models.jobs import PlacementState as P
from scheduling.session import leaving
from scheduling.session.lifecycle import Lifecycle
from scheduling.session.live import LiveJob, LivePod, Writes

pytestmark = pytest.mark.live
NODES = 4


def running(world, job):
    return world.placements(job, state=P.RUNNING)


def delete(world, pod):
    path = f"/api/v1/namespaces/{world.cluster.namespace}/pods/{pod.pod_name}"
    world.call("DELETE", path, {"gracePeriodSeconds": 0})


def test_a_gang_gives_up_what_it_can_do_without_and_gets_it_back(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0, max_preemptions=1)
    gang = world.submit("gang", pods=NODES, min_count=2)
    world.drive(lambda: len(running(world, gang)) == NODES)
    bound_at = Job.objects.get(pk=gang.pk).bound_at
    made_room_for = set()
    for number in (1, 2):  # what was given up does not count as a preemption of the job
        high = world.submit("high", priority=10)
        world.drive_to(high, S.RUNNING)
        assert len(running(world, gang)) == NODES - 1
        assert JobEvent.objects.filter(job=gang, reason=PREEMPTED).count() == number
        world.restart_scheduler()
        world.cancel(high)
        world.drive(lambda: len(running(world, gang)) == NODES)
        made_room_for.add(str(high.pk))
        record = world.scheduler.led[world.cluster.pk, WHOLE].session.state.jobs[str(gang.pk)]
        assert (record.preemptions, record.preempted_by) == (0, made_room_for)
    assert (world.state(gang), K.REQUEUED in world.kinds(gang)) == (S.RUNNING, False)
    row = Job.objects.get(pk=gang.pk)
    assert row.bound_at == bound_at
    assert sorted(p.attempt for p in running(world, gang)) == [1, 1, 1, 3]
    assert world.audit()["double_holdings"] == []
    world.cancel(gang)
    world.drive(lambda: world.pods() == {})


def test_a_gang_that_began_small_grows_and_ends_when_all_of_it_has(world):
    first = world.submit("first", pods=2, run_s=1.5)
    world.drive_to(first, S.RUNNING)
    gang = world.submit("gang", pods=NODES, min_count=2, run_s=3.0)
    world.drive_to(gang, S.RUNNING)
    assert len(world.placements(gang)) == 2
    world.drive(lambda: len(running(world, gang)) == NODES)
    world.drive_to(gang, S.SUCCEEDED)
    rows = world.placements(gang)
    assert {(p.attempt, p.ordinal, p.state) for p in rows} == {
        (1, ordinal, P.SUCCEEDED) for ordinal in range(NODES)
    }
    row = Job.objects.get(pk=gang.pk)
    assert row.bound_at < row.running_at < max(p.bound_at for p in rows)
    assert all(p.held_from >= p.intended_at for p in rows)
    grown = JobEvent.objects.filter(job=gang, reason="Grown")
    assert grown.last().evidence["has"] == NODES
    assert grown.last().message.endswith(f"{NODES} of {NODES}")


def test_a_gang_goes_on_when_it_loses_what_it_can_do_without(world):
    gang = world.submit("gang", pods=NODES, min_count=NODES - 1)
    world.drive(lambda: len(running(world, gang)) == NODES)
    lost = running(world, gang)[0]
    delete(world, lost)
    world.drive(lambda: Placement.objects.get(pk=lost.pk).state == P.RELEASED)
    world.drive(lambda: len(running(world, gang)) == NODES)
    again = world.placements(gang, ordinal=lost.ordinal, state=P.RUNNING)
    assert [p.attempt for p in again] == [2]
    assert world.state(gang) == S.RUNNING
    assert K.REQUEUED not in world.kinds(gang)
    row = Job.objects.get(pk=gang.pk)
    world.drive(lambda: Job.objects.get(pk=gang.pk).failures == 0)
    assert row.attempt == 1
    # Of the others it needs every one.
    for pod in running(world, gang)[:2]:
        delete(world, pod)
    world.drive(lambda: K.REQUEUED in world.kinds(gang))
    world.drive(lambda: len(running(world, gang)) == NODES)


def test_a_gang_starts_without_the_pod_that_does_not_start(world):
    world.set_policy(gang_timeout_s=1)
    world.fault("slow-replies", verb="create", resource="pods", count=1, delay_ms=4000)
    gang = world.submit("gang", pods=NODES, min_count=2)
    world.drive_to(gang, S.RUNNING)
    assert len(running(world, gang)) == NODES - 1
    assert JobEvent.objects.filter(job=gang, reason="GangTimeout").exists()
    assert K.REQUEUED not in world.kinds(gang)


def take_name(world, job, attempt, ordinal):
    """Somebody makes a pod by the name that Kant is going to give to one of the job's."""
    name = pod_name(job.name, str(job.pk), attempt, 0, "worker", ordinal)
    container = {"name": "c", "image": "busybox"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"schedulerName": "default-scheduler", "containers": [container]},
    }
    world.call("POST", f"/api/v1/namespaces/{world.cluster.namespace}/pods", pod)


def test_a_gang_does_not_end_by_what_it_can_do_without_however_often_that_fails(world):
    world.set_policy(max_attempts=2, backoff_cap_s=0.2)
    world.drive_to(world.submit("first", pods=1, run_s=0.1), S.SUCCEEDED)
    gang = world.submit("gang", pods=3, min_count=2, run_s=12.0)
    for attempt in range(1, 60):
        take_name(world, gang, attempt, 2)
    failed = JobEvent.objects.filter(job=gang, reason="BindingFailed")
    world.drive(lambda: failed.count() >= 4)
    assert world.state(gang) in (S.ADMITTED, S.RUNNING)
    world.drive_to(gang, S.RUNNING)
    world.drive_to(gang, S.SUCCEEDED)
    assert K.REQUEUED not in world.kinds(gang)
    assert {p.ordinal for p in world.placements(gang, state=P.SUCCEEDED)} == {0, 1}


def test_a_gang_ends_though_the_last_of_its_pods_is_on_a_node_that_died(world, monkeypatch):
    monkeypatch.setattr(leaving, "ASK_AGAIN_S", 5.0)
    gang = world.submit("gang", pods=NODES, min_count=NODES - 1, run_s=2.0)
    world.drive(lambda: len(running(world, gang)) == NODES)
    lost = running(world, gang)[0]
    world.fault("node-down", node=lost.node)
    world.drive(lambda: len(world.placements(gang, state=P.SUCCEEDED)) == NODES - 1)
    world.drive_to(gang, S.SUCCEEDED)
    assert Placement.objects.get(pk=lost.pk).state == P.RELEASED


def ends_well(world, pod):
    """As a kubelet reports a pod whose program answered SIGTERM by exit code 0."""
    path = f"/api/v1/namespaces/{world.cluster.namespace}/pods/{pod.pod_name}/status"
    world.call("PATCH", path, {"status": {"phase": "Succeeded"}}, kind="merge-patch+json")


def test_what_left_a_gang_with_exit_code_0_has_not_done_its_work(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    gang = world.submit("gang", pods=NODES, min_count=2, stop_s=20.0)
    world.drive(lambda: len(running(world, gang)) == NODES)
    high = world.submit("high", priority=10)
    world.drive(lambda: any(p["metadata"].get("deletionTimestamp") for p in world.pods().values()))
    (gone,) = [p for p in running(world, gang) if p.message]
    ends_well(world, gone)
    world.drive(lambda: Placement.objects.get(pk=gone.pk).state == P.RELEASED)
    world.restart_scheduler()
    world.drive_to(high, S.RUNNING)
    world.cancel(high)
    world.drive(lambda: len(running(world, gang)) == NODES)
    assert {p.ordinal for p in running(world, gang)} == set(range(NODES))


def test_places_to_grow_into_are_not_lost_with_the_pass_that_found_them(world):
    """Somebody changed the job meanwhile, so that nothing of it was written."""
    first = world.submit("first", pods=2)
    world.drive_to(first, S.RUNNING)
    gang = world.submit("gang", pods=NODES, min_count=2)
    world.drive_to(gang, S.RUNNING)
    session = world.scheduler.led[world.cluster.pk, WHOLE].session
    decided, stale = session.decide, []

    def decide():
        part = decided()
        if part.writes.intents and not stale:
            stale.append(str(gang.pk))
            part.writes = Writes()
            session.finish(part, set(stale))
            return decided()
        return part

    session.decide = decide
    world.cancel(first)
    world.drive(lambda: len(running(world, gang)) == NODES)
    assert stale
    assert world.free_gpus() == 0


def test_what_a_gang_got_later_has_as_long_to_start_as_what_it_began_with():
    request = JobRequest("gang", "team", 0.0, (PodSet("set", 4, 1, min_count=2),))
    job = LiveJob(request, "gang", (), S.ADMITTED, 1, 1, 0, admitted_at=100.0)
    began = ((P.RUNNING, 100.0), (P.RUNNING, 100.0), (P.BOUND, 100.0), (P.BOUND, 650.0))
    for i, (state, at) in enumerate(began):
        place = PodPlacement(0, i, f"n{i}", (0,), 1000)
        job.add(LivePod(place, 1, f"gang-{i}", "H100", state, placed_at=at))
    life = Lifecycle("kant-jobs")
    life.jobs[job.id] = life.admitted[job.id] = job
    life.overdue(701.0)
    assert [p.name for p in job.pods.values() if p.leaving] == ["gang-2"]
    assert job.pods[0, 2].leaving.blamed == ("n2",)
    life.overdue(1251.0)
    assert [p.name for p in job.pods.values() if p.leaving] == ["gang-2", "gang-3"]
