"""One scheduling cycle: changes go in, decisions with reasons come out (paper 3.2).

1. Take in what changed, and the jobs that wake up with the passing of time.
2. Decide until nothing more changes:
   2.1 static admission: which jobs could ever run, and which may run now by quota;
   2.2 one global order over all tenants;
   2.3 for the first job of each equivalence class: dynamic admission and placement,
   2.4 or else preemption,
   2.5 or else a reason, and what the queueing policy closes to the jobs behind it;
   2.6 quota again, against what runs now;
   2.7 growth of running elastic gangs.
3. Move pods together, and decide at once about what that frees.
4. Report: jobs whose dependencies will not start, jobs that passed static admission, and what the
   cycle did.
"""

from collections.abc import Iterable

from scheduling.engine.admission.limits import report_run_limits
from scheduling.engine.admission.quota_admission import admit_by_quota, report_quota
from scheduling.engine.admission.start import start_nominated, try_to_start
from scheduling.engine.backfill.blocked import blocked, check_passed, overdue, put_off, settled
from scheduling.engine.backfill.heads import give_up
from scheduling.engine.backfill.planned_start import drop_stale
from scheduling.engine.backfill.terms import terms_of
from scheduling.engine.backfill.walk import Walk, begin_walk
from scheduling.engine.decisions import CycleResult
from scheduling.engine.deltas import Delta
from scheduling.engine.lifecycle import apply_deltas
from scheduling.engine.lifecycle.grow import grow
from scheduling.engine.lifecycle.learned import correct
from scheduling.engine.lifecycle.reorganise import reorganise
from scheduling.engine.outcome import Outcome
from scheduling.engine.preemption.preempt import try_to_preempt
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.reasons.after import tell_dependents
from scheduling.engine.state import SchedulerState

__all__ = ["SchedulerState", "run_cycle"]


def run_cycle(state: SchedulerState, deltas: Iterable[Delta], now: float) -> CycleResult:
    """Run one cycle. `now` is seconds since the epoch and never decreases between cycles.

    On return, the state reflects the decisions. The result does not depend on hash order.
    """
    out = Outcome(now, state.refresh_s)
    # 1. Take in what changed.
    state.cluster.now = now
    state.usage.pass_time(now, state.policy.usage_half_life_s)
    state.queues.pass_time(now, state.queue.lanes)
    for delta in deltas:
        apply_deltas.apply(state, delta, out)
    drop_stale(state)
    state.wake(now)
    correct(state, now)
    start_nominated(state, out)
    report_run_limits(state, out)
    # 2. Decide.
    _decide(state, out)
    # 3. Move pods together.
    if reorganise(state, out):
        _decide(state, out)
    # 4. Report.
    tell_dependents(state, out)
    report_quota(state, out)
    return out.result(state.next_wake(now), *state.memo.take_checks())


def _decide(state: SchedulerState, out: Outcome) -> None:
    """Walk the waiting jobs until there is nothing more to decide."""
    if state.at_rest():
        return
    # 2.1 Static admission.
    admit_by_quota(state, out)
    again = True
    while again:
        # A queue's part depends on what all queues hold now, so update it even at equal times.
        state.queues.pass_time(out.now, state.queue.lanes)
        more = _walk(state, out)
        # 2.6 Quota again.
        admit_by_quota(state, out)
        # A job asked in this walk did not know which jobs behind it would start. So ask all again
        # until none starts: a job's reason must depend on the state, not on how often it was asked.
        matters, waits = not state.nobody_in_the_way, bool(state.queue.eq_classes)
        again = matters and (state.dirty or (more and waits))
        # 2.7 Running gangs grow; what they take may change the answers for other jobs.
        if not again and state.growing and grow(state, out):
            admit_by_quota(state, out)
            again = matters and waits
        state.dirty |= again
    state.queue.touched.clear()


def _walk(state: SchedulerState, out: Outcome) -> bool:
    """Ask the waiting jobs once, in order; return whether any of them got places."""
    more = False
    # 2.2 One global order.
    order = state.next_walk()
    walk = begin_walk(state, state.queue_reservations, out)
    asked: set[EquivalenceClass] = set()
    waiting = len(state.queue.eq_classes)
    short: dict[EquivalenceClass, None] = {}
    check_passed(walk)
    while (eq_class := order.pop()) is not None:
        if eq_class in short:
            more |= _start_short(walk, eq_class)
            continue
        if settled(walk, eq_class):
            continue
        terms = terms_of(walk, eq_class)
        if terms.later and order.put_off(eq_class):
            put_off(walk, eq_class)
            continue
        asked.add(eq_class)
        # 2.3 Dynamic admission, then placement: pool, group, node, devices.
        record = terms.record
        if try_to_start(state, record, terms.closed, terms.avoid, terms.kept, out):
            more = True
            state.drop_turn(record)
            order.push(eq_class)
            order.push(record.eq_class)
        # 2.4 Preemption.
        elif (claim := terms.claim).may_preempt and try_to_preempt(
            state, eq_class, claim, overdue(walk, eq_class, terms), out
        ):
            state.drop_turn(claim.record)
            order.push(eq_class)
        else:
            # 2.5 A reason with its numbers; the policy says which jobs behind may proceed.
            blocked(walk, eq_class, terms)
            if terms.shorter and order.put_off(eq_class):
                short[eq_class] = None
    out.walked(asked=len(asked), waiting=waiting)
    state.usage.standings = None
    give_up(walk)
    return more


def _start_short(walk: Walk, eq_class: EquivalenceClass) -> bool:
    """Start shorter jobs of a class whose first job could not start; return whether any did.

    They end early enough to pass. They come after all other classes, because they stand behind
    them in the order.
    """
    state, started = walk.state, False
    while eq_class.jobs:
        terms = terms_of(walk, eq_class, again=True)
        if not try_to_start(state, terms.record, terms.closed, terms.avoid, terms.kept, walk.out):
            break
        started = True
    return started
