"""What pods hold of a node, as the engine's books say."""

from typing import NamedTuple

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.columns import OtherPod


class NodeHeld(NamedTuple):
    """GPU-milli, CPU and memory that pods hold of a node, how many of its GPUs are healthy and
    wholly free, how many pods of Kant are on it, and what pods that are not Kant's take."""

    allocated_milli: int = 0
    free_gpus: int = 0
    allocated_cpu_milli: int = 0
    allocated_memory_mib: int = 0
    pods: int = 0
    others: tuple[OtherPod, ...] = ()


def held_on(cluster: ClusterState, name: str) -> NodeHeld | None:
    """None where the engine does not know the node."""
    node = cluster.node(name)
    if node is None:
        return None
    slot = cluster.slot_of[name]
    return NodeHeld(
        cluster.allocated[slot],
        cluster.free[slot],
        node.cpu_milli - cluster.cpu[slot],
        node.memory_mib - cluster.memory[slot],
        len(cluster.pods_on(name)),
        cluster.others_on(name),
    )
