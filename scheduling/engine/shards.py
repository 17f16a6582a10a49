"""Dividing one cluster between several schedulers (docs/decisions/0003-shards.md).

Every node belongs to one scope at any time: its home shard, or `WIDE` while it is lent to a job
that fits into no shard. A scheduler loads only the nodes of the scopes it leads, so no two
schedulers can give the same device. Pure functions; the session moves nodes between scopes with
a guarded write under the lease of the scope that gives them up.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.engine.cluster import ClusterState
from scheduling.engine.constraints import admits
from scheduling.engine.placement.topology import fewest
from scheduling.engine.types import MILLI, JobRequest, Node

WIDE = "wide"


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a cluster: nodes whose GPU model is in `gpu_models` and that lie in one of
    `groups`, groups of any topology level by name; an empty tuple does not restrict."""

    name: str
    gpu_models: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def holds(self, node: Node) -> bool:
        if self.gpu_models and node.gpu_model not in self.gpu_models:
            return False
        return not self.groups or any(group in self.groups for group in node.topology)


def declaration_problem(shards: Sequence[Shard]) -> str:
    """What is wrong with a declaration; "" when nothing is."""
    names = [shard.name for shard in shards]
    if not names:
        return "no shard is declared; declare at least one"
    for name in names:
        if not name or name == WIDE:
            return f"shard name {name!r} is not allowed; use another"
        if names.count(name) > 1:
            return f"shard {name!r} is declared twice; names are unique"
    if shards[-1].gpu_models or shards[-1].groups:
        return f"the last shard, {names[-1]!r}, has to take all other nodes; leave it unrestricted"
    return ""


def home_of(node: Node, shards: Sequence[Shard]) -> str:
    """The first declared shard that holds the node; the last one takes what no other does."""
    return next((shard.name for shard in shards if shard.holds(node)), shards[-1].name)


def route(job: JobRequest, scopes: Mapping[str, ClusterState]) -> str:
    """The scope whose scheduler decides about the job: the shard that could hold all of it when
    empty and has most GPUs free now, the first declared of equals; `WIDE` when none could.

    `scopes`: what is known of every shard, in order of declaration; a summary may be stale, then
    the job only waits in a fuller shard. A job that wishes one group for all pod sets, or a
    level wider than any shard, stays whole in this way too.
    """
    able = [name for name, state in scopes.items() if name != WIDE and _could_hold(job, state)]
    if not able:
        return WIDE
    return max(able, key=lambda name: (_free_for(job, scopes[name]), -able.index(name)))


def nodes_to_lend(state: ClusterState, job: JobRequest, missing: int) -> tuple[str, ...]:
    """Idle nodes that a shard hands to the wide scope for a job, in topology order: at most
    `missing`, from the fewest leaf groups. Only nodes without a single pod change their scope.
    """
    lent: list[str] = []
    for model, pool in state.index.pools.items():
        if not any(not s.gpu_models or model in s.gpu_models for s in job.pod_sets):
            continue
        idle = [
            number
            for number, slot in enumerate(pool.layout.slots)
            if _idle(state, slot) and _wanted(state.facts[slot], job)
        ]
        groups = pool.layout.levels[0]
        per_leaf = np.bincount(groups.of[np.array(idle, np.int64)], minlength=len(groups.keys))
        for leaf, nodes in fewest(per_leaf, min(missing - len(lent), len(idle))):
            here = [number for number in idle if groups.of[number] == leaf]
            lent += [state.names[pool.layout.slots[number]] for number in here[:nodes]]
    return tuple(lent)


def to_return(state: ClusterState, homes: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Nodes of the wide scope that hold no pod any more, by the home shard they go back to."""
    back: dict[str, list[str]] = {}
    for slot, node in enumerate(state.facts):
        if node is not None and _empty(state, slot):
            back.setdefault(homes[node.name], []).append(node.name)
    return {home: tuple(sorted(names)) for home, names in sorted(back.items())}


def _could_hold(job: JobRequest, state: ClusterState) -> bool:
    """Whether the installed GPUs of the nodes that admit each pod set would hold all of it."""
    for pod_set in job.pod_sets:
        pods = 0
        for slot, node in enumerate(state.facts):
            if node is None or (pod_set.gpu_models and node.gpu_model not in pod_set.gpu_models):
                continue
            if admits(node, pod_set):
                pods += _pods_when_empty(state.total[slot], pod_set.gpus, pod_set.gpu_milli)
        least = pod_set.count if pod_set.min_count is None else pod_set.min_count
        if pods < least:
            return False
    return True


def _pods_when_empty(gpus: int, per_pod: int, milli: int) -> int:
    if not per_pod:
        return 1 << 30
    return gpus * (MILLI // milli) if milli < MILLI else gpus // per_pod


def _free_for(job: JobRequest, state: ClusterState) -> int:
    models: Iterable[str] = {m for s in job.pod_sets for m in s.gpu_models} or state.gpu_models()
    return sum(state.free_milli(model) for model in models)


def _empty(state: ClusterState, slot: int) -> bool:
    name = state.names[slot]
    return not state.pods_on(name) and not state.others_on(name)


def _idle(state: ClusterState, slot: int) -> bool:
    return state.usable[slot] and state.free[slot] > 0 and _empty(state, slot)


def _wanted(node: Node | None, job: JobRequest) -> bool:
    return node is not None and any(
        admits(node, s) and (not s.gpu_models or node.gpu_model in s.gpu_models)
        for s in job.pod_sets
    )
