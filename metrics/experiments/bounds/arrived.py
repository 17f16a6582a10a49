"""What bounds the occupancy of a fleet whatever the order: the work that has arrived until then.

Every job takes its GPUs when it comes; what the fleet cannot hold at once is made up for later, by
GPU time alone, on any GPUs. By every instant this has done as much as any order, preemption or move
could have: none does more by then than all jobs that had come ask for, nor more than the fleet
from any instant on. Where it is not full no order can be, but for work that is lost and done again.
"""

import math
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count

from metrics.experiments.bounds.undivided import on_one_machine
from metrics.experiments.runs import Figures, Task
from scheduling.engine.states import JobState
from scheduling.simulator.model import Arrival
from scheduling.simulator.observe import Observer
from scheduling.simulator.workload import HOUR

TENANT = ""  # nobody's in particular


def run(task: Task) -> Figures:
    """Allocation and occupancy of the task's workload; what needs places is left out."""
    return {**on_one_machine(task, _simulate), "wait_mean_s": {}, "jobs": None}


def _simulate(
    arrivals: Iterator[Arrival], observer: Observer, name: str, task: Task
) -> tuple[int, int]:
    machine = observer.nodes[name]
    stop, warm_up_until = task.hours * HOUR, task.warm_up_h * HOUR
    for at, level in _occupied(_demand(arrivals), machine.offered, (warm_up_until, stop)):
        observer.sample_until(at)
        observer.took(name, level - machine.allocated, at, TENANT)
        if at == warm_up_until:
            observer.end_warm_up(at)
    return 0, 0


def _demand(arrivals: Iterable[Arrival]) -> Iterator[tuple[float, int]]:
    """(when, GPU-milli more or less) as jobs would come and end if there were GPUs for all."""
    # What ends, by its GPU-milli, and what is submitted again, in order of time.
    later: list[tuple[float, int, int, Arrival | None]] = []
    number = count()

    def come(at: float, arrival: Arrival) -> tuple[float, int]:
        milli, ends = arrival.job.gpu_milli, at + arrival.duration_s
        heappush(later, (ends, next(number), milli, None))
        if arrival.ends is JobState.FAILED and arrival.resubmit_after_s is not None:
            back = ends + arrival.resubmit_after_s
            heappush(later, (back, next(number), 0, arrival.again(back)))
        return at, milli

    def until(end: float) -> Iterator[tuple[float, int]]:
        while later and later[0][0] <= end:
            at, _, milli, arrival = heappop(later)
            yield (at, -milli) if arrival is None else come(at, arrival)

    for arrival in arrivals:
        yield from until(arrival.submitted_at)
        yield come(arrival.submitted_at, arrival)
    yield from until(math.inf)


def _occupied(
    changes: Iterator[tuple[float, int]], capacity: int, marks: tuple[float, float]
) -> Iterator[tuple[float, int]]:
    """(when, GPU-milli occupied from then on), at the `marks` too; ends with the last of them."""
    asked, behind, now = 0, 0.0, 0.0  # `behind`: GPU-milli-seconds to be made up for
    at, more = next(changes, (math.inf, 0))
    left = list(marks)
    while left:
        # When what was put off is made up for.
        caught_up = now + behind / (capacity - asked) if behind and asked < capacity else None
        then = min(at, left[0], math.inf if caught_up is None else caught_up)
        behind = 0.0 if then == caught_up else max(0.0, behind + (asked - capacity) * (then - now))
        now = then
        if then == at:
            asked += more
            at, more = next(changes, (math.inf, 0))
        if then == left[0]:
            left.pop(0)
        yield now, capacity if behind or asked > capacity else asked
