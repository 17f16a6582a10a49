"""Small clusters and jobs for placement tests."""

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.statement import Statement
from scheduling.engine.types import Device, JobRequest, Nic, Node, PodSetSpec


def gpu_node(name, *, gpus=8, model="H800", leaf="", spine="", top="", **facts):
    """Return a healthy node with CPU to spare."""
    return Node(
        name,
        gpu_model=model,
        devices=tuple(Device(i, numa=2 * i // gpus, memory_mib=80_000) for i in range(gpus)),
        nics=tuple(Nic(i, numa=2 * i // gpus) for i in range(gpus)),
        topology=(leaf, spine, top),
        **{"cpu_milli": 128_000, "memory_mib": 1_000_000, **facts},
    )


def cluster_of(*nodes):
    state = ClusterState()
    for node in nodes:
        assert state.upsert_node(node) == ()
    return state


def job_of(name, *pod_sets, **facts):
    return JobRequest(name, "tenant", 0.0, pod_sets, **facts)


def place(state, job, strategy="e-binpack", **wishes):
    """Place and commit; return the placements or the failure."""
    statement = Statement(state)
    found = place_job(statement, job, strategy=strategy, **wishes)
    statement.commit()
    return found


def nodes_of(found):
    assert not isinstance(found, PlacementFailure), found
    return [p.node for p in found]


def pods(count, gpus, **wishes):
    return PodSetSpec("pods", count, gpus, **wishes)


def two_spines():
    """Two spines of two leaves with four nodes each, named in topology order."""
    return cluster_of(
        *(
            gpu_node(f"n{i:02d}", leaf=f"leaf-{i // 4}", spine=f"spine-{i // 8}", top="core")
            for i in range(16)
        )
    )


def leaves(state, found):
    return {state.node(name).topology[0] for name in nodes_of(found)}
