"""Bounds on the fragmentation of an inference cluster, for any placement of its replicas.

Two marks next to a study's policies. Floor: every replica may move at every instant, so at most one
node is partly used. Foresight: no replica moves, but each one's end is known when it is placed, and
it joins the node whose partly used time grows least. No policy of the engine knows the ends;
getting below foresight requires moving replicas.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from scheduling.simulator.model import Arrival
from scheduling.simulator.workload import HOUR

NODE_MILLI = 8000


class _BusyNode:
    """Free milli-GPU, and the ends of what runs in seconds."""

    __slots__ = ("ends", "free")

    def __init__(self) -> None:
        self.free = NODE_MILLI
        self.ends: list[float] = []

    def growth(self, milli: int, now: float, end: float) -> float:
        """Return by how many seconds its partly used time grows: later ends, less time while
        full."""
        last = max(self.ends, default=now)
        grown = max(0.0, end - last)
        if milli == self.free:
            grown -= min(end, min(self.ends, default=end)) - now
        return grown


def marks(
    arrivals: Sequence[Arrival], nodes: int, *, hours: float, warm_up_h: float
) -> dict[str, float]:
    """Return `gfr_floor` and `gfr_foresight` (0..1), as means over time after the warm-up.

    Nodes have 8 GPUs. Fractions of a GPU are packed as if they could span GPUs, which can only
    lower the marks. What fits nowhere waits, in order of submission.
    """
    fleet = [_BusyNode() for _ in range(nodes)]
    running: list[tuple[float, int, int]] = []  # end, node, milli
    waiting: list[tuple[int, float]] = []  # milli, seconds to run
    floor = partly = 0.0
    last, stop = warm_up_h * HOUR, hours * HOUR
    used = fragmented = 0
    for now, pods in _instants(arrivals, running, stop):
        if now > last:
            floor += (used % NODE_MILLI > 0) * (now - last)
            partly += fragmented * (now - last)
            last = now
        while running and running[0][0] <= now:
            end, number, milli = heappop(running)
            fleet[number].free += milli
            fleet[number].ends.remove(end)
        waiting = _placed(waiting + pods, fleet, running, now)
        used = sum(NODE_MILLI - n.free for n in fleet)
        fragmented = sum(0 < n.free < NODE_MILLI for n in fleet)
    span = (stop - warm_up_h * HOUR) * nodes
    return {"gfr_floor": floor / span, "gfr_foresight": partly / span}


def _instants(
    arrivals: Sequence[Arrival], running: list[tuple[float, int, int]], stop: float
) -> Iterable[tuple[float, list[tuple[int, float]]]]:
    """Yield (time, arriving replicas) for every instant at which something happens, and for the
    last."""
    at = 0
    while True:
        now = min(
            arrivals[at].submitted_at if at < len(arrivals) else stop,
            running[0][0] if running else stop,
        )
        if now >= stop:
            yield stop, []
            return
        pods: list[tuple[int, float]] = []
        while at < len(arrivals) and arrivals[at].submitted_at <= now:
            for pod_set in arrivals[at].job.pod_sets:
                pods += [(pod_set.milli_per_pod, arrivals[at].duration_s)] * pod_set.count
            at += 1
        yield now, pods


def _placed(
    pods: list[tuple[int, float]],
    fleet: Sequence[_BusyNode],
    running: list[tuple[float, int, int]],
    now: float,
) -> list[tuple[int, float]]:
    """Place what fits; return the rest."""
    rest: list[tuple[int, float]] = []
    for milli, seconds in pods:
        end = now + seconds
        fits = [
            (node.growth(milli, now, end), node.free, number)
            for number, node in enumerate(fleet)
            if node.free >= milli
        ]
        if not fits:
            rest.append((milli, seconds))
            continue
        number = min(fits)[2]
        fleet[number].free -= milli
        fleet[number].ends.append(end)
        heappush(running, (end, number, milli))
    return rest
