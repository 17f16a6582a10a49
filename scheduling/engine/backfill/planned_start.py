"""When and where a blocked head will start, by declared or learned run times (paper 3.2.2).

The start is true to placement: on a what-if copy of the cluster, running jobs end one after the
other until the head can really be placed, on whole nodes and in its node groups; counting GPUs
would not do. The copy is kept and follows the cluster, because one event changes little of it.
Quota and limits of jobs come back by the same ends: a head that waits for them starts when they and
the places are there.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from scheduling.engine.admission.candidates import Candidate, ask_of
from scheduling.engine.admission.limits import limits_of, running_below
from scheduling.engine.demand.never import demand_of
from scheduling.engine.demand.requested import Demand, smallest_starts
from scheduling.engine.demand.shapes import narrowed
from scheduling.engine.queue.job import Expected, JobRecord
from scheduling.engine.queue.reservations import Head
from scheduling.engine.quota.holds import Hold, Over
from scheduling.engine.running.forecast import Forecast
from scheduling.engine.state import SchedulerState

# For how many combinations of GPU models a what-if copy is kept.
MAX_FORECASTS = 16


def expected_start(state: SchedulerState, candidate: Candidate, now: float) -> Expected | None:
    """Return when and where the job will find places by the run times of the other jobs.

    Quota and heads ahead are ignored. None if the run times promise no start.
    """
    job, strategy = candidate.job, state.strategy_of(candidate.job)
    return forecast_for(state, candidate).start_of(job, candidate.counts, strategy, now)


def planned_start(
    state: SchedulerState,
    record: JobRecord,
    candidate: Candidate,
    now: float,
    ahead: Iterable[Head] = (),
) -> Expected | None:
    """Return the earliest start that run times promise, or None if they promise none.

    The job is over before the heads `ahead` start, leaves them what they need, or starts after
    them.
    """
    asked = least_demand(state, candidate)
    alone = _start_beside(state, record, candidate, asked, (), now, -math.inf)
    if alone is None:
        return None
    competing = [head for head in ahead if _compete(candidate, alone, head)]
    near = [head for head in competing if not _gives_way(state, alone, head)]
    assert alone.hold is not None
    alone.hold.by_right = len(near) < len(competing)
    if not near:
        return alone
    starts = [max(head.expected.at, now) for head in near if head.expected is not None]
    planned_s = record.planned_s
    if planned_s is not None and max(alone.at, now) + planned_s <= min(starts):
        return alone
    found = _start_beside(state, record, candidate, asked, near, now, -math.inf)
    run_times = [state.jobs[head.job_id].planned_s for head in near]
    over = [at + (math.inf if s is None else s) for at, s in zip(starts, run_times, strict=True)]
    if max(over) < (math.inf if found is None else found.at):
        after = _start_beside(state, record, candidate, asked, (), now, max(over))
        if found is None or (after is not None and after.at < found.at):
            return after
    return found


def smallest(
    state: SchedulerState, record: JobRecord, closed: frozenset[str]
) -> Iterator[Candidate]:
    """Yield the smallest starts of each way in open pools that quota could ever allow."""
    job, book = record.job, state.book
    starts = list(smallest_starts(job, record.missing()))
    for way in ask_of(state, record).ways:
        if closed.intersection(way.models):
            continue
        for counts, demand in zip(starts, way.starts, strict=True):
            if book.could_ever(job.tenant, demand, non_preemptible=not job.preemptible):
                yield Candidate(narrowed(job, way.models), counts)


def least_demand(state: SchedulerState, candidate: Candidate) -> Demand:
    """Return the demand (GPU-milli by GPU model) of the smallest start of the candidate."""
    job = candidate.job
    models = tuple([s.gpu_models[0] if s.gpus else "" for s in job.pod_sets])
    least = next(smallest_starts(job, candidate.counts), candidate.counts)
    return demand_of(job, models, least, state.pools)


def forecast_for(state: SchedulerState, candidate: Candidate) -> Forecast:
    """Return the what-if copy for the GPU models of the candidate, up to date."""
    models = frozenset(m for s in candidate.job.pod_sets for m in s.gpu_models)
    drop_stale(state)
    forecast = state.forecasts.get(models)
    if forecast is None:
        if len(state.forecasts) >= MAX_FORECASTS:
            state.forecasts.pop(next(iter(state.forecasts))).close()
        forecast = state.forecasts[models] = Forecast(state.cluster, state.jobs, models)
    forecast.follow()
    return forecast


def drop_stale(state: SchedulerState) -> None:
    """Drop copies that can no longer follow the cluster.

    If nobody asked for such a copy again, the changes that it has not read would pile up for ever.
    """
    for models in [models for models, forecast in state.forecasts.items() if forecast.stale()]:
        state.forecasts.pop(models).close()


def _compete(candidate: Candidate, alone: Expected, head: Head) -> bool:
    """Return whether the job, if it starts as `alone`, may need what the head ahead needs.

    That may be nodes, quota, or a place at a limit of jobs.
    """
    hold, mine = head.hold, alone.hold
    if hold is None or mine is None:
        return False
    models = {m for s in candidate.job.pod_sets for m in s.gpu_models}
    shared = hold.limited.keys() & mine.limited.keys()
    return bool(shared) or not head.pools.isdisjoint(models)


def _gives_way(state: SchedulerState, alone: Expected, head: Head) -> bool:
    """Return whether the head waits for what it will borrow while this job borrows nothing."""
    hold, mine = head.hold, alone.hold
    assert hold is not None
    assert mine is not None
    if mine.borrows or not hold.borrows or head.job_id not in state.queue_reservations.planned:
        return False
    limited = not hold.limited.keys().isdisjoint(mine.limited)
    return not limited and _of_others(state, hold, mine)


def _of_others(state: SchedulerState, hold: Hold, mine: Hold) -> bool:
    """Return whether both are charged to different accounts."""
    chain = state.book.chain
    return not any(chain(hold.tenant, m)[:1] == chain(mine.tenant, m)[:1] for m in mine.demand)


def _start_beside(
    state: SchedulerState,
    record: JobRecord,
    candidate: Candidate,
    asked: Demand,
    beside: Sequence[Head],
    now: float,
    not_before: float,
) -> Expected | None:
    """Return the first start at or after `not_before` that leaves the heads what they need."""
    forecast = forecast_for(state, candidate)
    allowed = max(
        not_before,
        _quota_at(state, forecast, record, asked, beside),
        _limit_at(state, record, beside),
    )
    if allowed == math.inf:
        return None
    avoid = frozenset[str]().union(*[head.nodes for head in beside])
    job, counts, strategy = candidate.job, candidate.counts, state.strategy_of(candidate.job)
    if allowed == -math.inf:
        found = forecast.start_of(job, counts, strategy, now, avoid)
    else:
        known = record.expected
        found = forecast.start_from(job, counts, strategy, allowed, now, avoid, known)
    if found is None:
        return None
    return replace(found, hold=_hold(state, forecast, record, asked, found.at))


def _quota_at(
    state: SchedulerState,
    forecast: Forecast,
    record: JobRecord,
    asked: Demand,
    beside: Sequence[Head],
) -> float:
    """Return when quota allows the demand beside what the heads ask for.

    -inf: it does now; inf: it never does.
    """
    book, tenant, non_preemptible = state.book, record.job.tenant, not record.job.preemptible
    changed: Over = Counter()
    for hold in _holds(beside):
        for model, milli in hold.demand.items():
            changed[hold.tenant, model, hold.non_preemptible] += milli
    with book.changed(changed):  # what is given back below is taken back with it
        no = book.refusal_of(tenant, asked, non_preemptible=non_preemptible)
        if no is None:
            return -math.inf
        lacks = no.asked - no.allowed
        given = dict[tuple[str, str, bool], int]()  # given back since the refusal
        for at, ended, freed in forecast.ends():
            for model, milli in freed.items():
                key = (ended.job.tenant, model, not ended.job.preemptible)
                given[key] = given.get(key, 0) + milli
            # The refusal lasts until as much has been given back as the demand exceeds the
            # allowance.
            lacks -= freed.get(no.account.gpu_model, 0)
            if lacks <= 0:
                for key, milli in given.items():
                    book.suppose(key[0], key[1], -milli, non_preemptible=key[2])
                    changed[key] -= milli
                given.clear()
                no = book.refusal_of(tenant, asked, non_preemptible=non_preemptible)
                if no is None:
                    return at
                lacks = no.asked - no.allowed
        return math.inf


def _holds(heads: Iterable[Head]) -> list[Hold]:
    return [head.hold for head in heads if head.hold is not None]


def _limit_at(state: SchedulerState, record: JobRecord, beside: Sequence[Head]) -> float:
    """Return when the limits of the tenant and its parents let the job start beside the heads.

    -inf: they do now; inf: they never do.
    """
    latest = -math.inf
    for name, most in limits_of(state, record).items():
        below = running_below(state, name)
        others = sum(name in hold.limited for hold in _holds(beside))
        over = below.total() + others - most + 1
        if over > 0:
            ends = sorted(
                end_of(other) for other in state.running.values() if other.job.tenant in below
            )
            latest = max(latest, ends[over - 1] if over <= len(ends) else math.inf)
    return latest


def end_of(record: JobRecord) -> float:
    """Return the planned end of the last pod of a running job; inf if nothing is known."""
    began, planned_s = record.started_at, record.planned_s
    if began is None or planned_s is None:
        return math.inf
    if record.job.gang:
        return began + planned_s
    if any(record.missing()):
        return math.inf
    return max([record.placed_since(pod) for pod in record.pods], default=began) + planned_s


def _hold(
    state: SchedulerState, forecast: Forecast, record: JobRecord, asked: Demand, at: float
) -> Hold:
    """Return what the job will need if it starts at `at`."""
    job, book = record.job, state.book
    hold = Hold(job.id, job.tenant, asked, not job.preemptible, at)
    hold.limited = limits_of(state, record)
    for end, ended, freed in forecast.ends():
        if end > at:
            break
        for model, milli in freed.items():
            hold.over[ended.job.tenant, model, not ended.job.preemptible] += milli
    with book.changed(hold.over, -1):
        hold.borrows = any(book.borrows(job.tenant, m, milli) for m, milli in asked.items())
    for other in state.running.values() if hold.limited else ():
        hold.jobs[other.job.tenant] += end_of(other) <= at
    return hold
