"""Partly used nodes, the pods on them that may move now, and places for these on other nodes.

Consolidation and defragmentation share this: which pods nothing protects, and how a move is made. A
new place is booked at once; the pod starts there when it has left the old one.
"""

import math
from collections.abc import Callable, Iterator
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

# For how many pods one look tries to find a place on a node.
PLACES_TRIED = 32


class PartlyUsed(NamedTuple):
    """A partly used node, in GPU-milli; the emptiest sorts first."""

    used: int
    free: int
    name: str


class MovingPod(NamedTuple):
    """A pod that may move."""

    record: JobRecord
    where: tuple[int, int]  # pod set, ordinal
    place: PodPlacement

    @property
    def milli(self) -> int:
        return self.place.milli * len(self.place.devices)


def partly_used(state: SchedulerState) -> dict[str, tuple[int, list[PartlyUsed]]]:
    """Return by GPU model how many nodes with GPUs take pods, and which are partly used.

    A node is partly used if some but not all of its GPUs are.
    """
    cluster = state.cluster
    nodes, found = dict[str, int](), dict[str, list[PartlyUsed]]()
    for slot, node in enumerate(cluster.facts):
        available = cluster.available[slot]
        if node is None or not available or not cluster.usable[slot]:
            continue
        used, model = cluster.allocated[slot], node.gpu_model
        nodes[model] = nodes.get(model, 0) + 1
        if 0 < used < available:
            found.setdefault(model, []).append(PartlyUsed(used, available - used, node.name))
    return {model: (nodes[model], partly) for model, partly in found.items()}


def is_replica(record: JobRecord) -> bool:
    """Return whether the job's pods are replicas, which lose no work when they move."""
    return record.job.kind is JobKind.INFERENCE and not record.job.gang


class MoveSearch:
    """One look for moves.

    `tried`: how many places were tried. `min_runtime_ends_at`: when the first minimum run time ends
    of a pod that could move otherwise.
    """

    def __init__(self, state: SchedulerState, out: Outcome) -> None:
        self._state = state
        self._out = out
        self._just_started = out.just_started
        self._reserved = {node for head in state.reservations() for node in head.nodes}
        self._reserved.update(*[r.turn.nodes for r in state.turns.values() if r.turn is not None])
        self._names = frozenset(state.cluster.slot_of)
        self.tried = 0
        self.min_runtime_ends_at = math.inf

    @property
    def is_over(self) -> bool:
        return self.tried >= PLACES_TRIED

    def on(self, node: str, may_move: Callable[[JobRecord], bool]) -> Iterator[MovingPod]:
        """Yield the pods that may leave the node now, those that came last first."""
        state, found = self._state, []
        for job_id, *where in state.cluster.pods_on(node):
            record, pod = state.jobs[job_id], (where[0], where[1])
            if pod not in record.pods or not (may_move(record) and self._is_unprotected(record)):
                continue
            since = record.placed_since(pod)
            min_runtime_ends_at = state.runs_from(record, (pod,)) + state.min_runtime_of(record.job)
            if min_runtime_ends_at <= self._out.now:
                found.append((-since, job_id, -pod[0], -pod[1]))
            else:
                self.min_runtime_ends_at = min(self.min_runtime_ends_at, min_runtime_ends_at)
        for _, job_id, *last_first in sorted(found):
            pod = (-last_first[0], -last_first[1])
            place = state.cluster.held_by(job_id)[pod].placement
            yield MovingPod(state.jobs[job_id], pod, place)

    def _is_unprotected(self, record: JobRecord) -> bool:
        job, state = record.job, self._state
        return (
            job.preemptible
            and record.started_at is not None
            and job.id not in self._just_started
            and record.nomination is None
            and not record.leaving
            and not any(record.missing())
            and (record.disruptions is None or record.disruptions > 0)
            and not prepare(job, state.strategy_of(job), None, state.cluster.levels).how.spreads
        )

    def place(self, pod: MovingPod, target: str) -> PodPlacement | None:
        """Return the place that the job's strategy finds for the pod on this node, or None."""
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

    def move(self, pod: MovingPod, place: PodPlacement, cost_gpu_s: float = 0.0) -> None:
        """Take the pod from its place and hold the new one for it.

        A pod that is no replica makes its whole job start anew there.
        """
        record, state = pod.record, self._state
        whole = not is_replica(record)
        awaited = state.evict(record, (pod.where,), whole=whole)
        awaited |= book(state, record.job, (place,))
        hold_until_gone(state, record, (place,), awaited, self._out)
        record.moved(cost_gpu_s)
        move = Moved(record.job.id, *pod.where, pod.place.node, place.node, whole, cost_gpu_s)
        self._out.moved.append(move)
