"""What heads with a known start leave to the jobs behind them: quota and limits of jobs.

Heads that wait for quota also have nodes. A job that is over when such a head starts is not in its
way. Any other job may use only what the head does not need: no nodes of a head that waits for
quota, and no quota without which the head could not start. A head that will borrow gives way to
other tenants' jobs that borrow nothing.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from scheduling.engine.admission.candidates import ask_of
from scheduling.engine.admission.limits import takes_last
from scheduling.engine.backfill.kept_quota import kept_from, withheld
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.reservations import Ahead, Head, Reservations, Terms
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.quota.borrowing import Kept
from scheduling.engine.state import SchedulerState


def beside_holds(
    state: SchedulerState,
    way: Reservations,
    eq_class: EquivalenceClass,
    terms: Terms,
    models: frozenset[str],
    ahead: Ahead,
    now: float,
    *,
    again: bool = False,
) -> Terms:
    """Restrict the terms to what is left by the heads that will need something.

    With `again`, a job of the class was asked and did not start; the terms are then for the job
    that is in the way of the fewest heads.
    """
    heads = _in_front(state, ahead.holds, state.jobs[eq_class.head], again)
    if not heads:
        return terms
    most = ahead.starts_at - now if terms.behind else math.inf
    record, least = terms.record, _least_bound(state, eq_class, terms.record, heads, most, now)
    shorter = terms.shorter or least is not record
    times = (
        eq_class.shortest,
        record.planned_s,
        least.planned_s,
        state.jobs[eq_class.head].planned_s,
    )
    until = min(terms.until, _until(heads, times, ahead.starts_at, now))
    if again:
        record = least
    bound = [h for h in heads if h.job_id != record.job.id and not is_over(record, h, now)]
    if not bound:
        return terms._replace(record=record, shorter=shorter, by_right=terms, until=until)
    starts = [start for way in ask_of(state, record).ways for start in way.starts]
    nodes, unsure, rights = set[str](), False, set[str]()
    for head in bound:
        mine = models & head.pools
        if head.job_id not in way.planned or not mine:
            continue
        hold = head.hold
        assert hold is not None
        on = [s for s in starts if not mine.isdisjoint(s)]
        if all(state.book.yields(hold, record.job.tenant, start) for start in on):
            rights |= mine
        else:
            nodes |= head.nodes
            unsure |= hold.borrows
    kept: Kept = terms.kept.union(
        [head.hold for head in bound if head.hold is not None],
        *[state.book.chain(record.job.tenant, model) for model in rights],
    )
    away = kept_from(state, way, record, models, kept)
    bar = next((h for h in bound if h.hold and takes_last(state, record, h.hold)), None)
    closed = terms.closed | away
    if bar is not None:
        closed, unsure = models, True
    elif closed != terms.closed:
        bar = _bar(state, way, record, bound, kept)
    return terms._replace(
        record=record,
        closed=closed,
        avoid=terms.avoid | nodes,
        kept=kept,
        bar=bar,
        unsure=unsure or shorter,
        shorter=shorter,
        by_right=terms,
        until=until,
    )


def _in_front(
    state: SchedulerState, heads: Sequence[Head], first: JobRecord, again: bool
) -> list[Head]:
    """Return the heads that are before the jobs of the class, which may have been put off since.

    With `again` its first job is before the others as well. By shares, the order when the heads
    were asked was a different one, so all of them count.
    """
    mine = first.job.id
    if state.by_shares:
        return [head for head in heads if again or head.job_id != mine]
    key = first.key
    return [h for h in heads if state.jobs[h.job_id].key < key or (again and h.job_id == mine)]


def _until(
    heads: Sequence[Head], times: Iterable[float | None], first_at: float, now: float
) -> float:
    """Return from when on one of these run times no longer ends before a head starts."""
    starts = [first_at, *[head.hold.at for head in heads if head.hold is not None]]
    over = [at - planned_s for planned_s in times if planned_s is not None for at in starts]
    return min([until for until in over if until >= now], default=math.inf)


def is_over(record: JobRecord, head: Head, now: float) -> bool:
    """Return whether the job is over when the head starts, as planned.

    A job that does not run yet is taken to start now.
    """
    planned_s, began = record.planned_s, record.started_at
    since = now if began is None or not record.job.gang else began
    return planned_s is not None and head.hold is not None and since + planned_s <= head.hold.at


def _least_bound(
    state: SchedulerState,
    eq_class: EquivalenceClass,
    first: JobRecord,
    heads: Sequence[Head],
    most: float,
    now: float,
) -> JobRecord:
    """Return the first job of the class that is over before most of the heads start.

    Only jobs that run for at most `most` seconds count. If none is in the way of fewer heads than
    `first`, return `first`.
    """
    starts = sorted([head.hold.at for head in heads if head.hold is not None])

    def bound(planned_s: float | None) -> int:
        return len(starts) if planned_s is None else bisect_left(starts, now + planned_s)

    fewest = bound(eq_class.shortest)
    found, least = first, bound(first.planned_s)
    for key in eq_class.jobs if fewest < least else ():
        record = state.jobs[key.job_id]
        planned_s = record.planned_s
        if planned_s is not None and planned_s <= most and bound(planned_s) < least:
            found, least = record, bound(planned_s)
            if least == fewest:
                break
    return found


def _bar(
    state: SchedulerState,
    way: Reservations,
    record: JobRecord,
    heads: Sequence[Head],
    kept: Kept,
) -> Head | None:
    """Return the first head for which Kant keeps quota that the job would need."""
    for choice in ask_of(state, record).ways:
        for demand in choice.starts:
            no = withheld(state, way, record.job, demand, kept)
            if no is not None and no.hold is not None:
                return next(head for head in heads if head.hold is no.hold)
    return None
