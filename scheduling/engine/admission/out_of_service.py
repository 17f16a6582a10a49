"""Jobs that could not start even if everything that runs had ended.

Nodes are cordoned or out of service, GPUs are bad, pods of others are in the way, or the job avoids
a node that rejected it. Or nodes are missing that an autoscaler may add.

Nobody waits for such a job: others pass it as if those nodes had been removed. Its reason says what
it lacks. When that comes back, the job has its position again. Only this module decides which jobs
these are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from scheduling.engine.admission.candidates import Candidate, ask_of, pools_wanted
from scheduling.engine.admission.start import place_on
from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.constraints import blocking_taint, will_admit
from scheduling.engine.demand.model_choices import Search
from scheduling.engine.demand.requested import Ask, smallest_starts
from scheduling.engine.demand.shapes import MAX_CHOICES, narrowed
from scheduling.engine.memo import WITHIN_REACH, Finding, Question
from scheduling.engine.placement import PlacementFailure, pods_when_empty
from scheduling.engine.placement.fit import share_milli
from scheduling.engine.placement.view import PoolView
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.state import SchedulerState
from scheduling.engine.statement import Statement
from scheduling.engine.types import BEYOND, NO_GPUS, Node, PodSetSpec
from scheduling.engine.verdict import NO_ROOM, Reason, Verdict, counted

# How many nodes a reason names, and how many its evidence lists.
NAMED, LISTED = 3, 16


@dataclass(slots=True, eq=False)
class _ReachAsOf:
    """What an answer of `within_reach` depends on.

    What was `asked`, and the `nodes` that would be used, as of version `changes` of the nodes. If
    not `alone`, the answer depends on all nodes.
    """

    asked: Any
    alone: bool
    nodes: frozenset[str]
    changes: int


class _WithinReach(Question):
    """In which pools a job of the class could start if everything that runs had ended."""

    def stands(
        self, state: SchedulerState, _subject: object, known: Finding, depends_on: object
    ) -> bool:
        as_of: _ReachAsOf = known.depends_on
        cleared = state.cleared
        if as_of.asked != depends_on:
            return False
        if as_of.changes == cleared.changes:
            return True
        # Which nodes are kept as spares depends on all nodes.
        if not (as_of.alone and cleared.unchanged(as_of.nodes, as_of.changes)):
            return False
        as_of.changes = cleared.changes
        return True

    def work_out(
        self, state: SchedulerState, subject: EquivalenceClass, _depends_on: object
    ) -> frozenset[str]:
        record = state.jobs[subject.head]
        return _find(state, record, ask_of(state, record), state.cleared.world())[0]


_WITHIN_REACH = _WithinReach(WITHIN_REACH)


def within_reach(state: SchedulerState, record: JobRecord) -> frozenset[str]:
    """Return the GPU models on which the waiting job could start if everything had ended.

    Demands that quota could never allow do not count. If there is none, nobody waits for the job.
    """
    eq_class, ask = record.eq_class, ask_of(state, record)
    assert eq_class is not None
    cleared = state.cleared
    world = cleared.world()
    asked = (
        *(ask.wish, tuple(sorted(record.avoided_nodes)), *state.memo.facts),
        *(state.policy.spare_nodes, state.strategy_of(record.job)),
    )
    known = state.memo.recall(_WITHIN_REACH, eq_class, asked)
    if known is not None:
        pools: frozenset[str] = known.answer
        return pools
    pools, nodes = _find(state, record, ask, world)
    # Pods on other nodes may be what such a job has to be near to or away from.
    apart = any(s.rules is not None for s in record.job.pod_sets)
    alone = pools >= ask.pools and not (state.policy.spare_nodes or apart)
    as_of = _ReachAsOf(asked, alone, nodes, cleared.changes)
    state.memo.note(_WITHIN_REACH, eq_class, pools, as_of)
    return pools


def with_what_it_lacks(state: SchedulerState, record: JobRecord, verdict: Verdict) -> Verdict:
    """Add to the reason of a job that is not within reach what it lacks.

    That keeps it from starting for longer than the other jobs run.
    """
    lacks = list(_lacks(state, record))
    by_places = verdict.reason in NO_ROOM
    if by_places and any(_is_to_come(state.cluster, name) for name, _ in lacks):
        return _waits_for_nodes(state, verdict, [name for name, _ in lacks])
    if lacks and len(lacks) == verdict.evidence.get("avoided_nodes"):
        return replace(
            verdict, summary=f"{verdict.summary}. Until then other jobs do not wait for it."
        )
    numbers: dict[str, int | float | str] = {"lacking_nodes": len(lacks)}
    if lacks:
        numbers["lacking"] = "; ".join(f"{name}: {why}" for name, why in lacks[:LISTED])
        first = ", ".join(f"{name} ({why})" for name, why in lacks[:NAMED])
        more = len(lacks) - NAMED
        beside = f" and {counted(more, 'more node', 'more nodes')}" if more > 0 else ""
        why = f"it needs {first}{beside}"
        helps = ("ask an operator to bring these nodes back",)
    else:
        why, helps = "its pods do not fit together", ("ask for fewer or smaller pods",)
    if state.policy.spare_nodes and not record.job.uses_spares:
        why += ", and nodes are kept as spares"
    text = (
        f"It could not start even after all running jobs end: {why}. Other jobs do not wait for it."
    )
    others = (remedy for remedy in verdict.remedies if not remedy.startswith("wait"))
    return replace(
        verdict,
        summary=f"{verdict.summary.rstrip('.')}. {text}",
        evidence={**verdict.evidence, **numbers},
        remedies=(*helps, *others),
    )


def _is_to_come(cluster: ClusterState, name: str) -> bool:
    node = cluster.node(name)
    return node is not None and node.to_come


def _waits_for_nodes(state: SchedulerState, verdict: Verdict, lacks: list[str]) -> Verdict:
    """Return the reason of a job that could start if some of these nodes were there or in order."""
    nodes = [node for node in map(state.cluster.node, lacks) if node is not None]
    come = Counter(node.name.rpartition("/")[0] for node in nodes if node.to_come)
    groups = ", ".join(f"{n} of {group}" for group, n in sorted(come.items()))
    text = f"It waits for new nodes; the cluster may get {groups}"
    if bad := len(nodes) - come.total():
        text += f", and {counted(bad, 'node is', 'nodes are')} not as they should be"
    numbers: dict[str, int | float | str] = {"nodes_to_come": come.total(), "node_groups": groups}
    numbers["lacking_nodes"] = len(lacks)
    return replace(
        verdict,
        reason=Reason.WAITING_FOR_NODES,
        summary=f"{verdict.summary.rstrip('.')}. {text}. Other jobs do not wait for it.",
        evidence={**verdict.evidence, **numbers},
        remedies=("wait until the autoscaler has added nodes", "ask for fewer or smaller pods"),
    )


def _find(
    state: SchedulerState, record: JobRecord, ask: Ask, world: ClusterState
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the pools in which the job could start there, and the nodes that it would use."""
    job, book, non_preemptible = record.job, state.book, not record.job.preemptible
    pools, nodes = set[str](), set[str]()
    starts = list(smallest_starts(job, record.missing()))
    for way in ask.ways:
        for counts, demand, needs in zip(starts, way.starts, way.needs, strict=True):
            mine = _pools_of(job.pod_sets, way.models, counts, ask)
            enough = all(world.free_milli(m) >= milli for m, milli in needs.items())
            if mine <= pools or not enough:
                continue
            if not book.could_ever(job.tenant, demand, non_preemptible=non_preemptible):
                continue
            found = _places(state, record, way.models, counts, world)
            if found is not None:
                pools |= mine
                nodes |= found
        if pools >= ask.pools:
            break
    if not pools and ask.beyond:
        for models in _beyond(state, record, ask, world):
            found = _places(state, record, models, starts[0], world)
            if found is not None:
                return _pools_of(job.pod_sets, models, starts[0], ask), found
    return frozenset(pools), frozenset(nodes)


