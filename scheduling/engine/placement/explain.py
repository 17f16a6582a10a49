"""Explain why a job could not be placed: the dominant reason and its numbers, on request."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.placement.empty import (
    empty_nodes,
    fits_when_empty,
    is_choosy,
    level_of,
    together,
)
from scheduling.engine.placement.excess import excess_of
from scheduling.engine.placement.fit import free_on, share_beyond, share_milli
from scheduling.engine.placement.kept_out import MAX_TOLD, KeptOut, kept_out
from scheduling.engine.placement.place import PlacementFailure
from scheduling.engine.placement.pod_rules import Around, kept_from, mask_of_nodes, may_be
from scheduling.engine.placement.request import HYPER, level_number
from scheduling.engine.placement.view import PoolView
from scheduling.engine.types import BEYOND, MILLI, PART_OF_GPU, JobRequest, Node, PodSetSpec
from scheduling.engine.verdict import Reason, Verdict, counted

NOBODY: Mapping[str, float] = {}


@dataclass(slots=True)
class _Room:
    """How much room there is for the pods of one set.

    `admitting`: nodes that may run such pods. `empty`: pods that they would hold if empty (for a
    gang with GPUs, in one pool). Without avoided nodes, `by_gpus`: pods that the GPUs free now
    would hold; `now`: the same with CPU, memory and all else counted; `free`: what is free, in
    billionths of a GPU-milli; `usable_nodes`: how many nodes that is on. `least`: what one pod
    takes on the largest GPU, in the same unit. `widest`, `widest_name`: the group that holds the
    most pods now. `avoided_nodes`: nodes that would hold pods now if the job did not avoid them,
    and until when it does. `by_rules`: by rule about other pods, in words, the number of nodes with
    room that it closes.
    """

    admitting: list[Node] = field(default_factory=list)
    empty: int = 0
    by_gpus: int = 0
    now: int = 0
    free: int = 0
    least: int = 0
    usable_nodes: int = 0
    widest: int = 0
    widest_name: str = ""
    avoided_nodes: dict[str, float] = field(default_factory=dict)
    by_rules: dict[str, int] = field(default_factory=dict)

    @property
    def free_milli(self) -> int:
        """Free GPU-milli, rounded down."""
        return self.free // BEYOND


def explain(
    state: ClusterState,
    job: JobRequest,
    failure: PlacementFailure,
    avoided_nodes: Mapping[str, float] = NOBODY,
) -> Verdict:
    """Return the verdict on a job that `place_job` could not place on this state.

    `avoided_nodes`: the nodes that rejected pods of the job, and until when it avoids them.
    """
    if failure.misconfigured:
        return Verdict(
            Reason.MISCONFIGURED,
            failure.misconfigured,
            remedies=("correct the job and submit it again",),
        )
    pod_set = job.pod_sets[failure.pod_set]
    models = [
        model for model in pod_set.gpu_models or state.index.pools if model in state.index.pools
    ]
    named = " or ".join(pod_set.gpu_models) or "GPU"
    if not models:
        there = ", ".join(state.gpu_models())
        return Verdict(
            Reason.NO_MATCHING_GPU_TYPE,
            f"no node of this cluster has {named}; it has {there or 'none'}",
            {"asked_models": named, "models": there},
            ("choose a GPU type that the cluster has",),
        )
    least = pod_set.least
    has = sum(1 for at, _ in state.held_by(job.id) if at == failure.pod_set)
    pods = max(least - has, 1) if job.gang else 1
    room = _room(state, job, failure, models, avoided_nodes)
    verdict = _judge(state, job, failure, room, pods, named)
    if verdict.will_never_run:
        return verdict
    return _beside(_by_rules(verdict, room), room.avoided_nodes)


def impossible(state: ClusterState, job: JobRequest) -> Verdict | None:
    """Return why the job would not fit even on empty nodes; None if it would.

    It only looks at jobs for which GPU counts do not decide: jobs with a selector, affinity, taints
    in the way, a network level, a limit of pods per node or leaf, or requests besides GPUs.
    """
    for index, pod_set in enumerate(job.pod_sets):
        if is_choosy(state, job, pod_set) and not fits_when_empty(state, job, pod_set):
            verdict = explain(state, job, PlacementFailure(index))
            if verdict.reason is Reason.EXCEEDS_CAPACITY:
                return verdict
    return None


def _judge(
    state: ClusterState,
    job: JobRequest,
    failure: PlacementFailure,
    room: _Room,
    pods: int,
    named: str,
) -> Verdict:
    pod_set = job.pod_sets[failure.pod_set]
    if pod_set.gpus:
        what = f"{pods} × {_amount(pod_set)} {named}"
    else:
        what = counted(pods, "pod without GPU", "pods without GPU")
    asked = f"Needs {what}"
    free = counted(room.free_milli / MILLI, "GPU is free", "GPUs are free")
    evidence: dict[str, int | float | str] = {"pod_set": pod_set.name, "asked_pods": pods}
    if pod_set.gpus:
        evidence["asked_milli"] = -(-pods * room.least // BEYOND)
        evidence["free_milli"] = room.free_milli
    evidence |= {
        "pods_that_fit": room.now,
        "usable_nodes": room.usable_nodes,
        "admitting_nodes": len(room.admitting),
    }
    if room.empty < pods:
        return _too_large(state, pod_set, room, level_of(job, pod_set), asked, evidence)
    missing = -(-(pods * room.least - room.free) // BEYOND)
    if pod_set.gpus and missing > 0:
        evidence["to_end_milli"] = missing
        return Verdict(
            Reason.INSUFFICIENT_GPUS,
            f"{asked}; {free} on {counted(room.usable_nodes, 'usable node', 'usable nodes')}, and "
            f"{missing / MILLI:g} more must become free",
            evidence,
            ("wait until jobs end", "ask for fewer GPUs"),
        )
    without = " without GPUs" if pod_set.avoids_gpus else ""
    if not pod_set.gpus and pods > room.now:
        evidence["pods_to_end"] = pods - room.now
        nodes = counted(room.usable_nodes, "usable node", "usable nodes")
        return Verdict(
            Reason.INSUFFICIENT_CPU_OR_MEMORY,
            f"{asked}; {nodes}{without} can take {room.now} now",
            evidence,
            ("wait until jobs end", *_less_beside(pod_set)),
        )
    if room.by_gpus >= pods > room.now:
        evidence["pods_by_gpus"] = room.by_gpus
        return Verdict(
            Reason.INSUFFICIENT_CPU_OR_MEMORY,
            f"{asked}. The free GPUs are enough for {room.by_gpus}, but the CPU, memory, NICs and "
            f"other resources beside them only for {room.now}",
            evidence,
            (*_less_beside(pod_set), "wait until jobs on these nodes end"),
        )
    if room.now >= pods and pod_set.rules is not None:
        return Verdict(
            Reason.FRAGMENTED_CAPACITY,
            f"{asked}. {free}, but its rules about other pods leave no room for all of them",
            evidence,
            (
                "wait until jobs end",
                "make its rules about other pods preferred instead of required",
            ),
        )
    if room.widest_name:
        evidence["best_group"] = room.widest_name
        evidence["best_group_pods"] = room.widest
        where = f"no group holds them all; {room.widest_name} holds the most, {room.widest}"
    else:
        where = f"only {counted(room.now, 'pod fits', 'pods fit')}" if room.now else "no pod fits"
    evidence["pods_to_end"] = max(pods - (room.widest if room.widest_name else room.now), 0)
    room_is = free if pod_set.gpus else f"Nodes{without} have room"
    return Verdict(
        Reason.FRAGMENTED_CAPACITY,
        f"{asked}. {room_is}, but {where}",
        evidence,
        ("wait until jobs end", "ask for smaller pods or a wider topology level"),
    )


def _by_rules(verdict: Verdict, room: _Room) -> Verdict:
    """Add to the verdict how many nodes with room are closed by rules about other pods."""
    found = [(words, nodes) for words, nodes in room.by_rules.items() if nodes]
    if not found:
        return verdict
    most = sorted(found, key=lambda rule: (-rule[1], rule[0]))
    nodes = [f"{counted(n, 'node', 'nodes')} ({words})" for words, n in most[:MAX_TOLD]]
    text = f"Rules about other pods exclude nodes with room for it: {', '.join(nodes)}"
    return replace(
        verdict,
        summary=f"{verdict.summary}. {text}",
        evidence={**verdict.evidence, "closed_by_rules": most[0][1], "rule": most[0][0]},
    )


def _beside(verdict: Verdict, avoided_nodes: Mapping[str, float]) -> Verdict:
    """Add to the verdict the nodes that have room but are avoided because they rejected pods."""
    if not avoided_nodes:
        return verdict
    until, name = min((until, name) for name, until in avoided_nodes.items())
    at = f"until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC"
    text = f"Kant avoids {name} {at}: it rejected a pod of this job"
    wait = "wait until the node is no longer avoided"
    if len(avoided_nodes) > 1:
        text = f"Kant avoids {len(avoided_nodes)} nodes that rejected pods of this job, {name} {at}"
        wait = "wait until the nodes are no longer avoided"
    numbers: dict[str, int | float | str] = {
        "avoided_nodes": len(avoided_nodes),
        "avoided": name,
        "avoided_until": until,
    }
    return replace(
        verdict,
        summary=f"{verdict.summary}. {text}",
        evidence={**verdict.evidence, **numbers},
        remedies=(wait, *verdict.remedies),
    )


def _too_large(
    state: ClusterState,
    pod_set: PodSetSpec,
    room: _Room,
    level: str,
    asked: str,
    evidence: dict[str, int | float | str],
) -> Verdict:
    """Return the verdict on a job that empty nodes do not hold, or that has a pod too large."""
    nodes = len(room.admitting)
    evidence["possible_pods"] = room.empty
    barred = kept_out(state, pod_set)
    others = _remedies_of_constraints(state, pod_set, level, barred)
    parts = [PART_OF_GPU.search(model) for model in pod_set.gpu_models]
    if pod_set.is_share and parts and all(parts):
        text = f"{asked}; a MIG slice or a GPU that is shared already cannot be split"
        helps = ("ask for a whole one (gpu_milli 1000)", "ask for another GPU type")
        return Verdict(Reason.EXCEEDS_CAPACITY, text, evidence, helps)
    if not _shares_are_given(state, pod_set):
        text = (
            f"{asked}; no node with such GPUs can share one: its device plugin must advertise "
            "kant.io/gpu-milli"
        )
        helps = ("ask for whole GPUs", "ask an operator to install such a device plugin")
        return Verdict(Reason.EXCEEDS_CAPACITY, text, evidence, helps)
    if barred is not None:
        evidence |= barred.evidence()
    excess = None if room.empty else excess_of(pod_set, room.admitting)
    if excess is None:
        which = "only node" if nodes == 1 else f"{nodes} nodes"
        text = f"{asked}; no node may run such pods"
        if nodes:
            text = f"{asked}; the {which} that may run such pods would hold {room.empty} when empty"
        if barred is not None:
            text = f"{text}: {barred.text(_where(pod_set))}"
        remedies = ("ask for fewer or smaller pods", *others) if nodes else others
        return Verdict(Reason.EXCEEDS_CAPACITY, text, evidence, remedies)
    evidence |= excess.evidence
    have = ("node that may run such pods has", "nodes that may run such pods each have")
    text = (
        f"{asked}, with {excess.asked} {excess.words} per pod; the {counted(nodes, *have)} "
        f"{excess.left}"
    )
    return Verdict(Reason.EXCEEDS_CAPACITY, text, evidence, (excess.remedy, *others))


def _where(pod_set: PodSetSpec) -> str:
    """Name the kind of node that the set needs, in words for people."""
    if pod_set.gpus:
        return "node with such GPUs"
    return "node without GPUs" if pod_set.avoids_gpus else "node"


def _shares_are_given(state: ClusterState, pod_set: PodSetSpec) -> bool:
    """Whether any node gives shares of GPUs that the set accepts; True if it needs no share."""
    models = pod_set.gpu_models
    return not pod_set.is_share or any(
        node is not None and node.gives_shares and (not models or node.gpu_model in models)
        for node in state.facts
    )


def _room(
    state: ClusterState,
    job: JobRequest,
    failure: PlacementFailure,
    models: list[str],
    avoided_nodes: Mapping[str, float],
) -> _Room:
    """Work out the numbers over all pools that the pod set accepts; groups by the best pool."""
    pod_set = job.pod_sets[failure.pod_set]
    room = _Room()
    level = level_of(job, pod_set)
    bare = PodSetSpec(
        pod_set.name,
        pod_set.count,
        pod_set.gpus,
        gpu_milli=pod_set.gpu_milli,
        gpu_memory_mib=pod_set.gpu_memory_mib,
    )
    around = Around(state)
    closed = list(kept_from(around, pod_set))
    open_nodes = may_be(around, pod_set)
    empty, in_groups = together(job, pod_set), dict[str, int]()
    for model in models:
        pool = state.index.pools[model]
        slots = pool.layout.slot_array
        admitted = state.index.admitted(state, pool, pod_set)
        may = mask_of_nodes(open_nodes, slots) if closed else pool.layout.everything
        if not pod_set.anywhere:
            empty, in_groups = together(job, pod_set), {}
        avoided = rejected = 0
        for number, node, where, holds in empty_nodes(state, job, pod_set, pool, empty):
            room.admitting.append(node)
            empty.add(where, holds)
            slot = pool.layout.slots[number]
            if not admitted >> number & 1:
                continue
            if node.name in avoided_nodes:
                rejected |= 1 << number
            if node.name in failure.avoid:
                avoided |= 1 << number
            elif state.usable[slot]:
                room.usable_nodes += 1
                room.free += free_on(state, slot)
        one = job.gang or pod_set.anywhere
        room.empty = max(room.empty, empty.pods) if one else room.empty + empty.pods
        at_level = level_number(level, state.levels) if level else 0
        domains = pool.layout.hyper if at_level == HYPER else pool.layout.levels[at_level]
        for size, nodes in pool.layout.memory_sizes:
            milli = share_milli(size, pod_set)
            if not milli:
                continue
            least = (milli * BEYOND + share_beyond(size, pod_set)) * pod_set.gpus
            room.least = min(room.least or least, least)
            if rejected & nodes:
                would = PoolView(state, pool, pod_set, milli, rejected & nodes).capacity()[0]
                names = (state.names[pool.layout.slots[at]] for at in would.tolist())
                room.avoided_nodes.update({name: avoided_nodes[name] for name in names})
            nodes &= admitted & ~avoided
            for words, by_rule in closed:
                shut = nodes & mask_of_nodes(by_rule, slots)
                if shut:
                    holds = PoolView(state, pool, pod_set, milli, shut).capacity()[0].size
                    room.by_rules[words] = room.by_rules.get(words, 0) + holds
            nodes &= may
            view = PoolView(state, pool, pod_set, milli, nodes)
            at, pods = view.capacity()
            room.now += int(pods.sum())
            if pod_set.gpus:
                by_gpus = PoolView(state, pool, bare, milli, nodes).capacity()[1]
                room.by_gpus += int(by_gpus.sum())
            held = view.in_groups(at, pods, at_level)
            for group in held.nonzero()[0].tolist():
                key = domains.keys[group]
                in_groups[key] = in_groups.get(key, 0) + int(held[group])
        for key, has in in_groups.items():
            if has > room.widest:
                room.widest, room.widest_name = has, key
    return room


def _less_beside(pod_set: PodSetSpec) -> tuple[str, ...]:
    """Return the advice to request less of what the pod requests besides GPUs, if anything."""
    amounts = {"CPU": pod_set.cpu_milli, "memory": pod_set.memory_mib, "NICs": pod_set.nics}
    asked = [name for name, amount in {**amounts, **pod_set.extended}.items() if amount]
    return (f"ask for less of {', '.join(asked)} per pod",) if asked else ()


def _amount(pod_set: PodSetSpec) -> str:
    if pod_set.gpu_memory_mib:
        return f"{pod_set.gpu_memory_mib} MiB of a"
    return f"{pod_set.milli_per_pod / MILLI:g}"


def _remedies_of_constraints(
    state: ClusterState, pod_set: PodSetSpec, level: str, barred: KeptOut | None
) -> tuple[str, ...]:
    """Return remedies that would admit more nodes, or more pods per node."""
    remedies = []
    barriers = barred.barriers if barred is not None else ()
    kinds = {barrier.kind for barrier in barriers}
    if "label" in kinds:
        remedies.append("relax the node selector")
    if "affinity" in kinds:
        remedies.append("relax the node affinity")
    remedies += [f"tolerate the taint {it.name}" for it in barriers if it.kind == "taint"][:1]
    nodes = [node for node in state.facts if node is not None]
    if pod_set.is_share and any(node.devices and not node.gives_shares for node in nodes):
        remedies.append("ask for whole GPUs; nodes without shares have them, too")
    if pod_set.max_per_node is not None or pod_set.max_per_leaf is not None:
        remedies.append("allow more pods in a node or leaf")
    if level:
        remedies.append(f"ask for a wider network level than {level}, or for none")
    return tuple(remedies)
