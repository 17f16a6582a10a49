"""Faults on the wire between a decision and its confirmation."""

from collections import Counter

import pytest

from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent, PodSet
from scheduling.models.jobs import PlacementState as P
from tests.live.conftest import wait

pytestmark = pytest.mark.live
NODES = 4
ALL = NODES * 8 * 1000


def bind_by_hand(world, name, node, gpus):
    """Bind another person's pod to a node, bypassing every scheduler."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "schedulerName": "default-scheduler",
            "containers": [{"name": "c", "image": "busybox", "resources": resources}],
        },
    }
    world.call("POST", "/api/v1/namespaces/default/pods", pod)


def take_a_node(world, job, pods):
    """Decide and write the places of all these pods; before they are bound, another pod takes
    the node of one of them. Returns the placement of that pod."""
    world.fault("too-many-requests", verb="bind", count=0, retry_after_s=1)
    world.drive(lambda: len(world.placements(job)) == pods)
    taken = world.placements(job)[0]
    bind_by_hand(world, "foreign", taken.node, gpus=8)
    wait(lambda: world.pods()["foreign"]["status"]["phase"] == "Running")
    world.call("DELETE", "/sim/faults")
    return taken


def holdings_now(world, job):
    """Return {(node, device): pods that hold it now} for the pods of the job."""
    held = Counter()
    for holding in world.audit()["holdings"]:
        if holding.get("job") == str(job.pk) and not holding.get("until"):
            held.update((holding["node"], device) for device in holding["devices"])
    return held


def test_a_node_whose_kubelet_rejects_a_pod_is_blamed_and_the_gang_runs_elsewhere(world):
    job = world.submit(pods=2)
    taken = take_a_node(world, job, 2).node
    world.drive(lambda: K.REQUEUED in world.kinds(job))
    # The node is free again, but is not tried again at once.
    world.call("DELETE", "/api/v1/namespaces/default/pods/foreign", {"gracePeriodSeconds": 0})
    world.drive_to(job, S.RUNNING)

    event = JobEvent.objects.get(job=job, kind=K.REQUEUED)
    assert event.reason in ("OutOfnvidia.com/gpu", "UnexpectedAdmissionError")
    assert taken in event.message
    assert Job.objects.get(pk=job.pk).attempt == 2
    assert {r.state for r in world.placements(job, attempt=1)} <= {P.RELEASED, P.FAILED}
    second = {r.node for r in world.placements(job, attempt=2)}
    assert len(second) == 2
    assert taken not in second
    world.drive(lambda: world.free_gpus() == ALL - 16_000)
    names = {r.pod_name for r in world.placements(job, attempt=2)}
    world.drive(lambda: set(world.pods()) == names)
    assert set(holdings_now(world, job).values()) == {1}


WATCHES = ("drop-watches", "expire-watches")


@pytest.mark.parametrize("watches", WATCHES)
def test_one_gang_whole_whatever_happens_to_its_requests(world, watches):
    """Servers are busy, replies get lost after the commit, and watches break while a gang is
    bound."""
    world.fault("too-many-requests", verb="create", resource="pods", count=1, retry_after_s=1)
    world.fault("lose-reply", verb="create", resource="pods", count=2)
    world.fault("too-many-requests", verb="bind", count=1, retry_after_s=1)
    world.fault("lose-reply", verb="bind", count=2)
    job = world.submit(pods=NODES)
    world.drive(lambda: len(world.placements(job)) == NODES)
    world.fault(watches)
    world.drive(lambda: any(p["spec"].get("nodeName") for p in world.pods().values()))
    world.fault(watches)
    world.drive_to(job, S.RUNNING)

    assert world.call("GET", "/sim/faults")["faults"] == []
    row = Job.objects.get(pk=job.pk)
    assert (row.attempt, row.failures) == (1, 0)
    rows = world.placements(job)
    assert {r.state for r in rows} == {P.RUNNING}
    pods = world.pods()
    assert set(pods) == {r.pod_name for r in rows}
    assert {r.pod_uid for r in rows} == {p["metadata"]["uid"] for p in pods.values()}
    held = holdings_now(world, job)
    assert held == Counter({(r.node, device): 1 for r in rows for device in r.devices})
    assert len(held) == NODES * 8


def running(world, job):
    return world.placements(job, state=P.RUNNING)


def test_beside_pods_of_others_that_name_no_devices_the_rest_of_the_node_is_used(world):
    names = [f"n{i}" for i in range(NODES)]
    world.drive(lambda: world.scheduler.led and world.free_gpus() == ALL)
    for name, node in zip(names, world.call("GET", "/api/v1/nodes")["items"], strict=True):
        bind_by_hand(world, name, node["metadata"]["name"], gpus=3)
    world.drive(lambda: world.free_gpus() == NODES * 5 * 1000)
    job = world.submit(pods=NODES, gpus=5)
    world.drive_to(job, S.RUNNING)
    assert Job.objects.get(pk=job.pk).attempt == 1


def test_a_rejected_pod_of_a_service_is_placed_elsewhere_while_the_others_go_on(world):
    """A pod that bypassed every scheduler fills its node; Kant does not hear of it before the
    binding."""
    service = world.submit(pods=3, gang=False)
    rejected = take_a_node(world, service, 3)
    world.drive(lambda: len(running(world, service)) == 3)

    assert world.state(service) == S.RUNNING
    assert K.REQUEUED not in world.kinds(service)
    rows = {(r.ordinal, r.attempt): r for r in world.placements(service)}
    ordinal = rejected.ordinal
    assert sorted(rows) == sorted([(0, 1), (1, 1), (2, 1), (ordinal, 2)])
    assert rows[ordinal, 1].state == P.FAILED
    assert rows[ordinal, 2].node != rejected.node
    event = JobEvent.objects.get(job=service, evidence={"pods": 1})
    assert event.reason in ("OutOfnvidia.com/gpu", "UnexpectedAdmissionError")
    assert rejected.node in event.message
    names = {r.pod_name for r in running(world, service)} | {"foreign"}
    world.drive(lambda: set(world.pods()) == names)
    assert Job.objects.get(pk=service.pk).failures == 0


def test_a_service_that_lost_a_node_keeps_its_other_pods_over_a_restart(world):
    world.set_policy(backoff_base_s=600, backoff_cap_s=600)
    service = world.submit(pods=3, gang=False)
    world.drive(lambda: len(running(world, service)) == 3)
    lost = running(world, service)[1]
    world.fault("gpu-bad", node=lost.node, gpu=0)
    world.drive(lambda: len(running(world, service)) == 2 and len(world.pods()) == 2)
    assert Job.objects.get(pk=service.pk).failures == 1
    world.restart_scheduler()
    world.drive(lambda: len(running(world, service)) == 3)
    assert {r.attempt for r in running(world, service)} == {1, 2}
    assert all(r.node != lost.node for r in running(world, service))
    world.drive(lambda: Job.objects.get(pk=service.pk).failures == 0)


def test_a_service_of_which_one_pod_is_rejected_everywhere_fails_with_its_history(world):
    world.set_policy(max_attempts=3, backoff_base_s=0.05, blame_s=0)
    service = world.submit(pods=1, gang=False)
    good = PodSet.objects.get(job=service)
    wrong = {"sim.kant.io/run-seconds": "-1"}
    fields = {"count": 1, "gpus": 8, "gpu_models": good.gpu_models, "annotations": wrong}
    PodSet.objects.create(job=service, index=1, name="wrong", **fields)
    world.drive_to(service, S.FAILED)
    row = Job.objects.get(pk=service.pk)
    assert (row.reason, row.failures) == ("UnexpectedAdmissionError", 3)
    assert "Placement 3 of 3 that failed" in row.message
    # The first pod ran all the while; the other one had a new attempt each time.
    assert [r.attempt for r in world.placements(service, pod_set=0)] == [1]
    attempts = [r.attempt for r in world.placements(service, pod_set=1)]
    assert attempts == list(range(1, len(attempts) + 1))
    assert len(attempts) >= 3  # attempts that failed before the other pod ran do not count
    world.drive(lambda: world.free_gpus() == ALL)
