"""A bound on a fleet's occupancy under any order: the work that has arrived so far.

Every job takes its GPUs on arrival. What the fleet cannot hold at once is made up for later, as GPU
time alone, on any GPUs. At every instant this has done as much work as any order, preemption or
move could have: none can do more than all jobs that have arrived ask for, nor more than the fleet
can from any instant on. Where this bound is not full no order can be, except with work that is lost
and repeated.
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

TENANT = ""  # of no particular tenant


def run(task: Task) -> Figures:
    """Return allocation and occupancy of the task's workload; figures that need places are left
    out."""
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
    """Yield (time, change in milli-GPU) as jobs would come and end if there were GPUs for all."""
    # Ends with their milli-GPU, and resubmissions, in order of time.
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
    """Yield (time, milli-GPU occupied from then on), also at the `marks`; end with the last of
    them."""
    asked, behind, now = 0, 0.0, 0.0  # `behind`: milli-GPU x seconds to make up for
    at, more = next(changes, (math.inf, 0))
    left = list(marks)
    while left:
        # When the deferred work has been made up for.
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
