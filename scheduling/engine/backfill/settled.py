"""Passing classes by that would be told what they were told before.

A walk over the queue asks every class whether it can start. Most cannot, and what their answer
rested on (`Settled`) has not changed since the last walk: asking them again would cost a cycle
with a long queue nearly all its time.
"""

import math

from scheduling.engine.admission.candidates import assess
from scheduling.engine.admission.limits import limits_of, over_job_limit
from scheduling.engine.backfill.kept_quota import kept_from, news_of, waits_first
from scheduling.engine.queue.reservations import Reservations, Settled
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.quota.book import Kept
from scheduling.engine.state import SchedulerState

NO_NODE = 1 << 30  # GPUs that no node has


def still_settled(
    state: SchedulerState, way: Reservations, eq_class: EquivalenceClass, now: float
) -> bool:
    """Whether a visit would find and tell what the last one did."""
    known = eq_class.settled
    if known is None or known.mark is not way.mark or eq_class.fresh or now >= known.until:
        return False
    if known.refused and eq_class.refusal is None and not eq_class.quota_stands(state.book):
        assess(state, eq_class)  # who started before it in this walk may have taken the quota again
    if known.never is not eq_class.never or known.refused != (eq_class.refusal is not None):
        return False
    if known.first is not eq_class.jobs[0] or known.ask is not eq_class.ask:
        return False
    if known.plans is not None and known.plans != state.plans_at:
        return False
    book = state.book
    if known.structure != book.structure:
        return False
    if known.facts not in (None, state.cluster.facts_version):
        return False
    if known.kept_at not in (None, book.version):
        if not _kept_alike(state, way, eq_class, known):
            return False
        known.kept_at = book.version
    if known.jobs_at not in (None, state.jobs_started):
        if over_job_limit(state, state.jobs[eq_class.head]) is not None:
            return False
        known.jobs_at = state.jobs_started
    if known.refused:
        return eq_class.quota_stands(book)
    if known.ways_at not in (None, book.loosened):
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


def _kept_alike(
    state: SchedulerState, way: Reservations, eq_class: EquivalenceClass, known: Settled
) -> bool:
    """Whether the class still waits for no quota that is not kept already, and what is kept still
    keeps the class waiting."""
    record = state.jobs[eq_class.head]
    if known.refused:
        return not (waits_first(state, way, record) or news_of(state, way, record))
    return known.withheld <= kept_from(state, way, record, known.ask.pools, known.kept)


def settle(
    state: SchedulerState,
    way: Reservations,
    eq_class: EquivalenceClass,
    now: float,
    *,
    closed: bool,
    preempts: bool = False,
    withheld: frozenset[str] = frozenset(),
    kept: Kept = frozenset(),
    lacks: bool = False,
) -> None:
    """Note what the blocked class's answer rests on; nothing where it may change by itself.

    `closed`: jobs ahead leave it no pool, these of them because of quota that is kept
    (`withheld`, `kept`); `preempts`: its first job may take places from others; `lacks`: it could
    not start though all that runs had ended.
    """
    eq_class.settled = None
    record, book = state.jobs[eq_class.head], state.book
    ask = eq_class.ask
    if ask is None:
        return
    plans = None
    since, until = record.blocked_since, min(now + state.refresh_s, eq_class.unplanned_until)
    due = math.inf if since is None else since + state.policy.backfill_after_s
    if preempts:
        plans = state.plans_at
        if eq_class.unplanned_at[:2] != plans:
            return  # no plan was made for it: others had used up what a cycle may make
    if due > now:
        until = min(until, due)
    refused, ways_at, kept_at = eq_class.refusal is not None, None, None
    # What it would close is closed already; it may be more when others have borrowed, and that is
    # news if it is its turn, or begins to wait for it.
    waits = refused and not closed and not now < due < math.inf
    foresees = refused and not closed and bool(way.asked)
    if withheld or (waits and (way.kept or way.accounts)) or foresees:
        kept_at = book.version
    if not (refused or closed) and (len(ask.ways) > 1 or any(len(w.starts) > 1 for w in ask.ways)):
        ways_at = book.loosened
    limited = not closed and bool(limits_of(state, record))
    to_ask = limited or closed or eq_class.never or (ways_at, kept_at, plans) != (None, None, None)
    eq_class.settled = Settled(
        eq_class.jobs[0],
        ask,
        way.mark,
        eq_class.never,
        refused,
        closed,
        withheld,
        kept,
        state.cluster.gains,
        until,
        ways_at,
        kept_at,
        plans,
        state.jobs_started if limited else None,
        0 if to_ask else NO_NODE if refused else ask.gpus,
        state.cluster.facts_version if lacks else None,
        book.structure,
    )
