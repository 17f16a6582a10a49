"""Jobs that may come while others wait: like those that came before, in the same bursts.

What comes in an hour is like what came last, what comes in a week is like any day of the last
weeks. Jobs come in bursts on every scale, of minutes as of days. Drawn in many short pieces bursts
average out over days, and drawn from the last hours alone a burst seems to go on for ever: both
make bands of starts behind many jobs far too narrow. So pieces of what came are drawn one after the
other, each longer than the one before, and each from as much longer a past.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from numpy.random import Generator

from scheduling.engine.types import JobRequest

KEPT = 2000
TOGETHER = 25  # so many that came after one another come so again, first
LONGER = 1.5  # times as many in each next piece
AMONG = 16  # a piece is one of the last so many times as many
PREFIX = "~"  # of the ids of jobs that are only thought of


class Coming:
    """The last jobs that were submitted, in order of time, with their names."""

    def __init__(self) -> None:
        self._last: deque[tuple[JobRequest, str]] = deque(maxlen=KEPT)

    def came(self, job: JobRequest, name: str = "") -> None:
        self._last.append((job, name))

    def after(self, now: float, dice: Generator) -> Iterator[tuple[JobRequest, str]]:
        """Jobs and their names as they may come from `now` on, without end; none where fewer
        than two came so far."""
        last = list(self._last)
        if len(last) < 2 or now <= last[0][0].submitted_at:
            return
        # What follows the newest is that nobody has come since, and then the first of the past.
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
