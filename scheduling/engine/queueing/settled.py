"""Passing lanes by that would be told what they were told before.

A walk over the queue asks every lane whether it can start. Most cannot, and what their answer
rested on (`Settled`) has not changed since the last walk: asking them again would cost a cycle
with a long queue nearly all its time.
"""

import math

from scheduling.engine.queueing.ahead import InTheWay, Settled, Terms
from scheduling.engine.queueing.state import SchedulerState
from scheduling.engine.queueing.waiting import Lane


def still_settled(state: SchedulerState, way: InTheWay, lane: Lane, now: float) -> bool:
    """Whether a visit would find and tell what the last one did."""
    known = lane.settled
    if known is None or known.mark is not way.mark or lane.fresh or now >= known.until:
        return False
    if known.never is not lane.never or known.refused != (lane.refusal is not None):
        return False
    if known.first is not lane.jobs[0] or known.ask is not lane.ask:
        return False
    if known.plans is not None and known.plans != (state.cluster.version, state.book.version):
        return False
    if known.refused:
        return known.books in (None, state.book.version) and lane.quota_stands(state.book)
    if known.books is not None and known.books != state.book.loosened:
        return False
    if known.closed or known.never is not None:
        return True
    gains = state.cluster.gains
    if known.gained != gains:
        most = state.cluster.gained(known.gained)
        if most is None or most >= known.ask.gpus:
            return False
        known.gained = gains
    return True


def settle(
    state: SchedulerState, way: InTheWay, lane: Lane, terms: Terms, closed: bool, now: float
) -> None:
    """Note what the blocked lane's answer rests on; nothing where it may change by itself."""
    lane.settled = None
    record = state.jobs[lane.head]
    ask = lane.ask
    if ask is None:
        return
    plans = None
    preempts = state.policy.preemption and record.job.preempts and lane.never is None
    since, until = record.blocked_since, min(now + state.refresh_s, lane.unplanned_until)
    due = math.inf if since is None else since + state.policy.backfill_after_s
    if preempts and terms.may_preempt and (due <= now or not state.only_backfilled):
        plans = (state.cluster.version, state.book.version)
        if lane.unplanned_at[:2] != plans:
            return  # no plan was made for it: others had used up what a cycle may make
    if due > now:
        until = min(until, due)
    books = None
    if lane.refusal is not None:
        # What it would close is closed already; it may be more when others have borrowed.
        if way.kept or way.accounts:
            books = state.book.version
    elif way.kept or len(ask.ways) > 1 or any(len(w.starts) > 1 for w in ask.ways):
        books = state.book.loosened
    lane.settled = Settled(
        lane.jobs[0],
        ask,
        way.mark,
        lane.never,
        lane.refusal is not None,
        closed,
        state.cluster.gains,
        until,
        books,
        plans,
    )
