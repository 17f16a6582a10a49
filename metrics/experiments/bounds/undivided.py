"""Bounds on allocation and waits in best-effort order, for any placement.

All GPUs of the fleet are in one machine: a job starts as soon as enough are free, in the order of
the queue, and nothing is ever left over in pieces. Quotas are ignored: where every tenant may
borrow everything idle, they refuse nobody for whom GPUs are free. One class of jobs may wait less
under a placement that leaves holes that only these jobs can use; then others wait longer.
"""

import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

from metrics.experiments.runs import Figures, Task, drawn, figures
from metrics.simulate.inputs import fleet_of
from scheduling.engine.queue.order import OrderKey, order_key
from scheduling.engine.states import JobState
from scheduling.engine.types import Device, Node
from scheduling.simulator import workload
from scheduling.simulator.model import Arrival
from scheduling.simulator.nodes import engine_nodes
from scheduling.simulator.observe import Observer
from scheduling.simulator.run import RunOutcome
from scheduling.simulator.workload import HOUR

END, ARRIVAL = 0, 1  # ends at an instant come before arrivals


class QueuedJob(NamedTuple):
    """A job in the queue, ordered by its unique key."""

    key: OrderKey
    milli: int
    arrival: Arrival
    row: int


# Processes arrivals up to the task's end and reports to the observer what is taken of the machine
# of that name. Returns the number of events and of jobs that still wait.
Simulate = Callable[[Iterator[Arrival], Observer, str, Task], tuple[int, int]]
# A task's arrivals for this many GPUs, on nodes like this one.
Draw = Callable[[Task, int, Node], Iterable[Arrival]]


def run(task: Task) -> Figures:
    """Run the task's workload on one machine."""
    return on_one_machine(task, lambda *given: OneMachine(*given).run())


def on_one_machine(task: Task, simulate: Simulate, draw: Draw = drawn) -> Figures:
    """Return figures without GFR and JTTED, which do not apply to one machine."""
    fleet = fleet_of(task.fleet)
    first = engine_nodes(fleet)[0]
    machine = replace(first, devices=tuple(Device(i) for i in range(fleet.gpus)))
    shares = workload.StreamShares()
    arrivals = shares.watch(iter(draw(task, fleet.gpus, first)))
    observer = Observer(0.0, task.settings.sample_s)
    observer.node_changed(machine, 0.0)
    cpu = time.process_time()
    events, waiting = simulate(arrivals, observer, machine.name, task)
    stop = task.hours * HOUR
    outcome = RunOutcome(
        observer=observer,
        pools=dict(observer.finish(stop)),
        ended_at=stop,
        events=events,
        cycles=events,
        partial=False,
        never={},
        waiting=waiting,
    )
    return {
        **figures(outcome, [machine], warm_up_until=task.warm_up_h * HOUR),
        "gfr_mean": None,
        "idle_nodes_mean": None,
        "jtted_nodes": {},
        "jtted_groups": {},
        "offered_load": shares.figures(fleet.gpus, task.hours).get("load"),
        "cpu_seconds": time.process_time() - cpu,
    }


class OneMachine:
    """The queue of one machine, in best-effort order: every job that fits starts."""

    def __init__(
        self, arrivals: Iterator[Arrival], observer: Observer, name: str, task: Task
    ) -> None:
        self.free = observer.nodes[name].offered
        self.queue: list[QueuedJob] = []
        self._arrivals, self._observer, self._name = arrivals, observer, name
        self._warm_up_s, self._stop = task.warm_up_h * HOUR, task.hours * HOUR
        self._heap: list[tuple[float, int, int, Any]] = []
        self._events = 0

    def run(self) -> tuple[int, int]:
        """Run to the task's end; return the number of events and of jobs that still wait."""
        observer, heap = self._observer, self._heap
        self._next_arrival()
        warm = not self._warm_up_s
        while heap and heap[0][0] <= self._stop:
            now, kind, _, payload = heappop(heap)
            if not warm and now >= self._warm_up_s:
                observer.sample_until(self._warm_up_s)
                observer.end_warm_up(self._warm_up_s)
                warm = True
            observer.sample_until(now)
            if kind == ARRIVAL:
                arrival, again = payload
                if not again:
                    self._next_arrival()
                job = arrival.job
                self.came(
                    QueuedJob(order_key(job), job.gpu_milli, arrival, observer.jobs.add(job)), now
                )
            else:
                self.ended(payload, now)
        return self._events, len(self.queue)

    def came(self, one: QueuedJob, now: float) -> None:
        """Add a job; no other job fits that did not before."""
        if one.milli <= self.free:
            self.start(one, now)
        else:
            insort(self.queue, one)

    def serve(self, now: float) -> None:
        """Start every job that may start, in the order of the queue."""
        left = []
        for one in self.queue:
            if one.milli <= self.free:
                self.start(one, now)
            else:
                left.append(one)
        self.queue = left

    def start(self, one: QueuedJob, now: float) -> None:
        job = one.arrival.job
        self.free -= job.gpu_milli
        self._observer.took(self._name, job.gpu_milli, now, job.tenant)
        jobs = self._observer.jobs
        jobs.started[one.row] = now
        jobs.waits.start(jobs.unit[one.row], now)
        self._push(now + one.arrival.duration_s, END, one)

    def ended(self, one: QueuedJob, now: float) -> None:
        arrival, job = one.arrival, one.arrival.job
        self.free += job.gpu_milli
        self._observer.took(self._name, -job.gpu_milli, now, job.tenant)
        self._observer.jobs.ended[one.row] = now
        if arrival.ends is JobState.FAILED and arrival.resubmit_after_s is not None:
            at = now + arrival.resubmit_after_s
            self._push(at, ARRIVAL, (arrival.again(at), True))
        self.serve(now)

    def _push(self, at: float, kind: int, payload: Any) -> None:
        self._events += 1
        heappush(self._heap, (at, kind, self._events, payload))

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._push(arrival.submitted_at, ARRIVAL, (arrival, False))
