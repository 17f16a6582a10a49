"""When and where a blocked head will start, from declared run times (paper 3.2.2, backfill).

Placement-true: running jobs are ended one after the other on a what-if copy of the cluster until
the head is really placed there, on whole nodes and in its groups, not by a count of GPUs. The
copy is kept and follows the cluster, as one event changes little of it.
"""

from scheduling.engine.admission.candidates import Candidate
from scheduling.engine.queue.job import Expected
from scheduling.engine.running.forecast import Forecast
from scheduling.engine.state import SchedulerState

# Combinations of GPU models for which a what-if copy is kept.
MAX_FORECASTS = 16


def expected_start(state: SchedulerState, candidate: Candidate, now: float) -> Expected | None:
    """The earliest start that declared run times promise; None when they promise none."""
    models = frozenset(m for s in candidate.job.pod_sets for m in s.gpu_models)
    drop_stale(state)
    forecast = state.forecasts.get(models)
    if forecast is None:
        if len(state.forecasts) >= MAX_FORECASTS:
            state.forecasts.pop(next(iter(state.forecasts))).close()
        forecast = state.forecasts[models] = Forecast(state.cluster, state.jobs, models)
    strategy = state.strategy_of(candidate.job)
    return forecast.start_of(candidate.job, candidate.counts, strategy, now)


def drop_stale(state: SchedulerState) -> None:
    """Keep no copy that cannot follow any more: nobody may ask for it again, and what it has not
    read would grow for ever."""
    for models in [models for models, forecast in state.forecasts.items() if forecast.stale()]:
        state.forecasts.pop(models).close()
