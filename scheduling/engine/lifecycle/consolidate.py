"""Consolidation: replicas move so that fewer nodes are partly used (planned in paper 3.3.3).

A replica moves only where that alone makes one partly used node fewer: it is the last on its node,
or it fills all that is free on another. Only pods of preemptible inference jobs move, which lose no
work by it, one of a job at a time, and none of a job whose strategy is to spread.
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

# How many moves are made in a look.
MOVES_A_LOOK = 4


def consolidate(state: SchedulerState, search: MoveSearch) -> int:
    """Move replicas; how many were moved."""
    moves = 0
    while moves < MOVES_A_LOOK and (move := _next(state, search)) is not None:
        search.move(*move)
        moves += 1
    return moves


def _next(state: SchedulerState, search: MoveSearch) -> tuple[MovingPod, PodPlacement] | None:
    """A pod and its new place: from the emptiest node that gets rid of one, to the fullest that
    takes it."""
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
    """Where the pod had to go to make one partly used node fewer, the fullest node first."""
    last = pod.milli == source.used
    for free in (f for f in by_free if f >= pod.milli) if last else (pod.milli,):
        yield from (node for node in by_free.get(free, ()) if node is not source)
