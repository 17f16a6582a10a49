"""A bound on waits under backfill with a reservation for the first waiting job, for any placement.

EASY backfill (Lifka, *The ANL/IBM SP scheduling system*, 1995) on one machine with all GPUs of the
fleet. The first job in the queue that does not fit starts, at the latest, when enough running jobs
have ended as declared. Jobs behind it may go first if they will have ended by then as declared, or
take only what it leaves.
"""

import math
from bisect import insort
from typing import Any

from metrics.experiments.bounds.undivided import Draw, OneMachine, QueuedJob, on_one_machine
from metrics.experiments.runs import Figures, Task


def run(task: Task, draw: Draw) -> Figures:
    """Run the task's arrivals, which declare their run times, on one machine."""
    return on_one_machine(task, lambda *given: Easy(*given).run(), draw)


class Easy(OneMachine):
    """The queue of one machine under backfill."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._running: list[tuple[float, int, int]] = []  # declared end, job's row, GPU-milli

    def came(self, one: QueuedJob, now: float) -> None:
        insort(self.queue, one)
        self.serve(now)

    def serve(self, now: float) -> None:
        left: list[QueuedJob] = []
        starts_at, spare = math.inf, 0
        for one in self.queue:
            in_time = _declared_end(one, now) <= starts_at
            if one.milli > self.free or not (in_time or one.milli <= spare):
                if not left:
                    starts_at, spare = self._reserved(one, now)
                left.append(one)
                continue
            if not in_time:
                spare -= one.milli
            self.start(one, now)
        self.queue = left

    def start(self, one: QueuedJob, now: float) -> None:
        super().start(one, now)
        insort(self._running, (_declared_end(one, now), one.row, one.milli))

    def ended(self, one: QueuedJob, now: float) -> None:
        self._running = [running for running in self._running if running[1] != one.row]
        super().ended(one, now)

    def _reserved(self, head: QueuedJob, now: float) -> tuple[float, int]:
        """Return when enough is free for the head, and the milli-GPU that it leaves then."""
        free = self.free
        for end, _, milli in self._running:
            free += milli
            if free >= head.milli:
                return max(end, now), free - head.milli
        return math.inf, 0


def _declared_end(one: QueuedJob, now: float) -> float:
    declared = one.arrival.job.declared_s
    return math.inf if declared is None else now + declared
