"""A blocked class: whether to ask it again, what it is told, and what it closes to those behind.

| policy | a blocked job closes to the jobs behind it |
|---|---|
| strict FIFO | the pools that it wants; if quota refuses it: its tenant's quota and its loans |
| best-effort FIFO | nothing; with fair share the nodes of a turn (fair_turns.py) |
| backfill | the nodes reserved for it; without a reservation, after a threshold, its pools |
| … refused by quota | the nodes and quota of its start; without one, after a threshold, as strict |

Under backfill, after the threshold, nothing is closed to jobs that the blocked job could preempt.
Nobody waits in a pool in which the blocked job could not start even if everything that runs had
ended (out_of_service.py).
"""

from scheduling.engine.admission.candidates import assess, pools_wanted
from scheduling.engine.admission.limits import over_job_limit
from scheduling.engine.admission.out_of_service import with_what_it_lacks, within_reach
from scheduling.engine.admission.start import would_start
from scheduling.engine.backfill.closing import close_queues, close_quota, queues_to_close
from scheduling.engine.backfill.giving_turns import give_turns, line_up
from scheduling.engine.backfill.heads import is_due
from scheduling.engine.backfill.kept_quota import kept_from
from scheduling.engine.backfill.policies import RULES
from scheduling.engine.backfill.settled import settle, still_settled
from scheduling.engine.backfill.terms import terms_of
from scheduling.engine.backfill.walk import Walk
from scheduling.engine.backfill.why_waiting import behind_whom, not_yet, why
from scheduling.engine.memo import SETTLED
from scheduling.engine.queue.reservations import NOBODY_BEHIND, Terms
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.reasons.behind import behind, has_turn
from scheduling.engine.reasons.tell import tell_class
from scheduling.engine.verdict import Reason


def settled(walk: Walk, eq_class: EquivalenceClass) -> bool:
    """Return whether the class need not be asked: it would be told what it was told before."""
    if walk.in_line:
        give_turns(walk, eq_class)
    if walk.state.queues.ordered and queues_to_close(walk, eq_class):
        return False
    as_of = still_settled(walk.state, walk.way, eq_class)
    if as_of is None:
        return False
    walk.state.note_terms(as_of.until)
    if walk.state.memo.draws():
        _check(walk, eq_class, terms_of(walk, eq_class))
    if walk.state.takes_turns and as_of.in_somebodys_way:
        line_up(walk, eq_class)
    return True


def check_passed(walk: Walk) -> None:
    """Check the classes that were left out before the walk began."""
    passed = walk.state.queue.passed
    for eq_class in passed:
        _check(walk, eq_class, Terms(walk.state.jobs[eq_class.head]))
    passed.clear()


def _check(walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> None:
    """Check that the job of the class that would be asked can indeed not start."""
    state, record = walk.state, terms.record
    capped = eq_class.never is not None or over_job_limit(state, record) is not None
    starts = not capped and would_start(state, record, terms.closed, terms.avoid, terms.kept)
    state.memo.compare("settled: may a job start?", eq_class, False, starts)


def blocked(walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> None:
    """Tell the class why it waits, and close to the jobs behind it what the policy says."""
    state, out, mark = walk.state, walk.out, walk.way.mark
    state.memo.forget(SETTLED, eq_class)
    assess(state, eq_class)
    if eq_class.never is not None:
        tell_class(state, eq_class, eq_class.never, eq_class.never, out)
        state.drop_turn(state.jobs[eq_class.head])
        settle(state, walk.way, eq_class, out.now, closed=True)
        return
    record = state.jobs[eq_class.head]
    wanted = pools_wanted(state, record)
    if wanted and terms.closed >= wanted:
        _shut_out(walk, eq_class, terms, wanted)
        return
    rules = RULES[state.policy.queueing]
    verdict = why(walk, eq_class, terms, wanted)
    rest = verdict
    # More GPUs would not help it, so it is in nobody's way.
    by_queue = verdict.reason is Reason.QUEUE_LIMIT_REACHED
    capped = by_queue or "max_running" in verdict.evidence
    # A job that wants no pool keeps nobody waiting, and nobody keeps it waiting.
    reach = within_reach(state, record) if wanted else frozenset[str]()
    lacks = bool(wanted) and not reach
    if lacks and not verdict.will_never_run:
        verdict = rest = with_what_it_lacks(state, record, verdict)
    may_close = bool(reach) and not capped and not verdict.will_never_run
    waits = (capped or eq_class.refusal is not None) and not by_queue
    if waits and reach and not verdict.will_never_run:
        planned = rules.plan(walk, record, reach)
        may_close = may_close and not planned
        if planned and not capped:
            is_due(walk, record)
    close_queues(walk, eq_class, record)
    if may_close and rules.close(walk, eq_class, record, reach):
        rest = behind(eq_class.head, min(reach), {})
    preempts = terms.claim.may_preempt and _may_preempt(walk, eq_class, terms)
    told = not_yet(walk, eq_class, terms, verdict) if preempts else verdict
    if not may_close:
        state.drop_turn(record)
    elif record.turn is not None and record.job.id in state.turns:
        told = has_turn(told, len(record.turn.nodes))
    tell_class(state, eq_class, told, rest, out)
    if terms.later and walk.way.mark is not mark:
        walk.way.last = NOBODY_BEHIND  # jobs of any position may have gone before it
    # What a job that quota refuses closes depends on what others hold at that time.
    closes_quota = rest is not verdict and eq_class.refusal is not None
    if not (capped or terms.unsure or closes_quota) and walk.way.mark is mark:
        settle(
            state,
            walk.way,
            eq_class,
            out.now,
            closed=False,
            claim=terms.claim if preempts else None,
            lacks=lacks,
            terms_until=terms.until,
        )


def _shut_out(walk: Walk, eq_class: EquivalenceClass, terms: Terms, wanted: frozenset[str]) -> None:
    """Tell a class that jobs ahead have closed all its pools."""
    state, out, kept = walk.state, walk.out, terms.kept
    record = state.jobs[eq_class.head]
    verdict = behind_whom(walk, eq_class, terms)
    tell_class(state, eq_class, verdict, verdict, out)
    if terms.unsure:
        return
    closes = bool(kept) and RULES[state.policy.queueing].closes_kept
    lacks = closes and not within_reach(state, record)
    if closes and not lacks:
        close_quota(walk, eq_class, record, kept)
        return
    away = kept_from(state, walk.way, record, wanted, kept) if kept else frozenset[str]()
    settle(
        state,
        walk.way,
        eq_class,
        out.now,
        closed=True,
        withheld=away,
        kept=kept,
        lacks=lacks,
        terms_until=terms.until,
    )


def put_off(walk: Walk, eq_class: EquivalenceClass) -> None:
    """Let others go before the class, except the queues that have to wait for its queue.

    What starts now may take the room that the class finds later.
    """
    close_queues(walk, eq_class, walk.state.jobs[eq_class.head])


def overdue(walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> bool:
    """Return whether the job may preempt what was backfilled past it."""
    return RULES[walk.state.policy.queueing].overdue(walk, eq_class, terms)


def _may_preempt(walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> bool:
    """Return whether the job could preempt, as far as nobody ahead forbids it."""
    state = walk.state
    if not (state.policy.preemption and terms.claim.record.job.preempts):
        return False
    return not state.only_backfilled or overdue(walk, eq_class, terms)
