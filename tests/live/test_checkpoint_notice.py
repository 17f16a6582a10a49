"""Jobs that ask for a checkpoint notice get it before their pods go, and time to save their
work."""

import time
from datetime import datetime

import pytest

from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent
from scheduling.models.jobs import PlacementState as P
from scheduling.services.jobs.changes import change_job, release_job

pytestmark = pytest.mark.live
BY, AT = "kant.io/checkpoint-by", "kant.io/checkpointed-at"


def reasons(world, job):
    rows = JobEvent.objects.filter(job=job).order_by("id")
    return [reason for reason in rows.values_list("reason", flat=True) if reason]


def event(job, reason):
    return JobEvent.objects.get(job=job, reason=reason)


def ended(world, job):
    """Return when the places of the first attempt were given back."""
    return [r.ended_at for r in world.placements(job, attempt=1)]


def test_a_victim_saves_its_work_before_it_goes_and_the_preemptor_waits_for_it(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    low = world.submit("low", pods=4, checkpoint_notice_s=600, saves_s=1.0)
    world.drive_to(low, S.RUNNING)
    high = world.submit("high", pods=2, priority=10, run_s=0.3)
    world.drive(lambda: "CheckpointNotice" in reasons(world, low))
    told = event(low, "CheckpointNotice")
    world.drive_to(high, S.RUNNING, S.SUCCEEDED)
    assert told.evidence["pods"] == 4
    until = datetime.fromisoformat(told.evidence["checkpoint_by"])
    assert 599 <= (until - told.at).total_seconds() <= 602
    saved = event(low, "Checkpointed")
    assert (saved.at - told.at).total_seconds() >= 1.0
    assert min(ended(world, low)) >= saved.at
    assert min(r.intended_at for r in world.placements(high)) >= max(ended(world, low))
    world.drive_to(low, S.RUNNING)
    assert "CheckpointMissed" not in reasons(world, low)
    # The pods of the next attempt have had no notice.
    names = {r.pod_name for r in world.placements(low, attempt=2)}
    assert all(BY not in world.pods()[name]["metadata"]["annotations"] for name in names)


def test_what_a_victim_leaves_beside_its_preemptor_is_entered_when_it_is_gone(world):
    """The kubelet rejects a pod whose GPUs a pod in deletion still holds."""
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    low = world.submit("low", pods=4, stop_s=1.5)
    world.drive_to(low, S.RUNNING)
    high = world.submit("high", gpus=2, priority=10)
    world.drive(lambda: "Preempted" in reasons(world, low))
    beside = [world.submit(f"beside-{i}", gpus=4) for i in range(4)]
    for job in (high, *beside):
        world.drive_to(job, S.RUNNING)
        assert min(r.intended_at for r in world.placements(job)) >= max(ended(world, low))
        assert {r.attempt for r in world.placements(job)} == {1}
        assert "REQUEUED" not in world.kinds(job)


def test_a_notice_asked_for_while_the_job_waits_is_given(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    low = world.submit("low", pods=4, held=True, saves_s=0.5)
    world.drive(lambda: "OnHold" in reasons(world, low))
    row = Job.objects.get(pk=low.pk)
    change_job(world.user, row, {"checkpoint_notice_s": 600})
    release_job(world.user, row)
    world.drive_to(low, S.RUNNING)
    high = world.submit("high", pods=2, priority=10)
    world.drive_to(high, S.RUNNING)
    assert min(ended(world, low)) >= event(low, "Checkpointed").at


def test_who_does_not_answer_goes_when_its_time_is_up(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    low = world.submit("low", pods=4, checkpoint_notice_s=1)
    world.drive_to(low, S.RUNNING)
    high = world.submit("high", pods=2, priority=10)
    world.drive_to(high, S.RUNNING)
    told, missed = event(low, "CheckpointNotice"), event(low, "CheckpointMissed")
    assert (missed.at - told.at).total_seconds() >= 1.0
    assert min(ended(world, low)) >= missed.at


def test_a_gang_on_a_degraded_gpu_is_told_and_one_on_a_dead_node_is_not(world):
    world.set_policy(backoff_base_s=0.1)
    gang = world.submit("gang", pods=2, checkpoint_notice_s=600, saves_s=0.5)
    world.drive_to(gang, S.RUNNING)
    world.fault("gpu-bad", node=world.placements(gang)[0].node, gpu=0)
    world.drive(lambda: "NodeLost" in reasons(world, gang))
    world.drive(lambda: world.state(gang) == S.RUNNING and len(world.placements(gang)) == 4)
    assert reasons(world, gang).index("CheckpointNotice") < reasons(world, gang).index(
        "Checkpointed"
    )
    assert min(ended(world, gang)) >= event(gang, "Checkpointed").at
    node = world.placements(gang, state=P.RUNNING)[0].node
    world.fault("node-down", node=node)
    world.drive(lambda: reasons(world, gang).count("NodeLost") == 2)
    assert reasons(world, gang).count("CheckpointNotice") == 1


def test_a_gang_is_told_when_somebody_drains_one_of_its_nodes(world):
    world.set_policy(backoff_base_s=0.1)
    gang = world.submit("gang", pods=2, checkpoint_notice_s=600, saves_s=0.5, stop_s=600.0)
    world.drive_to(gang, S.RUNNING)
    drained, other = world.placements(gang)
    # What a drain does: cordon the node, then evict with the pod's own grace period.
    cordon = {"spec": {"unschedulable": True}}
    world.call("PATCH", f"/api/v1/nodes/{drained.node}", cordon, kind="merge-patch+json")
    path = f"/api/v1/namespaces/kant-jobs/pods/{drained.pod_name}"
    meta = {"name": drained.pod_name, "namespace": "kant-jobs"}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
    world.call("POST", f"{path}/eviction", eviction)
    world.drive(lambda: "PodEvicted" in reasons(world, gang))
    assert event(gang, "CheckpointNotice").evidence["pods"] == 2
    assert Job.objects.get(pk=gang.pk).front
    world.drive(lambda: "Checkpointed" in reasons(world, gang))
    world.drive(lambda: "deletionTimestamp" in world.pods()[other.pod_name]["metadata"])
    for pod in (drained, other):
        world.kill(pod.pod_name)
    world.drive(lambda: world.state(gang) == S.RUNNING and len(world.placements(gang)) == 4)
    saved = event(gang, "Checkpointed")
    assert min(ended(world, gang)) >= saved.at
    assert drained.node not in {r.node for r in world.placements(gang, attempt=2)}
    assert other.pod_name not in world.pods()


def test_a_service_loses_the_pod_that_was_told_and_only_that(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    service = world.submit("service", pods=4, gang=False, checkpoint_notice_s=600, saves_s=0.5)
    world.drive(lambda: len(world.placements(service, state=P.RUNNING)) == 4)
    high = world.submit("high", pods=1, run_s=0.3, priority=10)
    world.drive_to(high, S.SUCCEEDED)
    world.drive(lambda: len(world.placements(service, state=P.RUNNING)) == 4)
    assert event(service, "CheckpointNotice").evidence["pods"] == 1
    saved = event(service, "Checkpointed")
    [gone] = world.placements(service, state=P.RELEASED)
    assert gone.pod_name in saved.message
    assert gone.ended_at >= saved.at


def test_a_new_scheduler_waits_for_the_answer_as_the_last_one_did(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    low = world.submit("low", pods=4, checkpoint_notice_s=600)
    world.drive_to(low, S.RUNNING)
    high = world.submit("high", pods=4, priority=10)
    world.drive(lambda: "CheckpointNotice" in reasons(world, low))
    world.drive(lambda: all(BY in p["metadata"]["annotations"] for p in world.pods().values()))
    world.restart_scheduler()
    world.scheduler.run(world.cluster.pk)
    assert all("deletionTimestamp" not in p["metadata"] for p in world.pods().values())
    note = {"metadata": {"annotations": {AT: str(time.time())}}}
    path = f"/api/v1/namespaces/kant-jobs/pods/{world.placements(low)[0].pod_name}"
    world.call("PATCH", path, note, kind="merge-patch+json")
    world.drive_to(high, S.RUNNING)
    assert reasons(world, low).count("CheckpointNotice") == 1
    assert min(ended(world, low)) >= event(low, "Checkpointed").at


def test_who_cancels_a_job_does_not_wait_for_its_checkpoint(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    low = world.submit("low", pods=4, checkpoint_notice_s=600)
    world.drive_to(low, S.RUNNING)
    high = world.submit("high", pods=4, priority=10)
    world.drive(lambda: "CheckpointNotice" in reasons(world, low))
    world.cancel(low)
    world.drive_to(high, S.RUNNING)
    assert Job.objects.get(pk=low.pk).state == S.CANCELLED
