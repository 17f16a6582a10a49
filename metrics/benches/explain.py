"""`manage.py bench explain`: the reasons of 10,000 waiting jobs against the cycle itself.

The cluster is full, so the cycle starts little and its cost is that of deciding; then all that
was found out is forgotten and every waiting job is told its reason anew.
"""

import time
from statistics import median

from metrics.benches.naive import cluster
from metrics.benches.queue_stage import NOW, fillers, loaded, waiting
from scheduling.engine import deltas as d
from scheduling.engine.cycle import run_cycle
from scheduling.engine.lifecycle.why import reasons

NODES, JOBS, REPEATS = 12_500, 10_000, 5


def run() -> dict[str, float]:
    """Figures named in the bars, plus the milliseconds behind them."""
    state = loaded(cluster(NODES))
    run_cycle(state, [d.JobSubmitted(job) for job in fillers()[:5_000]], NOW)
    begin = time.process_time()
    run_cycle(state, [d.JobSubmitted(job) for job in waiting(JOBS)], NOW)
    cycle = time.process_time() - begin
    spent, told = [], 0
    for _ in range(REPEATS):
        begin = time.process_time()
        told = len(reasons(state))
        spent.append(time.process_time() - begin)
    explain = median(spent)
    return {
        "explain_over_cycle": explain / cycle,
        "explain_ms": explain * 1e3,
        "cycle_ms": cycle * 1e3,
        "jobs_told": float(told),
    }
