"""`manage.py bench cycle`: a whole scheduling cycle against a naive one, and its growth.

The naive scheduler keeps plain objects and scans all nodes for every pod, as schedulers do that
score each task by itself; it is spared the jobs for which too few GPUs are free at all.
"""

import time
from statistics import median

from metrics.benches.naive import NaiveNode, cluster, give_back, naive_find, take
from metrics.benches.queue_stage import NOW, loaded, waiting
from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import JobRequest, PodPlacement

NODES, JOBS, MANY = 12_500, 1_000, 10_000
REPEATS = 3


def naive_cycle(nodes: list[NaiveNode], jobs: list[JobRequest]) -> int:
    """Highest priority and oldest first, gangs whole or not at all; returns the jobs started."""
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
    """CPU seconds of the cycle in which all jobs arrive, and how many it started."""
    facts = [d.JobSubmitted(job) for job in jobs]
    begin = time.process_time()
    result = run_cycle(state, facts, NOW)
    return time.process_time() - begin, len(result.started)


def emptied(state: SchedulerState, jobs: list[JobRequest]) -> None:
    run_cycle(state, [d.JobEnded(job.id) for job in jobs], NOW)


def idle_cycle(state: SchedulerState) -> float:
    begin = time.process_time()
    for _ in range(100):
        run_cycle(state, (), NOW)
    return (time.process_time() - begin) / 100


def run() -> dict[str, float]:
    """Figures named in the bars, plus the milliseconds behind them."""
    fixture = cluster(NODES)
    state = loaded(fixture)
    few, many = waiting(JOBS), waiting(MANY)
    timings: dict[str, list[float]] = {"few": [], "many": [], "idle": []}
    started = 0
    for _ in range(REPEATS):
        for name, jobs in (("few", few), ("many", many)):
            spent, count = full_cycle(state, jobs)
            timings[name].append(spent)
            started = count if name == "few" else started
            timings["idle"].append(idle_cycle(state))
            emptied(state, jobs)
    begin = time.process_time()
    naive_started = naive_cycle(fixture.naive, few)
    naive = time.process_time() - begin
    kant = median(timings["few"])
    return {
        "naive_over_kant": naive / kant,
        "queue_growth": median(timings["many"]) / kant,
        "idle_over_full": median(timings["idle"]) / kant,
        "naive_ms": naive * 1e3,
        "full_ms": kant * 1e3,
        "full_10000_ms": median(timings["many"]) * 1e3,
        "idle_ms": median(timings["idle"]) * 1e3,
        "started": float(started),
        "naive_started": float(naive_started),
    }


