"""Hot spares: wholly free nodes that the policy keeps for the jobs that may use them."""

from collections.abc import Iterable, Mapping, Set

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.placement.view import numbers
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import JobRequest, PodPlacement, Policy

Idle = Mapping[str, int]  # GPU model -> bit set of the wholly free nodes of its pool


def idle_nodes(policy: Policy, cluster: ClusterState) -> dict[str, int]:
    """Return the wholly free nodes of the GPU models for which the policy keeps spares."""
    if not policy.spare_nodes:
        return {}
    pools = cluster.index.pools
    return {m: pools[m].bits[pools[m].top] for m in policy.spare_nodes if m in pools}


def takes_spares(policy: Policy, cluster: ClusterState, job: JobRequest, before: Idle) -> bool:
    """Return whether the job took spares that it may not use.

    That is, some of the nodes that were wholly free `before` and have to be kept.
    """
    return bool(before) and not job.uses_spares and any(_lacking(policy, cluster, before).values())


def without_spares(
    state: SchedulerState, job: JobRequest, placed: Iterable[PodPlacement], spares: Set[str]
) -> tuple[PodPlacement, ...]:
    """Return the places just booked that leave the spares free.

    () if the job cannot do without the others.
    """
    left = tuple(p for p in placed if p.node not in spares)
    counts = [0] * len(job.pod_sets)
    for p in left:
        counts[p.pod_set] += 1
    for pod_set, _ in state.jobs[job.id].pods:
        counts[pod_set] += 1
    for s, count in zip(job.pod_sets, counts, strict=True):
        if s.slice_size or (job.gang and count < s.least):
            return ()
    return left


def spares_beside(
    policy: Policy, cluster: ClusterState, placed: Iterable[PodPlacement], before: Idle
) -> frozenset[str]:
    """Return the wholly free nodes to keep as spares from a job that just got these places.

    They are the nodes that it did not take, and as many of those that it took last as are lacking.
    """
    found = set[str]()
    taken = dict.fromkeys(p.node for p in placed)
    for model, lacking in _lacking(policy, cluster, before).items():
        layout = cluster.index.pools[model].layout
        if lacking:
            idle = {cluster.names[layout.slots[n]] for n in numbers(before[model], layout.size)}
            mine = [name for name in taken if name in idle]
            found |= idle.difference(mine[:-lacking])
    return frozenset(found)


def _lacking(policy: Policy, cluster: ClusterState, before: Idle) -> dict[str, int]:
    """Count by GPU model the nodes that are lacking among the spares since `before`."""
    wanted, now = policy.spare_nodes, idle_nodes(policy, cluster)
    return {
        model: max(0, min(wanted[model], nodes.bit_count()) - now[model].bit_count())
        for model, nodes in before.items()
    }
