"""`manage.py bench cycle`: a whole scheduling cycle against a naive one, and its growth.

The naive scheduler keeps plain objects and scans all nodes for every pod, as schedulers do that
score each task by itself. It skips jobs for which too few GPUs are free in total. Growth with the
queue is measured on a full cluster where the same few jobs end before each cycle, so only the
number of waiting jobs differs.
"""

import time
from statistics import median

from metrics.benches.naive import NaiveNode, cluster, give_back, naive_find, take
from metrics.benches.queue_stage import NOW, fillers, loaded, waiting
from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import JobRequest, PodPlacement

NODES, JOBS, MANY = 12_500, 1_000, 10_000
REPEATS = 3
ENDING = 100  # running jobs that end before each busy cycle


def naive_cycle(nodes: list[NaiveNode], jobs: list[JobRequest]) -> int:
    """Start jobs by priority and age, gangs as a whole or not at all; return how many started."""
    started = 0
    free = sum(node.free for node in nodes if node.facts.schedulable)
    for job in sorted(jobs, key=lambda j: (-j.priority, j.submitted_at, j.gpu_milli, j.id)):
        pod_set = job.pod_sets[0]
        if pod_set.count * pod_set.gpus > free:
            continue
        taken: list[NaiveNode] = []
        for ordinal in range(pod_set.count):
            node = naive_find(nodes, pod_set)
            if node is None:
                break
            devices = tuple(x.index for x in node.devices if x.milli_free == 1000)
            take(node, job, PodPlacement(0, ordinal, node.name, devices[: pod_set.gpus], 1000))
            taken.append(node)
        if len(taken) < pod_set.count:
            for node in taken:
                if job.id in node.pods:
                    give_back(node, job)
        else:
            started += 1
            free -= pod_set.count * pod_set.gpus
    return started


def full_cycle(state: SchedulerState, jobs: list[JobRequest]) -> tuple[float, int]:
    """Return the CPU seconds of the cycle in which all jobs arrive, and how many it started."""
    facts = [d.JobSubmitted(job) for job in jobs]
    begin = time.process_time()
    result = run_cycle(state, facts, NOW)
    return time.process_time() - begin, len(result.started)


def emptied(state: SchedulerState, jobs: list[JobRequest]) -> None:
    run_cycle(state, [d.JobEnded(job.id) for job in jobs], NOW)


def busy_cycle(state: SchedulerState, ended: list[str], now: float) -> float:
    """Return the CPU seconds of a cycle in which these running jobs have ended and a full queue
    waits."""
    begin = time.process_time()
    run_cycle(state, [d.JobEnded(job_id) for job_id in ended], now)
    return time.process_time() - begin


def idle_cycle(state: SchedulerState) -> float:
    begin = time.process_time()
    for _ in range(100):
        run_cycle(state, (), NOW)
    return (time.process_time() - begin) / 100


def with_queue(state: SchedulerState, count: int) -> list[float]:
    """Time busy cycles on a full cluster with `count` waiting jobs; as many jobs end each time."""
    run_cycle(state, [d.JobSubmitted(job) for job in fillers()], NOW)
    run_cycle(state, [d.JobSubmitted(job) for job in waiting(count)], NOW)
    holders = [job_id for job_id in state.running if job_id.startswith("job-")]
    spent = [
        busy_cycle(state, holders[i * ENDING : (i + 1) * ENDING], NOW) for i in range(REPEATS + 1)
    ]
    run_cycle(state, [d.JobEnded(job_id) for job_id in list(state.jobs)], NOW)
    return spent[1:]


def run() -> dict[str, float]:
    """Return the figures named in the bars, plus the milliseconds behind them."""
    fixture = cluster(NODES)
    state = loaded(fixture)
    few = waiting(JOBS)
    full, idle = [], []
    started = naive_started = 0
    naive = 0.0
    for turn in range(2 * REPEATS):
        if turn == REPEATS:  # in the middle: the speed of a shared machine varies over time
            begin = time.process_time()
            naive_started = naive_cycle(fixture.naive, few)
            naive = time.process_time() - begin
        spent, started = full_cycle(state, few)
        full.append(spent)
        idle.append(idle_cycle(state))
        emptied(state, few)
    kant = median(full)
    queue_1000 = median(with_queue(state, JOBS))
    queue_10000 = median(with_queue(loaded(fixture), MANY))
    return {
        "naive_over_kant": naive / kant,
        "queue_growth": queue_10000 / queue_1000,
        "idle_over_full": median(idle) / kant,
        "naive_ms": naive * 1e3,
        "full_ms": kant * 1e3,
        "busy_1000_ms": queue_1000 * 1e3,
        "busy_10000_ms": queue_10000 * 1e3,
        "idle_ms": median(idle) * 1e3,
        "started": float(started),
        "naive_started": float(naive_started),
    }
