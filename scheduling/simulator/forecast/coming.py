"""Jobs that may come while others wait: like those that came last, in the same bursts."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from numpy.random import Generator

from scheduling.engine.types import JobRequest

KEPT = 400
TOGETHER = 25  # so many that came after one another come so again
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
        if len(last) < 2:
            return
        begun = last[0][0].submitted_at
        # What follows the newest is that nobody has come since, and then the first of all.
        pause = max(0.0, now - last[-1][0].submitted_at)
        if now <= begun:
            return
        at, number = now - pause * float(dice.random()), 0
        while True:
            index = int(dice.integers(0, len(last)))
            for _ in range(TOGETHER):
                job, name = last[index]
                before = last[index - 1][0].submitted_at if index else job.submitted_at - pause
                at += max(0.0, job.submitted_at - before)
                if at >= now:
                    number += 1
                    yield replace(
                        job, id=f"{PREFIX}{number}", submitted_at=at, after=(), after_ok=(),
                        array="",
                    ), name  # fmt: skip
                index = (index + 1) % len(last)
