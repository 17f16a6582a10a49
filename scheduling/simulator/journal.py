"""What happened in a run, row by row, for who wants to compute its figures himself.

Memory grows by every placement: kept only where it is asked for. Times are seconds.
"""

from dataclasses import dataclass, field

from scheduling.engine.types import Node, PodPlacement

PREEMPTED, MOVED, REQUEUED = "preempted", "moved", "requeued"
SENT = "sent to"  # a cluster, of several


@dataclass(slots=True)
class Stay:
    """A pod's place from `begin` until `end`, NaN = to the end of the run. `lost`: it was taken
    from the pod, which waits again or has gone to another one."""

    row: int
    place: PodPlacement
    begin: float
    end: float = float("nan")
    lost: bool = False


@dataclass(slots=True)
class RunJournal:
    """`row` is everywhere the job's row in the observer's columns.

    `losses`: (row, place, begin, end) of what was held and served nothing; taken back where `end`
    is before `begin`. `nodes`: each node at its first instant and at every change. `events`:
    (instant, row, what), of a job that was preempted, moved or requeued, or sent to a cluster.
    """

    stays: list[Stay] = field(default_factory=list)
    losses: list[tuple[int, PodPlacement, float, float]] = field(default_factory=list)
    nodes: list[tuple[float, Node]] = field(default_factory=list)
    events: list[tuple[float, int, str]] = field(default_factory=list)
    _last: dict[tuple[int, int, int], Stay] = field(default_factory=dict)

    def take(self, row: int, p: PodPlacement, now: float) -> None:
        stay = Stay(row, p, now)
        self.stays.append(stay)
        self._last[row, p.pod_set, p.ordinal] = stay

    def give_back(self, row: int, pod_set: int, ordinal: int, now: float) -> None:
        self._last[row, pod_set, ordinal].end = now

    def lose(self, row: int, pod_set: int, ordinal: int) -> None:
        """The place that was given back last, or is given back now, is missed."""
        self._last[row, pod_set, ordinal].lost = True
