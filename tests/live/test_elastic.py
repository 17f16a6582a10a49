"""An elastic gang gives up the pods that it does not need, one by one, and gets them back."""

from itertools import permutations

import pytest

from scheduling.api.job_outputs import ExplanationOutput
from scheduling.engine.deltas import PodEnded, PodRequeued
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.engine.types import JobRequest, PodPlacement, PodSetSpec
from scheduling.kube.seam import DeletePod
from scheduling.kube.translate.manifests import pod_name
from scheduling.models import Job, JobEvent, Placement
from scheduling.models.jobs import PREEMPTED
from scheduling.models.jobs import PlacementState as P
from scheduling.queries.explain import explain_job
from scheduling.session.memory.live import Cause, Failures, LiveJob, LivePod, Writes
from scheduling.session.pods import leave
from scheduling.session.pods.follow import Lifecycle
from scheduling.session.pods.leave import EVICT_AGAIN_S
from scheduling.session.pods.steps import advance, release
from tests.live.conftest import wait
from tests.live.test_disruption_budgets import BUDGETS, allowed, protect

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
    for number in (1, 2):  # giving up surplus pods does not count as a preemption of the job
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


def test_a_gang_that_began_small_grows_and_ends_when_all_of_it_has(world, client):
    first = world.submit("first", pods=2)
    world.drive_to(first, S.RUNNING)
    gang = world.submit("gang", pods=NODES, min_count=2)
    world.drive_to(gang, S.RUNNING)
    assert len(world.placements(gang)) == 2
    world.drive(lambda: Job.objects.get(pk=gang.pk).growth is not None)
    told = ExplanationOutput(explain_job(world.user, Job.objects.get(pk=gang.pk))).data
    why = "0 of the 8 NVIDIA-H100-80GB-HBM3 GPUs that its next pod needs are free."
    assert (told["state"], told["reason"], told["summary"]) == (S.RUNNING, "", "")
    growth = {name: told["growth"][name] for name in ("has", "asked", "reason", "summary")}
    assert growth == {"has": 2, "asked": NODES, "reason": "InsufficientGpus", "summary": why}
    client.force_login(world.user)
    assert f"Why not now: {why}" in client.get(f"/jobs/{gang.pk}/").content.decode()
    world.finish(first)
    world.drive(lambda: len(running(world, gang)) == NODES)
    assert explain_job(world.user, Job.objects.get(pk=gang.pk)).growth is None
    world.finish(gang)
    world.drive_to(gang, S.SUCCEEDED)
    rows = world.placements(gang)
    assert {(p.attempt, p.ordinal, p.state) for p in rows} == {
        (1, ordinal, P.SUCCEEDED) for ordinal in range(NODES)
    }
    row = Job.objects.get(pk=gang.pk)
    assert row.bound_at <= row.running_at < max(p.bound_at for p in rows)
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
    # It needs every one of the others. Another job waits for the first free place, so the pod is
    # not back when the next one goes.
    other = world.submit("other", priority=10)
    for pod in running(world, gang)[:2]:
        delete(world, pod)
    world.drive(lambda: K.REQUEUED in world.kinds(gang))
    world.cancel(other)
    world.drive(lambda: len(running(world, gang)) == NODES)


def test_a_gang_starts_without_the_pod_that_does_not_start(world):
    world.fault("slow-replies", verb="create", resource="pods", count=1, delay_ms=60_000)
    gang = world.submit("gang", pods=NODES, min_count=2)
    late = JobEvent.objects.filter(job=gang, reason="GangTimeout")
    world.drive_to(gang, S.RUNNING)
    assert not late.exists()
    world.drive(lambda: len(running(world, gang)) == NODES - 1)
    world.set_policy(gang_timeout_s=1)
    world.drive(late.exists)
    assert len(running(world, gang)) == NODES - 1
    assert K.REQUEUED not in world.kinds(gang)
    row, rows = Job.objects.get(pk=gang.pk), running(world, gang)
    # The job's wait, and that of each pod, ends when its required pods are bound, not when all are.
    assert row.bound_at < late.get().at
    assert min(p.held_from for p in rows) == row.bound_at


