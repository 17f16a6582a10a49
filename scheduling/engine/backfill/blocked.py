"""A blocked class: whether it need be asked again, what it is told, what it closes to those behind.

| policy | a blocked job closes to the jobs behind it |
|---|---|
| strict FIFO | the pools it competes for; if quota refuses it: its tenant's, what it would borrow |
| best-effort FIFO | nothing; with fair share nodes for the job whose turn it is (fair_turns.py) |
| backfill | the nodes reserved for it; without a reservation, after a threshold, its pools |
| … refused by quota | the nodes and quota of its start; without one, after a threshold, as strict |

Under backfill nothing is closed after the threshold to jobs that could be preempted for it. Nobody
waits in a pool in which the job could not start though all that runs had ended (out_of_service.py).
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
    """Whether the class need not be asked: it would be told what it was told before."""
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
    """Check the classes that were left out of the walk before it began."""
    passed = walk.state.queue.passed
    for eq_class in passed:
        _check(walk, eq_class, Terms(walk.state.jobs[eq_class.head]))
    passed.clear()


def _check(walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> None:
    """Whether the job of the class that would be asked could start after all."""
    state, record = walk.state, terms.record
    capped = eq_class.never is not None or over_job_limit(state, record) is not None
    starts = not capped and would_start(state, record, terms.closed, terms.avoid, terms.kept)
    state.memo.compare("settled: may a job start?", eq_class, False, starts)


def blocked(walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> None:
    """Tell the class why it waits, and close what the policy wants closed behind it."""
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
    # No GPU would help it: it is in nobody's way.
    by_queue = verdict.reason is Reason.QUEUE_LIMIT_REACHED
    capped = by_queue or "max_running" in verdict.evidence
    # One that competes for no pool keeps nobody waiting, and nobody it.
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
        walk.way.last = NOBODY_BEHIND  # jobs of any place may have gone before it
    # What a job that quota refuses closes depends on what others hold by then.
    closes_quota = rest is not verdict and eq_class.refusal is not None
    if not (capped or terms.unsure or closes_quota) and walk.way.mark is mark:
        settle(
            state,
            walk.way,
            eq_class,
            out.now,
            closed=False,
            preempts=preempts,
            barred=terms.claim.barred,
            lacks=lacks,
            terms_until=terms.until,
        )


def _shut_out(walk: Walk, eq_class: EquivalenceClass, terms: Terms, wanted: frozenset[str]) -> None:
    """Jobs ahead have closed all pools to the class."""
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
    """Others go before the class, but not those that its queue waits for: what starts now may be
    where it finds room later."""
    close_queues(walk, eq_class, walk.state.jobs[eq_class.head])


def overdue(walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> bool:
    """Whether what was backfilled past the job may be preempted for it."""
    return RULES[walk.state.policy.queueing].overdue(walk, eq_class, terms)


def _may_preempt(walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> bool:
    """Whether a plan could be made for the job where nobody ahead forbids it."""
    state = walk.state
    if not (state.policy.preemption and terms.claim.record.job.preempts):
        return False
    return not state.only_backfilled or overdue(walk, eq_class, terms)
