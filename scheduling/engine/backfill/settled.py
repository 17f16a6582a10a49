"""Skip classes that would be told what they were told before.

A walk over the queue asks every class whether it can start. Most cannot, and what their answer
rested on (`Settled`) has not changed since the last walk. With a long queue, asking them again
would take nearly all the time of a cycle.
"""

import math

from scheduling.engine.admission.candidates import ask_of, assess, quota_stands
from scheduling.engine.admission.limits import limits_of, over_job_limit
from scheduling.engine.backfill.gathering import leads_from
from scheduling.engine.backfill.kept_quota import kept_from, news_of, waits_first
from scheduling.engine.memo import SETTLED, UNPLANNED, Finding, Question
from scheduling.engine.queue.reservations import Reservations, Settled, Terms
from scheduling.engine.queue.waiting import EquivalenceClass, Unplanned, UnplannedAtAll
from scheduling.engine.quota.borrowing import Kept
from scheduling.engine.state import SchedulerState

NO_NODE = 1 << 30  # GPUs that no node has


class _Settled(Question):
    """Whether a visit of the class would find and tell what the last one did.

    In particular, no job of the class can start.
    """

    def stands(
        self,
        state: SchedulerState,
        subject: EquivalenceClass,
        known: Finding,
        depends_on: Reservations,
    ) -> bool:
        as_of: Settled = known.depends_on
        memo = state.memo
        if as_of.mark is not depends_on.mark or subject.fresh or as_of.sizes != memo.sizes:
            return False
        if as_of.refused and subject.refusal is None and not quota_stands(state, subject):
            assess(state, subject)  # a start ahead in this walk may have used the quota
        if as_of.never is not subject.never or as_of.refused != (subject.refusal is not None):
            return False
        if as_of.first is not subject.jobs[0]:
            return False
        if as_of.plans is not None and as_of.plans != state.allows_plans:
            return False
        if as_of.quotas != memo.quotas or as_of.nodes not in (None, memo.nodes):
            return False
        if as_of.booked not in (None, memo.booked):
            if not _kept_alike(state, depends_on, subject, as_of):
                return False
            as_of.booked = memo.booked
        if as_of.jobs_started not in (None, state.jobs_started):
            if over_job_limit(state, state.jobs[subject.head]) is not None:
                return False
            as_of.jobs_started = state.jobs_started
        if as_of.refused:
            return quota_stands(state, subject)
        if as_of.freed_quota not in (None, memo.freed_quota):
            return False
        if as_of.closed or as_of.never is not None:
            return True
        gains = memo.gains
        if as_of.gained != gains:
            most = memo.most_gained(as_of.gained)
            if most is None or most >= as_of.asks.gpus:
                return False
            as_of.gained = gains
        return True


_SETTLED = _Settled(SETTLED, checked=False)
UNPLANNED_AT_ALL = UnplannedAtAll(UNPLANNED, checked=False)


def still_settled(
    state: SchedulerState, way: Reservations, eq_class: EquivalenceClass
) -> Settled | None:
    """Return what the last visit rested on if another visit would find and tell the same."""
    known = state.memo.recall(_SETTLED, eq_class, way)
    if known is None:
        return None
    as_of: Settled = known.depends_on
    return as_of


def _kept_alike(
    state: SchedulerState, way: Reservations, eq_class: EquivalenceClass, known: Settled
) -> bool:
    """Return whether the change of the book makes no difference to the class.

    A class that quota refuses must not be the first to wait for some quota now; for any other
    class, what is kept must still keep it waiting.
    """
    record = state.jobs[eq_class.head]
    if known.refused:
        return not (waits_first(state, way, record) or news_of(state, way, record))
    return known.withheld <= kept_from(state, way, record, known.asks.pools, known.kept)


def settle(
    state: SchedulerState,
    way: Reservations,
    eq_class: EquivalenceClass,
    now: float,
    *,
    closed: bool,
    claim: Terms | None = None,
    withheld: frozenset[str] = frozenset(),
    kept: Kept = frozenset(),
    lacks: bool = False,
    terms_until: float = math.inf,
) -> None:
    """Note what the answer of a blocked class rests on; note nothing if it may change by itself.

    `closed`: jobs ahead leave it no pool; some of these (`withheld`) because quota is kept
    (`kept`). `claim`: the terms under which its first job may preempt; None if it may not. `lacks`:
    the job could not start even if everything that runs had ended. `terms_until`: when time alone
    changes what is left to the class.
    """
    memo = state.memo
    memo.forget(SETTLED, eq_class)
    record = state.jobs[eq_class.head]
    if record.pods or record.ended or record.leaving:
        return  # what it asks for changes with its own pods
    if state.queues.limit_of(record.job) is not None:
        return  # what its queue may still hold changes with every pod of the queue
    ask, plans = ask_of(state, record), None
    since, until = record.blocked_since, min(now + state.refresh_s, terms_until)
    due = math.inf if since is None else since + state.policy.backfill_after_s
    if claim is not None:
        plans = state.allows_plans
        none = Unplanned(plans, None, barred=claim.barred, turn_nodes=claim.turn_nodes)
        unplanned = memo.recall(UNPLANNED_AT_ALL, eq_class, none)
        if unplanned is None:
            return  # no plan was tried: the cycle had made as many as it may
        until = min(until, unplanned.until)
    if due > now:
        until = min(until, due)
    if state.policy.plans_by_learned and now < (leads := leads_from(state, record)):
        until = min(until, leads)
    refused, freed_quota, booked = eq_class.refusal is not None, None, None
    # What the class would close is closed already. If others have borrowed since, it may close
    # more, and that matters if it is overdue or would become the first to wait.
    waits = refused and not closed and not now < due < math.inf
    foresees = refused and not closed and bool(way.asked)
    if withheld or (waits and (way.kept or way.accounts)) or foresees:
        booked = memo.booked
    if not (refused or closed) and (len(ask.ways) > 1 or any(len(w.starts) > 1 for w in ask.ways)):
        freed_quota = memo.freed_quota
    limited = not closed and bool(limits_of(state, record))
    alone = not (limited or closed or eq_class.never)
    to_ask = not alone or (freed_quota, booked, plans) != (None, None, None)
    as_of = Settled(
        eq_class.jobs[0],
        memo.sizes,
        way.mark,
        eq_class.never,
        refused,
        closed,
        withheld,
        kept,
        ask,
        memo.gains,
        freed_quota,
        booked,
        plans,
        state.jobs_started if limited else None,
        0 if to_ask else NO_NODE if refused else ask.gpus,
        memo.nodes if lacks else None,
        memo.quotas,
        terms_until,
    )
    memo.note(_SETTLED, eq_class, True, as_of, until)