def test_a_pod_that_came_later_and_does_not_start_gives_its_place_back(world):
    first = world.submit("first", pods=2)
    world.drive_to(first, S.RUNNING)
    gang = world.submit("gang", pods=NODES, min_count=2)
    world.drive_to(gang, S.RUNNING)
    world.set_policy(blame_s=1)
    # The server is too busy for any binding.
    world.fault("too-many-requests", verb="bind", count=0, retry_after_s=1)
    world.cancel(first)
    world.drive(lambda: len(world.placements(gang, state=P.INTENDED)) == 2)
    world.restart_scheduler()
    world.set_policy(gang_timeout_s=0.5)
    late = JobEvent.objects.filter(job=gang, reason="GangTimeout")
    world.drive(late.exists)
    world.set_policy(gang_timeout_s=600)
    world.call("DELETE", "/sim/faults")
    # A binding in progress may end before its pod is deleted.
    world.drive(lambda: sorted(p.attempt for p in running(world, gang)) == [1, 1, 2, 2])
    assert K.REQUEUED not in world.kinds(gang)
    assert Job.objects.get(pk=gang.pk).failures == 0


def take_name(world, job, attempt, ordinal):
    """Create a pod with the name that Kant is about to give to one of the job's pods."""
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
    gang = world.submit("gang", pods=3, min_count=2)
    for attempt in range(1, 60):
        take_name(world, gang, attempt, 2)
    failed = JobEvent.objects.filter(job=gang, reason="BindingFailed")
    world.drive(lambda: failed.count() >= 4)
    assert world.state(gang) in (S.ADMITTED, S.RUNNING)
    world.drive(lambda: len(running(world, gang)) == 2)
    world.finish(gang)
    world.drive_to(gang, S.SUCCEEDED)
    assert K.REQUEUED not in world.kinds(gang)
    assert {p.ordinal for p in world.placements(gang, state=P.SUCCEEDED)} == {0, 1}


def test_a_gang_ends_though_the_last_of_its_pods_is_on_a_node_that_died(world, monkeypatch):
    monkeypatch.setattr(leave, "ASK_AGAIN_S", 5.0)
    gang = world.submit("gang", pods=NODES, min_count=NODES - 1)
    world.drive(lambda: len(running(world, gang)) == NODES)
    lost = running(world, gang)[0]
    world.fault("node-down", node=lost.node)
    for pod in running(world, gang):
        if pod.pk != lost.pk:
            world.report(pod.pod_name, "Succeeded")
    world.drive(lambda: len(world.placements(gang, state=P.SUCCEEDED)) == NODES - 1)
    world.drive_to(gang, S.SUCCEEDED)
    assert Placement.objects.get(pk=lost.pk).state == P.RELEASED


