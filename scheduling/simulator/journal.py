"""What happened in a run, row by row, for those who want to compute figures of their own.

Memory grows by every placement, so a journal is kept only on request. Times are seconds.
"""

from dataclasses import dataclass, field

from scheduling.engine.types import Node, PodPlacement

PREEMPTED, MOVED, REQUEUED = "preempted", "moved", "requeued"
SENT = "sent to"  # followed by a cluster


@dataclass(slots=True)
class Stay:
    """A pod's place from `begin` until `end`; NaN = to the end of the run.

    `lost`: the place was taken from the pod, which waits again or has moved to another place.
    """

    row: int
    place: PodPlacement
    begin: float
    end: float = float("nan")
    lost: bool = False


@dataclass(slots=True)
class RunJournal:
    """`row` is always the job's row in the observer's columns.

    `losses`: (row, place, begin, end) of what was held and served nothing; taken back if `end` is
    before `begin`. `nodes`: each node at its first instant and at every change. `events`: (instant,
    row, what) of jobs that were preempted, moved, requeued, or sent to a cluster.
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
        """Note that the place which the pod gave back last, or gives back now, was lost."""
        self._last[row, pod_set, ordinal].lost = True
