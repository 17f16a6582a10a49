"""Consolidation: replicas move so that fewer nodes are partly used (planned in paper 3.3.3).

A replica moves only where that alone makes one partly used node fewer: it is the last on its node,
or it fills all that is free on another. Its new place is booked at once; it starts there when its
old one is empty. Only pods of preemptible inference jobs move, which lose no work by it, one of a
job at a time, and none of a job whose strategy is to spread.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from scheduling.engine.admission.start import book, hold_until_gone
from scheduling.engine.decisions import Moved
from scheduling.engine.outcome import Outcome
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.placement.plan import prepare
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.state import SchedulerState
from scheduling.engine.statement import Statement
from scheduling.engine.types import JobKind, PodPlacement

# How often is looked for moves, how many are made then, and how many places are tried for them.
LOOK_S = 60.0
MOVES_A_LOOK = 4
PLACES_TRIED = 32


class _Node(NamedTuple):
    """A partly used node, in GPU-milli; the emptiest first."""

    used: int
    free: int
    name: str


class _Pod(NamedTuple):
    """A pod that may move."""

    record: JobRecord
    where: tuple[int, int]  # pod set, ordinal
    place: PodPlacement

    @property
    def milli(self) -> int:
        return self.place.milli * len(self.place.devices)


def consolidate(state: SchedulerState, out: Outcome) -> bool:
    """Move replicas, if the policy says so and it is time to look; whether any was moved."""
    look, now = state.look, out.now
    if not state.policy.consolidation:
        return False
    if look.seen == state.memo.occupied and now < look.min_runtime_ends_at:
        return False
    if now < look.next_at:
        state.wake_at(look.next_at)
        return False
    search = _Search(state, out)
    moves = 0
    while moves < MOVES_A_LOOK and (move := search.next()) is not None:
        _carry_out(state, *move, out)
        moves += 1
    full = moves == MOVES_A_LOOK or search.tried == PLACES_TRIED
    look.seen, look.next_at = state.memo.occupied, now + LOOK_S
    look.min_runtime_ends_at = look.next_at if full else search.min_runtime_ends_at
    if look.min_runtime_ends_at < math.inf:
        state.wake_at(max(look.min_runtime_ends_at, look.next_at))
    return moves > 0


def _carry_out(state: SchedulerState, pod: _Pod, place: PodPlacement, out: Outcome) -> None:
    """Take the pod from its place and hold the new one for it."""
    record = pod.record
    awaited = state.evict(record, (pod.where,), whole=False)
    awaited |= book(state, record.job, (place,))
    hold_until_gone(state, record, (place,), awaited, out)
    out.moved.append(Moved(record.job.id, *pod.where, pod.place.node, place.node))


class _Search:
    """Finds one move after the other. `ripe_at`: when the time of protection of a pod ends that
    would be tried else; `tried`: places for which the engine was asked."""

    def __init__(self, state: SchedulerState, out: Outcome) -> None:
        self._state = state
        self._now = out.now
        self._just_started = out.just_started
        self._reserved = {node for head in state.reservations() for node in head.nodes}
        self._reserved.update(*[r.turn.nodes for r in state.turns.values() if r.turn is not None])
        self._names = frozenset(state.cluster.slot_of)
        self.tried = 0
        self.min_runtime_ends_at = math.inf

    def next(self) -> tuple[_Pod, PodPlacement] | None:
        """A pod and its new place: from the emptiest node that gets rid of one, to the fullest
        that takes it."""
        for nodes in self._partly_used().values():
            by_free: dict[int, list[_Node]] = {}
            for node in sorted(nodes, key=lambda node: (node.free, node.name)):
                by_free.setdefault(node.free, []).append(node)
            for source in sorted(nodes):
                for pod in self._movable(source):
                    for target in _worth(pod, source, by_free):
                        if self.tried == PLACES_TRIED:
                            return None
                        place = self._place(pod, target.name)
                        if place is not None:
                            return pod, place
        return None

    def _partly_used(self) -> dict[str, list[_Node]]:
        """By GPU model, the nodes of which some GPUs are used, and not all."""
        cluster, found = self._state.cluster, dict[str, list[_Node]]()
        for slot, node in enumerate(cluster.facts):
            used, available = cluster.allocated[slot], cluster.available[slot]
            if node is not None and cluster.usable[slot] and 0 < used < available:
                here = _Node(used, available - used, node.name)
                found.setdefault(node.gpu_model, []).append(here)
        return found

    def _movable(self, source: _Node) -> Iterator[_Pod]:
        """Pods that may leave the node now, who came last first."""
        state, found = self._state, []
        for job_id, *where in state.cluster.pods_on(source.name):
            record, pod = state.jobs[job_id], (where[0], where[1])
            if pod not in record.pods or not self._may_move(record):
                continue
            since = record.placed_since(pod)
            min_runtime_ends_at = state.runs_from(record, (pod,)) + state.min_runtime_of(record.job)
            if min_runtime_ends_at <= self._now:
                found.append((-since, job_id, -pod[0], -pod[1]))
            else:
                self.min_runtime_ends_at = min(self.min_runtime_ends_at, min_runtime_ends_at)
        for _, job_id, *last_first in sorted(found):
            pod = (-last_first[0], -last_first[1])
            place = state.cluster.held_by(job_id)[pod].placement
            yield _Pod(state.jobs[job_id], pod, place)

    def _may_move(self, record: JobRecord) -> bool:
        job, state = record.job, self._state
        return (
            job.kind is JobKind.INFERENCE
            and job.preemptible
            and not job.gang
            and record.started_at is not None
            and job.id not in self._just_started
            and record.nomination is None
            and not record.leaving
            and not any(record.missing())
            and (record.disruptions is None or record.disruptions > 0)
            and not prepare(job, state.strategy_of(job), None, state.cluster.levels).how.spreads
        )

    def _place(self, pod: _Pod, target: str) -> PodPlacement | None:
        """The place that its strategy finds for the pod on this node, if it may be there."""
        record, state, at = pod.record, self._state, pod.where[0]
        if target in self._reserved or target in record.avoided_nodes:
            return None
        self.tried += 1
        model = (record.pods[pod.where][0],)
        sets = record.job.pod_sets
        job = replace(
            record.job, pod_sets=(*sets[:at], replace(sets[at], gpu_models=model), *sets[at + 1 :])
        )
        statement = Statement(state.cluster)
        statement.evict((job.id, *pod.where))
        placed = place_job(
            statement,
            job,
            strategy=state.strategy_of(job),
            counts=tuple(int(number == at) for number in range(len(sets))),
            avoid=self._names - {target},
        )
        statement.rollback()
        if isinstance(placed, PlacementFailure) or len(placed) != 1:
            return None
        found = placed[0]._replace(ordinal=pod.where[1])
        return found if found.milli == pod.place.milli else None


def _worth(pod: _Pod, source: _Node, by_free: dict[int, list[_Node]]) -> Iterator[_Node]:
    """Where the pod had to go to make one partly used node fewer, the fullest node first."""
    last = pod.milli == source.used
    for free in (f for f in by_free if f >= pod.milli) if last else (pod.milli,):
        yield from (node for node in by_free.get(free, ()) if node is not source)
