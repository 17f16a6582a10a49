"""Jobs that may come while others wait: like those that came before, in the same bursts.

What comes in an hour is like what came last; what comes in a week is like any day of the last
weeks. Jobs come in bursts on every scale, from minutes to days. Drawn in many short pieces, bursts
would average out over days; drawn from the last hours alone, a burst would seem to go on for ever.
Both would make bands of starts behind many jobs far too narrow. Pieces of the past are therefore
drawn one after the other, each longer than the one before and from a past that is longer by as
much.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from numpy.random import Generator

from scheduling.engine.types import JobRequest

KEPT = 2000
TOGETHER = 25  # jobs in the first piece, which come one after the other as they did
LONGER = 1.5  # the factor by which each piece is longer than the one before
AMONG = 16  # a piece is drawn from the last jobs, this many times its length
PREFIX = "~"  # of the ids of jobs that are only imagined


class Coming:
    """The last jobs that were submitted, in order of time, with their names."""

    def __init__(self) -> None:
        self._last: deque[tuple[JobRequest, str]] = deque(maxlen=KEPT)

    def came(self, job: JobRequest, name: str = "") -> None:
        self._last.append((job, name))

    def after(self, now: float, dice: Generator) -> Iterator[tuple[JobRequest, str]]:
        """Yield jobs and their names as they may come from `now` on, without end.

        Yields nothing if fewer than two jobs have come so far.
        """
        last = list(self._last)
        if len(last) < 2 or now <= last[0][0].submitted_at:
            return
        # The newest job is followed by a pause in which nobody came, and then by the oldest again.
        pause = max(0.0, now - last[-1][0].submitted_at)
        at, number, piece = now - pause * float(dice.random()), 0, float(TOGETHER)
        while True:
            begin = max(0, len(last) - int(AMONG * piece))
            index = int(dice.integers(begin, len(last)))
            for _ in range(min(int(piece), max(1, len(last) // 2))):
                job, name = last[index]
                if index > begin:
                    at += max(0.0, job.submitted_at - last[index - 1][0].submitted_at)
                else:
                    at += pause
                if at >= now:
                    number += 1
                    yield replace(
                        job, id=f"{PREFIX}{number}", submitted_at=at, after=(), after_ok=(),
                        array="",
                    ), name  # fmt: skip
                index = index + 1 if index + 1 < len(last) else begin
            piece = min(piece * LONGER, KEPT)
