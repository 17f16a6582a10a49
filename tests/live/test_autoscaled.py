"""A cluster that may grow: what its autoscaler sees, and what becomes of jobs when nodes come."""

import pytest

from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, NodeRecord
from tenants.models import GpuType, Quota
from tests.live.plain_pods import condition, job_of, make, state_of

pytestmark = pytest.mark.live
B200 = "NVIDIA-B200"
GROUP = {"gpu_type": B200, "gpus": 8, "cpu_milli": 64_000, "memory_mib": 512_000, "max_nodes": 2}
SELECTOR = {"nodeSelector": {"nvidia.com/gpu.product": B200}}


@pytest.fixture
def autoscaled(world):
    gpu_type = GpuType.objects.create(name=B200, memory_mib=192_000)
    Quota.objects.create(tenant=world.tenant, gpu_type=gpu_type, guaranteed_milli=16_000)
    Cluster.objects.update(node_groups={"b200": GROUP})
    return world


def add_node(world, name="b200-a"):
    """As an autoscaler's cloud does: a node like those of the group."""
    [like] = world.call("GET", "/api/v1/nodes")["items"][:1]
    labels = {**like["metadata"]["labels"], "nvidia.com/gpu.product": B200}
    labels |= {"kubernetes.io/hostname": name, "nvidia.com/gpu.count": "8"}
    meta = {"name": name, "labels": labels, "annotations": like["metadata"].get("annotations", {})}
    world.call(
        "POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}}
    )
    status = {"status": {k: like["status"][k] for k in ("capacity", "allocatable", "conditions")}}
    world.call("PATCH", f"/api/v1/nodes/{name}/status", status, kind="merge-patch+json")


def test_a_pod_of_a_group_at_zero_is_unschedulable_until_its_node_comes(autoscaled):
    world = autoscaled
    uid = make(world, **SELECTOR)
    other = make(world, "small")  # the pods of other models go on
    world.drive(lambda: condition(world) and condition(world)[1] == "Unschedulable")
    assert condition(world)[2].startswith("WaitingForNodes: ")
    assert job_of(uid).state == S.QUOTA_RESERVED
    world.drive(lambda: state_of(other) is S.RUNNING)
    add_node(world)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert not NodeRecord.objects.filter(name__contains="/").exists()


def test_what_no_node_can_help_is_told_by_another_reason(autoscaled):
    world = autoscaled
    Quota.objects.filter(gpu_type__name=B200).update(guaranteed_milli=8_000)
    make(world, "one", **SELECTOR)
    make(world, "gated", schedulingGates=[{"name": "a/b"}], **SELECTOR)
    make(world, "wide", gpus=9, **SELECTOR)
    make(world, "never", gpus=4, nodeSelector={"nvidia.com/gpu.product": "L4"})
    add_node(world)
    world.drive(lambda: (condition(world, "one") or "")[0] == "True")
    make(world, "two", **SELECTOR)
    reasons = {"two": "WaitingForQuota", "wide": "ExceedsCapacity", "never": "ExceedsCapacity"}
    for name, reason in reasons.items():
        world.drive(lambda n=name, r=reason: (condition(world, n) or ("", ""))[1] == r)
    assert condition(world, "gated")[1] != "Unschedulable"


def test_groups_can_be_taken_back_and_a_restart_finds_them(autoscaled):
    world = autoscaled
    job = world.submit("wide", gpus=8)
    job.pod_sets.update(gpu_models=[B200])
    world.drive(lambda: type(job).objects.get(pk=job.pk).reason == "WaitingForNodes")
    world.restart_scheduler()
    world.drive(lambda: world.scheduler.led)
    assert world.state(job) is S.QUOTA_RESERVED
    Cluster.objects.update(node_groups={})
    world.drive(lambda: type(job).objects.get(pk=job.pk).reason == "NoMatchingGpuType")
