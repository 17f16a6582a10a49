"""The future of a run: events in a heap, in a total order, fed from arrivals and faults."""

from collections.abc import Iterable, Iterator
from heapq import heappush
from typing import Any, Final

from scheduling.simulator.model import Arrival, HardwareFault
from scheduling.simulator.run import TraceError

# At one instant ends go first, so that what arrives finds the freed places.
END: Final = 0
GONE: Final = 1
REPAIR: Final = 2
FAULT: Final = 3
CHANGE: Final = 4
GIVE_UP: Final = 5
ARRIVAL: Final = 6
CYCLE: Final = 7
WARM: Final = 8
RUN: Final = 9
LOOK: Final = 10
SAVE: Final = 11


class Agenda:
    """`heap`: the events as (time, kind, sequence, payload).

    Of `arrivals` and of `faults`, both in order of time, only the next one is in the heap. They may
    be endless or too large for memory.
    """

    def __init__(
        self, start: float, arrivals: Iterable[Arrival], faults: Iterable[HardwareFault]
    ) -> None:
        self.heap: list[tuple[float, int, int, Any]] = []
        self.arriving = 0  # how many arrivals are in the heap
        self._sequence = self._failing = 0
        self._arrivals: Iterator[Arrival] = iter(arrivals)
        self._faults: Iterator[HardwareFault] = iter(faults)
        self._last_arrival = start
        self._last_fault = float("-inf")

    def push(self, at: float, kind: int, payload: Any) -> None:
        self._sequence += 1
        self.arriving += kind == ARRIVAL
        heappush(self.heap, (at, kind, self._sequence, payload))

    @property
    def rests(self) -> bool:
        """Whether nothing is to come except node faults, which help no waiting job."""
        return len(self.heap) == self._failing

    def next_arrival(self, now: float) -> None:
        """Push the next arrival; raise TraceError if it is impossible."""
        arrival = next(self._arrivals, None)
        if arrival is None:
            return
        submitted_at = arrival.submitted_at
        if submitted_at < self._last_arrival:
            raise TraceError(
                f"job {arrival.job.id}: submitted at {submitted_at:g} s, before its "
                f"predecessor at {self._last_arrival:g} s; sort the trace by submission time"
            )
        if not arrival.duration_s >= 0:
            raise TraceError(f"job {arrival.job.id}: duration {arrival.duration_s} s is negative")
        self._last_arrival = submitted_at
        self.push(max(now, submitted_at + arrival.heard_after_s), ARRIVAL, (arrival,))

    def next_fault(self) -> None:
        """Push the next fault; raise TraceError if it is earlier than the one before."""
        fault = next(self._faults, None)
        self._failing = int(fault is not None)
        if fault is None:
            return
        if fault.at < self._last_fault:
            raise TraceError(
                f"node {fault.node}: fails at {fault.at:g} s, before the last fault at "
                f"{self._last_fault:g} s; sort the faults by time"
            )
        self._last_fault = fault.at
        self.push(fault.at, FAULT, fault)
