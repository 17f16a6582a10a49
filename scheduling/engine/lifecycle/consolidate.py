"""Consolidation: move replicas so that fewer nodes are partly used (planned in paper 3.3.3).

A replica moves only if that move alone leaves one partly used node fewer: it is the last pod on its
node, or it fills all that is free on the other. Only pods of preemptible inference jobs move,
because they lose no work, one per job at a time, and none of a job whose strategy spreads.
"""

from collections.abc import Iterator

from scheduling.engine.lifecycle.movable import (
    MoveSearch,
    MovingPod,
    PartlyUsed,
    is_replica,
    partly_used,
)
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import PodPlacement

# The most moves in one look.
MOVES_A_LOOK = 4


def consolidate(state: SchedulerState, search: MoveSearch) -> int:
    """Move replicas; return how many were moved."""
    moves = 0
    while moves < MOVES_A_LOOK and (move := _next(state, search)) is not None:
        search.move(*move)
        moves += 1
    return moves


def _next(state: SchedulerState, search: MoveSearch) -> tuple[MovingPod, PodPlacement] | None:
    """Return a pod and its new place.

    The pod comes from the emptiest node that can lose one, and goes to the fullest that takes it.
    """
    for _, nodes in partly_used(state).values():
        by_free: dict[int, list[PartlyUsed]] = {}
        for node in sorted(nodes, key=lambda node: (node.free, node.name)):
            by_free.setdefault(node.free, []).append(node)
        for source in sorted(nodes):
            for pod in search.on(source.name, is_replica):
                for target in _worth(pod, source, by_free):
                    if search.is_over:
                        return None
                    place = search.place(pod, target.name)
                    if place is not None:
                        return pod, place
    return None


def _worth(
    pod: MovingPod, source: PartlyUsed, by_free: dict[int, list[PartlyUsed]]
) -> Iterator[PartlyUsed]:
    """Yield the nodes where the pod would leave one partly used node fewer, the fullest first."""
    last = pod.milli == source.used
    for free in (f for f in by_free if f >= pod.milli) if last else (pod.milli,):
        yield from (node for node in by_free.get(free, ()) if node is not source)
