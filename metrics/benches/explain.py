"""`manage.py bench explain`: the reasons of 10,000 waiting jobs again, against the first time.

The cluster is full, so the first cycle starts little and its cost is that of deciding. Then a job
ends, all remembered findings are dropped, and a cycle gives every waiting job its reason with
current numbers, as a scheduler does after a takeover.
"""

import time
from statistics import median

from metrics.benches.naive import cluster
from metrics.benches.queue_stage import NOW, fillers, loaded, waiting
from scheduling.engine import deltas as d
from scheduling.engine.cycle import run_cycle

NODES, JOBS, REPEATS = 12_500, 10_000, 5


def run() -> dict[str, float]:
    """Return the figures named in the bars, plus the milliseconds behind them."""
    state = loaded(cluster(NODES))
    running = fillers()[:5_000]
    run_cycle(state, [d.JobSubmitted(job) for job in running], NOW)
    begin = time.process_time()
    first = run_cycle(state, [d.JobSubmitted(job) for job in waiting(JOBS)], NOW)
    cycle = time.process_time() - begin
    spent, told = [], len(first.waiting)
    for number in range(1, REPEATS + 1):
        state.queue.forget_verdicts()
        for eq_class in state.queue.eq_classes:
            eq_class.rest = None
            eq_class.fresh.update(key.job_id for key in eq_class.jobs)
        for record in state.jobs.values():
            record.verdict = None
        ended = d.JobEnded(running[number].id, succeeded=True)
        begin = time.process_time()
        again = run_cycle(state, [ended], NOW + number * (state.refresh_s + 1))
        spent.append(time.process_time() - begin)
        told = len(again.waiting)
    explain = median(spent)
    return {
        "explain_over_cycle": explain / cycle,
        "explain_ms": explain * 1e3,
        "cycle_ms": cycle * 1e3,
        "jobs_told": float(told),
    }
