"""What pods hold of a node, by the engine's books."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.columns import OtherPod

NOTHING: Mapping[str, int] = MappingProxyType({})


class NodeHeld(NamedTuple):
    """What pods hold of a node: GPU-milli, CPU and memory.

    `free_gpus`: healthy GPUs that are wholly free. `pods`: how many pods of Kant are there.
    `others`: what other pods take. `beyond`: what pods of Kant hold of extended resources beside
    what they asked for.
    """

    allocated_milli: int = 0
    free_gpus: int = 0
    allocated_cpu_milli: int = 0
    allocated_memory_mib: int = 0
    pods: int = 0
    others: tuple[OtherPod, ...] = ()
    beyond: Mapping[str, int] = NOTHING


def held_on(cluster: ClusterState, name: str) -> NodeHeld | None:
    """Return what pods hold of a node; None = the engine does not know it."""
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
        _beyond_on(cluster, name),
    )


def _beyond_on(cluster: ClusterState, name: str) -> Mapping[str, int]:
    if not cluster.beyond:
        return NOTHING
    found: Counter[str] = Counter()
    for key in cluster.pods_on(name):
        found.update(cluster.beyond.get(key, NOTHING))
    return found
