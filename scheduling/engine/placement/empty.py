"""How many pods of a set nodes would hold if they were empty."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.constraints import will_admit
from scheduling.engine.cluster.index import PoolIndex
from scheduling.engine.placement.fit import share_milli, share_units
from scheduling.engine.placement.pods import group_key
from scheduling.engine.placement.request import level_number
from scheduling.engine.types import MILLI, JobRequest, Node, PodSetSpec

# The groups of a node at the required levels of the job and of the set; "" = no level is required.
Where = tuple[str, str]


@dataclass(slots=True)
class Together:
    """Counts how many pods of a set empty nodes hold together; the result is `pods`.

    The pods must lie in one group of the job's level, and inside it in one group of the set's level
    (`in_one`) or in whole slices of `size` pods. `in_leaf`: pods counted per leaf, if leaves have a
    limit.
    """

    in_one: bool
    size: int
    pods: int = 0
    held: dict[Where, int] = field(default_factory=dict)
    in_job_group: dict[str, int] = field(default_factory=dict)
    in_leaf: dict[tuple[str, Where], int] = field(default_factory=dict)

    def add(self, where: Where | None, holds: int) -> None:
        if where is None:
            return
        before = self.held.get(where, 0)
        has = self.held[where] = before + holds
        if self.in_one:
            self.pods = max(self.pods, has)
            return
        more = (has // self.size - before // self.size) * self.size
        whole = self.in_job_group[where[0]] = self.in_job_group.get(where[0], 0) + more
        self.pods = max(self.pods, whole)


def together(job: JobRequest, pod_set: PodSetSpec) -> Together:
    """Return the count for a set before any node is added."""
    size = pod_set.slice_size
    return Together(bool(level_of(job, pod_set)) and not size, max(size, 1))


def fits_when_empty(state: ClusterState, job: JobRequest, pod_set: PodSetSpec) -> bool:
    """Whether empty nodes would hold the pods of the set without which the job cannot start.

    Pods of a gang with GPUs must fit in one pool. Stops at the first nodes that suffice, which are
    usually few.
    """
    needed = pod_set.least if job.gang else 1
    found = together(job, pod_set)
    for model in pod_set.gpu_models or state.index.pools:
        pool = state.index.pools.get(model)
        if not pod_set.anywhere:
            found = together(job, pod_set)
        for _, _, where, holds in empty_nodes(state, job, pod_set, pool, found) if pool else ():
            found.add(where, holds)
            if found.pods >= needed:
                return True
    return False


def empty_nodes(
    state: ClusterState, job: JobRequest, pod_set: PodSetSpec, pool: PoolIndex, found: Together
) -> Iterator[tuple[int, Node, Where | None, int]]:
    """Yield the nodes of a pool that admit the set, with how many pods each would hold empty.

    Each item is (number, node, groups, pods). groups None = the node is in no group of a required
    level. `found` has the pods counted so far, which matter for limits per leaf.
    """
    most_in_leaf, in_leaf = pod_set.max_per_leaf, found.in_leaf
    asked = (job.required_level, pod_set.required_level)
    levels = [level_number(level, state.levels) if level else None for level in asked]
    for number, slot in enumerate(pool.layout.slots):
        node = state.facts[slot]
        if node is None or not will_admit(node, pod_set):
            continue
        holds = pods_when_empty(node, pod_set)
        groups = ["" if at is None else group_key(state, slot, at) for at in levels]
        inside = all(group or not level for group, level in zip(groups, asked, strict=True))
        where = (groups[0], groups[1]) if inside else None
        if where is not None and most_in_leaf is not None:
            # Count per leaf and group: a hyper-node may have only a part of a leaf's nodes.
            leaf = pool.layout.levels[0].keys[pool.layout.leaf_of[number]], where
            holds = min(holds, most_in_leaf - in_leaf.get(leaf, 0))
            in_leaf[leaf] = in_leaf.get(leaf, 0) + holds
        yield number, node, where, holds


def level_of(job: JobRequest, pod_set: PodSetSpec) -> str:
    """Return the required level of the set, or else of the job; "" = none."""
    return pod_set.required_level or job.required_level


def is_choosy(state: ClusterState, job: JobRequest, pod_set: PodSetSpec) -> bool:
    if level_of(job, pod_set) or pod_set.max_per_node or pod_set.max_per_leaf:
        return True
    if pod_set.cpu_milli or pod_set.memory_mib or pod_set.nics or pod_set.extended:
        return True  # GPU counts alone do not say whether it fits
    pools = state.index.pools
    models = (m for m in pod_set.gpu_models or pools if m in pools)
    return any(
        state.index.admitted(state, pools[m], pod_set) != pools[m].layout.everything for m in models
    )


def pods_when_empty(node: Node, pod_set: PodSetSpec) -> int:
    """Return how many pods of the set the node would hold if it were empty, healthy and open."""
    limits = [node.max_pods]
    if pod_set.gpus:
        milli = share_milli(node.gpu_memory_mib, pod_set)
        if not milli:
            return 0
        shares = 1 if milli == MILLI else MILLI // milli
        if pod_set.gpu_memory_mib:
            shares = MILLI * node.gpu_memory_mib // share_units(node.gpu_memory_mib, pod_set)
        limits.append(len(node.devices) // pod_set.gpus * shares)
    if pod_set.cpu_milli:
        limits.append(node.cpu_milli // pod_set.cpu_milli)
    if pod_set.memory_mib:
        limits.append(node.memory_mib // pod_set.memory_mib)
    if pod_set.nics:
        limits.append(len(node.nics) // pod_set.nics)
    for name, amount in pod_set.extended.items():
        if amount > 0:
            limits.append(node.extended.get(name, 0) // amount)
    if pod_set.max_per_node is not None:
        limits.append(pod_set.max_per_node)
    return min(limits)