def test_what_left_a_gang_with_exit_code_0_has_not_done_its_work(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    gang = world.submit("gang", pods=NODES, min_count=2, stop_s=600.0)
    world.drive(lambda: len(running(world, gang)) == NODES)
    high = world.submit("high", priority=10)
    world.drive(lambda: any(p["metadata"].get("deletionTimestamp") for p in world.pods().values()))
    (gone,) = [p for p in running(world, gang) if p.message]
    world.report(gone.pod_name, "Succeeded")  # its program answered SIGTERM with exit code 0
    world.drive(lambda: Placement.objects.get(pk=gone.pk).state == P.RELEASED)
    world.restart_scheduler()
    world.drive_to(high, S.RUNNING)
    world.cancel(high)
    world.drive(lambda: len(running(world, gang)) == NODES)
    assert {p.ordinal for p in running(world, gang)} == set(range(NODES))


def test_what_leaves_is_told_and_protected_by_the_next_scheduler_as_by_the_last(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    gang = world.submit(
        "gang",
        pods=NODES,
        min_count=2,
        labels={"app": "web"},
        checkpoint_notice_s=600,
        saves_s=0.5,
    )
    world.drive(lambda: len(running(world, gang)) == NODES)
    protect(world, "web", {"app": "web"}, minAvailable=NODES - 1)
    world.drive(lambda: allowed(world, "web") == 1)
    session = world.scheduler.led[world.cluster.pk, WHOLE].session
    world.drive(lambda: session.state.jobs[str(gang.pk)].disruptions == 1)
    # The scheduler is killed after its decision, before it could notify the pod.
    session.gateway.submit = lambda effects: None
    high = world.submit("high", priority=10)
    preempted = JobEvent.objects.filter(job=gang, reason=PREEMPTED)
    world.drive(preempted.exists)
    (leaves,) = [p for p in running(world, gang) if p.reason == PREEMPTED]
    need = {"spec": {"minAvailable": NODES}}
    world.call("PATCH", f"{BUDGETS}/web", need, kind="merge-patch+json")
    wait(lambda: allowed(world, "web") == 0)
    world.restart_scheduler()
    world.drive(lambda: Job.objects.get(pk=high.pk).reason == "WaitingForPreemption")
    saved = JobEvent.objects.filter(job=gang, reason="Checkpointed")
    world.drive(saved.exists)
    session = world.scheduler.led[world.cluster.pk, WHOLE].session
    pod = session.life.jobs[str(gang.pk)].pods[leaves.pod_set, leaves.ordinal]
    world.drive(lambda: pod.delete_sent_at is not None)
    asked = pod.delete_sent_at
    world.drive(lambda: pod.delete_sent_at > asked + EVICT_AGAIN_S)  # it was refused, and again
    assert "deletionTimestamp" not in world.pods()[leaves.pod_name]["metadata"]
    need = {"spec": {"minAvailable": NODES - 1}}
    world.call("PATCH", f"{BUDGETS}/web", need, kind="merge-patch+json")
    world.drive_to(high, S.RUNNING)
    assert preempted.count() == 1
    assert len(running(world, gang)) == NODES - 1
    row = Placement.objects.get(pk=leaves.pk)
    assert (row.state, row.reason) == (P.RELEASED, PREEMPTED)
    assert row.ended_at >= saved.get().at
    world.cancel(high)
    world.drive(lambda: len(running(world, gang)) == NODES)


def test_places_to_grow_into_are_not_lost_with_the_pass_that_found_them(world):
    """Somebody changes the job meanwhile, so that nothing of the pass is written about it."""
    first = world.submit("first", pods=2)
    world.drive_to(first, S.RUNNING)
    gang = world.submit("gang", pods=NODES, min_count=2)
    world.drive_to(gang, S.RUNNING)
    session = world.scheduler.led[world.cluster.pk, WHOLE].session
    decided, stale = session.decide, []

    def decide(*taking):
        part = decided(*taking)
        if part.writes.intents and not stale:
            stale.append(str(gang.pk))
            part.writes = Writes()
            session.finish(part, set(stale))
            return decided(*taking)
        return part

    session.decide = decide
    world.cancel(first)
    world.drive(lambda: len(running(world, gang)) == NODES)
    assert stale
    assert world.free_gpus() == 0


def test_what_a_gang_got_later_has_as_long_to_start_as_what_it_began_with():
    request = JobRequest("gang", "team", 0.0, (PodSetSpec("set", 4, 1, min_count=2),))
    job = LiveJob(request, "gang", (), S.ADMITTED, 1, 1, admitted_at=100.0)
    began = ((P.RUNNING, 100.0), (P.RUNNING, 100.0), (P.BOUND, 100.0), (P.BOUND, 650.0))
    for i, (state, at) in enumerate(began):
        place = PodPlacement(0, i, f"n{i}", (0,), 1000)
        job.add(LivePod(place, 1, f"gang-{i}", "H100", state, placed_at=at))
    life = Lifecycle()
    life.jobs[job.id] = life.starting[job.id] = job
    life.overdue(701.0)
    assert [p.name for p in job.pods.values() if p.leaving] == ["gang-2"]
    assert job.pods[0, 2].leaving.avoided_nodes == ("n2",)
    life.overdue(1251.0)
    assert [p.name for p in job.pods.values() if p.leaving] == ["gang-2", "gang-3"]


def elastic_gang(*pods, state=S.RUNNING, slice_size=0):
    """Return a gang with min_count 2 and these pods (state, second of placement, whether it came
    later)."""
    pod_set = PodSetSpec("set", 6, 1, min_count=2, slice_size=slice_size)
    job = LiveJob(JobRequest("gang", "team", 0.0, (pod_set,)), "gang", (), state, 1, 1)
    job.admitted_at, job.bound_at = 100.0, 100.0 if state == S.RUNNING else None
    for i, (reached, at, later) in enumerate(pods):
        place = PodPlacement(0, i, f"n{i}", (0,), 1000)
        job.add(LivePod(place, 1, f"gang-{i}", "H100", reached, 1 + i, at, later, uid=f"u{i}"))
    life = Lifecycle()
    life.jobs[job.id] = life.starting[job.id] = job
    return life, job


BEGAN = (P.RUNNING, 100.0, False)


def test_what_a_gang_got_while_it_ran_does_not_wait_for_ever_to_start():
    life, job = elastic_gang(BEGAN, BEGAN, (P.BOUND, 1000.0, True), (P.BOUND, 1300.0, True))
    life.overdue(1600.0)
    assert not [p.name for p in job.pods.values() if p.leaving]
    life.overdue(1601.0)
    assert [p.name for p in job.pods.values() if p.leaving] == ["gang-2"]
    late = job.pods[0, 2].leaving
    assert (late.not_before, late.avoided_nodes) == (
        1601.0 + life.scope.policy.backoff_base_s,
        ("n2",),
    )
    (note,) = life.out.writes.notes
    assert (note.reason, note.message) == (
        "GangTimeout",
        "Only 2 of 4 pods ran 601 s after the placement",
    )
    assert (job.state, job.failures.number, job.surplus.number) == (S.RUNNING, 0, 1)
    # Starts cannot be observed while the cluster is out of sight.
    life.scope.sees_since = 1500.0
    life.overdue(1950.0)
    assert job.pods[0, 3].leaving is None
    life.overdue(2101.0)
    assert job.pods[0, 3].leaving is not None
    # The scheduler stops watching jobs that wait for nothing more.
    for pod in list(job.pods.values())[2:]:
        release(life.out, job, pod)
    life.overdue(2102.0)
    assert life.starting == {}


def test_a_pod_that_leaves_says_why_to_the_next_scheduler_though_it_is_seen_to_run():
    life, job = elastic_gang(BEGAN, BEGAN, (P.BOUND, 1000.0, True))
    late, cause = job.pods[0, 2], Cause("Preempted", "It makes room")
    life.leave.pods(job, [(late, PodEnded(job.id, *late.key))], cause, 1100.0)
    advance(life.out, job, late, P.RUNNING)
    steps = [(step.to_state, step.message) for step in life.out.writes.steps]
    assert steps == [(P.BOUND, "It makes room"), (P.RUNNING, "It makes room")]


def test_a_gang_is_over_without_what_came_later_and_never_ran():
    done = (P.SUCCEEDED, 100.0, False)
    for others, ends in (
        ([(P.BOUND, 1000.0, True), (P.INTENDED, 1000.0, True)], True),
        ([(P.RUNNING, 1000.0, True)], False),  # that one runs
        ([(P.BOUND, 100.0, False)], False),  # the gang began with that one
        ([], True),
    ):
        life, job = elastic_gang(done, done, *others)
        life.follow(job, 1100.0)
        assert (job.state == S.SUCCEEDED) == ends
        deleted = {e.name for e in life.out.effects if isinstance(e, DeletePod)}
        assert deleted == ({f"gang-{2 + i}" for i in range(len(others))} if ends else set())
    life, job = elastic_gang(done, (P.BOUND, 1000.0, True))
    life.follow(job, 1100.0)
    assert job.state == S.RUNNING  # it needs every one of its min_count


def test_a_gang_runs_when_what_it_needs_of_it_does():
    coming = (P.BOUND, 100.0, False)
    life, job = elastic_gang(BEGAN, coming, (P.INTENDED, 150.0, True), state=S.ADMITTED)
    job.pods[0, 0].bound_at, job.pods[0, 1].bound_at = 120.0, 110.0
    life.follow(job, 160.0)
    assert (job.state, job.bound_at) == (S.ADMITTED, 120.0)
    assert list(life.out.writes.bound_jobs) == [job.id]
    assert [held.pod.name for held in life.out.writes.held] == ["gang-0", "gang-1"]
    advance(life.out, job, job.pods[0, 1], P.RUNNING)
    life.follow(job, 170.0)
    assert job.state == S.RUNNING
    advance(life.out, job, job.pods[0, 2], P.BOUND)
    assert [held.pod.name for held in life.out.writes.held] == ["gang-0", "gang-1", "gang-2"]
    assert life.starting == {job.id: job}
    # Two pods of two slices do not make a slice.
    halves = (BEGAN, coming, BEGAN, coming)
    life, job = elastic_gang(*halves, state=S.ADMITTED, slice_size=2)
    life.follow(job, 160.0)
    assert job.state == S.ADMITTED
    advance(life.out, job, job.pods[0, 1], P.RUNNING)
    life.follow(job, 170.0)
    assert job.state == S.RUNNING


def test_what_a_gang_can_do_without_does_not_count_against_it_while_it_comes_up():
    coming = (P.BOUND, 100.0, False)
    life, job = elastic_gang(BEGAN, coming, coming, coming, state=S.ADMITTED)
    job.failures = Failures(1)
    for attempt, lost in ((1, 3), (2, 2)):
        pod = job.pods[0, lost]
        pod.attempt = attempt
        life.vanished(job, pod, 110.0)
    assert (job.failures.number, job.surplus.number) == (1, 2)
    assert life.out.writes.failures == {}
    waits = [d.not_before for d in life.out.deltas if isinstance(d, PodRequeued)]
    base = life.scope.policy.backoff_base_s
    assert waits == [110.0 + base, 110.0 + 2 * base]
    life.vanished(job, job.pods[0, 1], 120.0)
    assert (job.state, job.failures.number) == (S.PENDING, 2)


@pytest.mark.parametrize("least", [2, 4])
def test_no_pod_of_a_gang_holds_before_the_gang_does_in_any_order_of_replies(least):
    for replies in permutations(range(4)):
        check_held(least, replies)


def check_held(least, replies):
    pod_set = PodSetSpec("set", 4, 1, min_count=least)
    job = LiveJob(JobRequest("gang", "team", 0.0, (pod_set,)), "gang", (), S.ADMITTED, 1, 1)
    for i in range(4):
        job.add(LivePod(PodPlacement(0, i, f"n{i}", (0,), 1000), 1, f"gang-{i}", "H100", row=1 + i))
    life = Lifecycle()
    life.jobs[job.id] = job
    for i in replies:
        life.out.at = 100.0 + i
        advance(life.out, job, job.pods[0, i], P.BOUND)
        life.follow(job, 200.0)
    needed = max(100.0 + i for i in replies[:least])
    assert life.out.writes.bound_jobs == {job.id: needed}
    held = {each.pod.key[1]: each.at for each in life.out.writes.held}
    assert len(life.out.writes.held) == 4
    assert held == {i: needed if i in replies[:least] else max(needed, 100.0 + i) for i in replies}
