"""A place waits for the evicted pods that still occupy it."""

import pytest

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.running.leaving import LeavingPods
from scheduling.engine.types import Device, JobRequest, Nic, Node, PodPlacement, PodSetSpec

LEFT = ("old", 0, 0)


def node(**facts):
    devices, nics = tuple(Device(i) for i in range(8)), tuple(Nic(i) for i in range(2))
    amounts = {"cpu_milli": 10_000, "memory_mib": 10_000, "max_pods": 3, "extended": {"x": 4}}
    return Node("n0", "H100", devices, nics, **(amounts | facts))


def awaited(old, old_place, new, new_place, **facts):
    """Return what a job at `new_place` waits for while a pod leaves `old_place`."""
    cluster, leaving = ClusterState(), LeavingPods()
    cluster.upsert_node(node(**facts))
    before = JobRequest("old", "a", 0.0, (PodSetSpec("main", 1, **old),))
    cluster.book(before, PodPlacement(0, 0, "n0", *old_place))
    booking = cluster.booking(LEFT)
    leaving.add(LEFT, booking)
    cluster.release(*LEFT)
    job = JobRequest("new", "a", 1.0, (PodSetSpec("main", 1, **new),))
    place = PodPlacement(0, 0, "n0", *new_place)
    cluster.book(job, place)
    found = leaving.in_the_way(cluster, job, [place])
    leaving.remove(LEFT, booking)
    assert leaving.in_the_way(cluster, job, [place]) == set(), "it is gone"
    return found


@pytest.mark.parametrize(
    ("old", "old_place", "new", "new_place", "in_the_way"),
    [
        ({"gpus": 2}, ((0, 1), 1000), {"gpus": 2}, ((1, 2), 1000), True),
        ({"gpus": 2}, ((0, 1), 1000), {"gpus": 2}, ((2, 3), 1000), False),
        ({"gpus": 1, "gpu_milli": 500}, ((0,), 500), {"gpus": 1}, ((0,), 1000), True),
        (
            {"gpus": 1, "gpu_milli": 500}, ((0,), 500),
            {"gpus": 1, "gpu_milli": 500}, ((0,), 500), False,
        ),
        (
            {"gpus": 1, "gpu_milli": 600}, ((0,), 600),
            {"gpus": 1, "gpu_milli": 500}, ((0,), 500), True,
        ),
        (
            {"gpus": 1, "nics": 1}, ((0,), 1000, (0,)),
            {"gpus": 1, "nics": 1}, ((1,), 1000, (0,)), True,
        ),
        (
            {"gpus": 1, "nics": 1}, ((0,), 1000, (0,)),
            {"gpus": 1, "nics": 1}, ((1,), 1000, (1,)), False,
        ),
        ({"gpus": 1}, ((0,), 1000, (0,)), {"gpus": 1, "nics": 1}, ((1,), 1000, (0,)), False),
        (
            {"gpus": 1, "cpu_milli": 6000}, ((0,), 1000),
            {"gpus": 1, "cpu_milli": 5000}, ((1,), 1000), True,
        ),
        (
            {"gpus": 1, "cpu_milli": 5000}, ((0,), 1000),
            {"gpus": 1, "cpu_milli": 5000}, ((1,), 1000), False,
        ),
        (
            {"gpus": 1, "memory_mib": 6000}, ((0,), 1000),
            {"gpus": 1, "memory_mib": 5000}, ((1,), 1000), True,
        ),
        (
            {"gpus": 1, "extended": {"x": 3}}, ((0,), 1000),
            {"gpus": 1, "extended": {"x": 2}}, ((1,), 1000), True,
        ),
    ],
)  # fmt: skip
def test_what_a_pod_that_leaves_still_holds(old, old_place, new, new_place, in_the_way):
    assert awaited(old, old_place, new, new_place) == ({LEFT} if in_the_way else set())


def test_a_node_takes_so_many_pods():
    places = ({"gpus": 1}, ((0,), 1000), {"gpus": 1}, ((1,), 1000))
    assert awaited(*places, max_pods=1) == {LEFT}
    assert awaited(*places, max_pods=2) == set()