def _pools_of(
    pod_sets: tuple[PodSetSpec, ...], models: tuple[str, ...], counts: tuple[int, ...], ask: Ask
) -> frozenset[str]:
    """Return the pools that these pods compete for; all of the ask's if they need no GPUs."""
    found = {
        m if s.gpus else NO_GPUS
        for s, m, n in zip(pod_sets, models, counts, strict=True)
        if n and (s.gpus or s.avoids_gpus)
    }
    return frozenset(found) or ask.pools


def _beyond(
    state: SchedulerState, record: JobRecord, ask: Ask, world: ClusterState
) -> Iterator[tuple[str, ...]]:
    """Yield combinations of GPU models beyond the ask's own for which there are enough GPUs."""
    tenant, non_preemptible = record.job.tenant, not record.job.preemptible

    def fits(model: str, exactly: int) -> bool:
        milli = -(-exactly // BEYOND)
        most = state.book.ceiling(tenant, model, non_preemptible=non_preemptible)
        there = state.pools.unlike(model) or milli <= world.free_milli(model)
        return there and milli <= most

    known = {way.models for way in ask.ways}
    return islice((m for m in Search(ask.options, fits) if m not in known), MAX_CHOICES)


def _places(
    state: SchedulerState,
    record: JobRecord,
    models: tuple[str, ...],
    counts: tuple[int, ...],
    world: ClusterState,
) -> frozenset[str] | None:
    """Return the nodes on which the pods would be; None if they find no places."""
    statement = Statement(world)
    candidate = Candidate(narrowed(record.job, models), counts)
    placed = place_on(statement, state, candidate, frozenset(record.avoided_nodes))
    statement.rollback()
    if isinstance(placed, PlacementFailure):
        return None
    return frozenset(p.node for p in placed)


# --- what it lacks --------------------------------------------------------------------------------
def _lacks(state: SchedulerState, record: JobRecord) -> Iterator[tuple[str, str]]:
    """Yield (node, why) for nodes that hold fewer of the job's pods than they could, by name.

    They could hold more if they were in order and empty.
    """
    world, wanted, sets = state.cleared.world(), pools_wanted(state, record), record.job.pod_sets
    found: dict[str, str] = {}
    for s in sets:
        if not (s.gpus or s.avoids_gpus):
            continue
        for model in sorted(wanted.intersection(s.gpu_models or wanted)):
            for name, why in _lacking_for(world, s, model, record.avoided_nodes):
                found.setdefault(name, why)
    return iter(sorted(found.items()))


def _lacking_for(
    world: ClusterState, s: PodSetSpec, model: str, avoided_nodes: dict[str, float]
) -> Iterable[tuple[str, str]]:
    pool = world.index.pools.get(model)
    if pool is None:
        return
    admitted = world.index.admitted(world, pool, s)
    holds: dict[int, int] = {}
    for size, nodes in pool.layout.memory_sizes:
        if milli := share_milli(size, s):
            at, pods = PoolView(world, pool, s, milli, admitted & nodes).capacity()
            holds.update(zip(at.tolist(), pods.tolist(), strict=True))
    for number, slot in enumerate(pool.layout.slots):
        node = world.facts[slot]
        if node is None or not will_admit(node, s):
            continue
        if node.name in avoided_nodes:
            until = datetime.fromtimestamp(avoided_nodes[node.name], UTC)
            yield (
                node.name,
                f"avoided until {until:%Y-%m-%d %H:%M:%S} UTC, because it rejected a pod",
            )
        elif holds.get(number, 0) < pods_when_empty(node, s):
            yield node.name, _why(world, node, s)


def _why(world: ClusterState, node: Node, s: PodSetSpec) -> str:
    """Return why the node holds fewer pods of the set than it could."""
    if not node.schedulable:
        return node.out_of_service or "out of service"
    taint = blocking_taint(node.taints, s.nodes.tolerations)
    if taint is not None:
        return f"tainted {taint.key}"
    others = world.others_on(node.name)
    theirs = sum(pod.gpus for pod in others)
    bad = len(node.devices) - node.healthy_gpus
    if s.gpus and (bad or theirs):
        of = f"of {counted(len(node.devices), 'GPU', 'GPUs')}"
        parts = [f"{bad} {of} out of service"] * bool(bad)
        parts += [f"{theirs} {of} held by pods outside Kant"] * bool(theirs)
        return " and ".join(parts)
    if others:
        return "pods outside Kant hold what it needs"
    return "some of its NICs are out of service"
