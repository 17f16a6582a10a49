"""`manage.py bench queue_hold`: hold and release a queue of 10,000 waiting jobs.

Compares the CPU of the cycle that takes this in with that of a cycle in which another tenant's
queue without jobs is held. The difference is the cost of reporting it to every job.
"""

import gc
import time
from dataclasses import replace
from statistics import median

from metrics.benches.naive import cluster
from metrics.benches.queue_stage import NOW, TENANTS, fillers, loaded, waiting
from scheduling.engine.cycle import run_cycle
from scheduling.engine.deltas import QueuesChanged
from scheduling.engine.types import QueueSpec

NODES, JOBS, REPEATS = 1_000, 10_000, 9


def run() -> dict[str, float]:
    """Return medians in milliseconds, and hold and release relative to the cycle without jobs."""
    mine, other = TENANTS[:2]
    jobs = [replace(job, tenant=mine, queue="night") for job in waiting(JOBS)]
    state = loaded(cluster(NODES), jobs=[*fillers()[:5_000], *jobs])
    queues = [QueueSpec(tenant, name) for tenant in (mine, other) for name in ("default", "night")]
    now = NOW + 1
    run_cycle(state, [QueuesChanged(tuple(queues))], now)
    spent: dict[str, list[float]] = {"hold": [], "release": [], "without_jobs": []}
    told = 0
    for _ in range(REPEATS):
        for name, held in (("hold", mine), ("release", ""), ("without_jobs", other)):
            now += 1
            shut = tuple(replace(q, held=q.tenant == held and q.name == "night") for q in queues)
            gc.collect()
            begin = time.process_time()
            result = run_cycle(state, [QueuesChanged(shut)], now)
            spent[name].append(time.process_time() - begin)
            told = max(told, len(result.waiting))
        run_cycle(state, [QueuesChanged(tuple(queues))], now)
    found = {name: median(times) for name, times in spent.items()}
    return {
        "hold_over_without_jobs": found["hold"] / found["without_jobs"],
        "release_over_without_jobs": found["release"] / found["without_jobs"],
        **{f"{name}_ms": seconds * 1e3 for name, seconds in found.items()},
        "jobs_told": float(told),
    }
