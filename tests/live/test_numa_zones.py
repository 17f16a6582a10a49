"""Pods avoid nodes where no NUMA zone of the kubelet has enough GPUs."""

import pytest

from scheduling.engine.states import JobState as S
from scheduling.models import Job
from tests.live.plain_pods import make, node_of, state_of

pytestmark = pytest.mark.live
PATH = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"


def halved(world, node):
    """Let this node's kubelet give a pod GPUs of one of its two zones only."""
    told = dict.fromkeys(("capacity", "allocatable", "available"), "4")
    zones = [
        {"name": f"node-{n}", "type": "Node", "resources": [{"name": "nvidia.com/gpu", **told}]}
        for n in range(2)
    ]
    policy = [{"name": "topologyManagerPolicy", "value": "single-numa-node"}]
    world.call("POST", PATH, {"metadata": {"name": node}, "zones": zones, "attributes": policy})


def test_pods_that_fit_no_zone_go_elsewhere_or_wait_until_they_do(world):
    *most, last = sorted(n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"])
    for node in most:
        halved(world, node)
    job = world.submit(pods=2)
    world.drive(lambda: Job.objects.get(pk=job.pk).reason != "")
    waits = Job.objects.get(pk=job.pk)
    assert waits.state in ("PENDING", "QUOTA_RESERVED")
    assert "8 GPUs have to be of one NUMA zone" in waits.message
    alone = make(world, "alone", gpus=8)
    world.drive(lambda: state_of(alone) is S.RUNNING)
    assert node_of(world, "alone") == last
    for name in ("half", "other-half"):
        make(world, name, gpus=4)
    world.drive(lambda: node_of(world, "half") and node_of(world, "other-half"))
    assert node_of(world, "half") in most
    for node in most:
        world.call("DELETE", f"{PATH}/{node}")
    world.drive_to(job, S.RUNNING)
