"""One heap of timers for everything that happens later: a hundred thousand pods, one alarm."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

# Callbacks run in one go before requests get their turn.
BATCH = 200


class Timers:
    """Callbacks by due time (seconds since the epoch, by `clock`)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_due = 0.0

    def at(self, due: float, callback: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._heap, (due, next(self._order), callback, args))
        if self._alarm is None or due < self._alarm_due:
            self._arm()

    def after(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        self.at(self._clock() + delay_s, callback, *args)

    def soon(self, delay_s: float, act: Callable[[], None]) -> Callable[[], None]:
        """Return a function that runs `act` after the delay, once for all calls in between."""
        waits = False

        def run() -> None:
            nonlocal waits
            waits = False
            act()

        def wake() -> None:
            nonlocal waits
            if not waits:
                waits = True
                self.after(delay_s, run)

        return wake

    def run_due(self, limit: int | None = None) -> int:
        """Run callbacks that are due, at most `limit`; return how many ran."""
        now = self._clock()
        done = 0
        while self._heap and self._heap[0][0] <= now and done != limit:
            _, _, callback, args = heapq.heappop(self._heap)
            done += 1
            callback(*args)
        return done

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run callbacks on `loop` by themselves from now on."""
        self._loop = loop
        self._arm()

    def stop(self) -> None:
        self._loop = None
        if self._alarm:
            self._alarm.cancel()
        self._heap.clear()

    def _arm(self) -> None:
        if self._loop is None:
            return
        if self._alarm:
            self._alarm.cancel()
            self._alarm = None
        if self._heap:
            self._alarm_due = self._heap[0][0]
            delay = max(0.0, self._alarm_due - self._clock())
            self._alarm = self._loop.call_later(delay, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        try:
            self.run_due(BATCH)
        finally:
            if self._alarm is None:
                self._arm()
