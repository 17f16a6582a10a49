"""A new pod requests the resource that its node advertises; under another name the kubelet would
start it without its GPUs."""

from dataclasses import replace

import pytest

from scheduling.engine.states import JobState
from scheduling.engine.types import Device, JobRequest, Nic, Node, PodPlacement, PodSetSpec
from scheduling.session.memory.live import LiveJob, PodContent
from scheduling.session.pods.pod import create_and_bind, new_pod

NODE = Node(
    "n0",
    "MI300X",
    tuple(Device(i) for i in range(8)),
    tuple(Nic(i, resource="rdma/a" if i < 4 else "rdma/b") for i in range(8)),
    gpu_resource="amd.com/gpu",
)


def limits(node, place, **fields):
    pod_set = PodSetSpec("workers", 1, len(place.devices), **fields)
    request = JobRequest("3f2b8c1e-0000-4000-8000-000000000001", "t", 0.0, (pod_set,))
    content = (PodContent("busybox", (), {}, {}),)
    job = LiveJob(request, "job", content, JobState.ADMITTED, 1, 1)
    effect = create_and_bind(job, new_pod(job, place, node.gpu_model, later=False), node)
    return effect.manifest["spec"]["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize("resource", ["amd.com/gpu", "nvidia.com/gpu"])
def test_gpus_are_asked_for_as_the_node_counts_them(resource):
    place = PodPlacement(0, 0, "n0", (0, 1), 1000)
    assert limits(replace(NODE, gpu_resource=resource), place) == {resource: "2"}


def test_nics_for_the_pod_alone_are_asked_for_as_the_node_counts_them():
    place = PodPlacement(0, 0, "n0", (0, 4), 1000, (0, 4, 5))
    assert limits(NODE, place, nics=3) == {"amd.com/gpu": "2", "rdma/a": "1", "rdma/b": "2"}
    # A pod that states them itself does not get them twice.
    own = {"rdma/a": 1, "rdma/b": 2}
    assert limits(NODE, place, nics=3, extended=own) == {
        "amd.com/gpu": "2",
        "rdma/a": "1",
        "rdma/b": "2",
    }


def test_nics_that_are_shared_or_only_counted_by_kant_are_not_asked_for():
    place = PodPlacement(0, 0, "n0", (0, 4), 1000, (0, 4))
    assert limits(NODE, place) == {"amd.com/gpu": "2"}
    counted = replace(NODE, nics=tuple(replace(nic, resource="") for nic in NODE.nics))
    assert limits(counted, place, nics=2) == {"amd.com/gpu": "2"}


def test_a_pod_of_a_node_that_is_gone_asks_for_the_most_usual_gpus():
    """It is made only to be given back: a scheduler that starts completes what was begun."""
    assert limits(Node("n0"), PodPlacement(0, 0, "n0", (0, 1), 1000)) == {"nvidia.com/gpu": "2"}
