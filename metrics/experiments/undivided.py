"""What bounds allocation and waits in best-effort order, whatever places the jobs.

All GPUs of the fleet stand in one machine: a job starts as soon as so many are free, in the order
of the queue, and nothing is ever left over in pieces. Quotas are left out: where every tenant may
borrow all that is idle, they refuse nobody for whom GPUs are free. A single class of jobs may wait
less under a placement that leaves holes which only its jobs can use; then others wait longer.
"""

import time
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

from metrics.experiments.runs import Figures, Task, drawn, figures
from metrics.inputs import fleet_of
from scheduling.engine.queueing.waiting import OrderKey, order_key
from scheduling.engine.states import JobState
from scheduling.engine.types import Device
from scheduling.simulator import workload
from scheduling.simulator.model import Arrival
from scheduling.simulator.nodes import engine_nodes
from scheduling.simulator.observe import Observer
from scheduling.simulator.run import Outcome
from scheduling.simulator.workload import HOUR

END, ARRIVAL = 0, 1  # what ends at an instant goes first


class _Waiting(NamedTuple):
    """A job in the queue, in the order of its key, which is unique."""

    key: OrderKey
    milli: int
    arrival: Arrival
    row: int


# Takes arrivals to the task's end, telling the observer what is taken of the machine of that name;
# returns how many events there were and how many jobs still wait.
Simulate = Callable[[Iterator[Arrival], Observer, str, Task], tuple[int, int]]


def run(task: Task) -> Figures:
    """The task's workload on one machine."""
    return on_one_machine(task, _simulate)


def on_one_machine(task: Task, simulate: Simulate) -> Figures:
    """Figures without GFR and JTTED, which one machine does not have."""
    fleet = fleet_of(task.fleet)
    first = engine_nodes(fleet)[0]
    machine = replace(first, devices=tuple(Device(i) for i in range(fleet.gpus)))
    shares = workload.Shares()
    arrivals = shares.watch(drawn(task, fleet.gpus, first))
    observer = Observer(0.0, task.settings.sample_s)
    observer.node_changed(machine, 0.0)
    cpu = time.process_time()
    events, waiting = simulate(arrivals, observer, machine.name, task)
    stop = task.hours * HOUR
    outcome = Outcome(
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


def _simulate(
    arrivals: Iterator[Arrival], observer: Observer, name: str, task: Task
) -> tuple[int, int]:
    """Run to the task's end; returns how many events there were and how many jobs still wait."""
    jobs, free = observer.jobs, observer.nodes[name].offered
    heap: list[tuple[float, int, int, Any]] = []
    queue: list[_Waiting] = []
    events = 0

    def push(at: float, kind: int, payload: Any) -> None:
        nonlocal events
        events += 1
        heappush(heap, (at, kind, events, payload))

    def next_arrival() -> None:
        arrival = next(arrivals, None)
        if arrival is not None:
            push(arrival.submitted_at, ARRIVAL, (arrival, False))

    def start(one: _Waiting, now: float) -> None:
        nonlocal free
        job = one.arrival.job
        free -= job.gpu_milli
        observer.took(name, job.gpu_milli, now, job.tenant)
        jobs.started[one.row] = now
        push(now + one.arrival.duration_s, END, one)

    warm_up_s, stop = task.warm_up_h * HOUR, task.hours * HOUR
    next_arrival()
    warm = not warm_up_s
    while heap and heap[0][0] <= stop:
        now, kind, _, payload = heappop(heap)
        if not warm and now >= warm_up_s:
            observer.sample_until(warm_up_s)
            observer.end_warm_up(warm_up_s)
            warm = True
        observer.sample_until(now)
        if kind == ARRIVAL:
            arrival, again = payload
            if not again:
                next_arrival()
            one = _Waiting(
                order_key(arrival.job), arrival.job.gpu_milli, arrival, jobs.add(arrival.job)
            )
            if one.milli <= free:
                start(one, now)
            else:
                insort(queue, one)
            continue
        arrival, job = payload.arrival, payload.arrival.job
        free += job.gpu_milli
        observer.took(name, -job.gpu_milli, now, job.tenant)
        jobs.ended[payload.row] = now
        if arrival.ends is JobState.FAILED and arrival.resubmit_after_s is not None:
            at = now + arrival.resubmit_after_s
            push(at, ARRIVAL, (arrival.again(at), True))
        left = []
        for one in queue:
            if one.milli <= free:
                start(one, now)
            else:
                left.append(one)
        queue = left
    return events, len(queue)
