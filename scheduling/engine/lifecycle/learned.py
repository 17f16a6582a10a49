"""Learned run times: reservations are planned by them for gangs that declare none.

If a job outlives its learned run time, the next likely one replaces it (Tsafrir, Etsion and
Feitelson), and every head gets a new start. Jobs that were backfilled by the shorter time stay
in the way of a head until they end, or until the overdue head preempts them if the policy has that.
"""

from heapq import heapify, heappop

from scheduling.engine.deltas import RunTimesLearned
from scheduling.engine.lifecycle.places import place
from scheduling.engine.memo import EXPECTED, SETTLED
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.state import SchedulerState


def learn(state: SchedulerState, delta: RunTimesLearned, out: Outcome) -> None:
    """Plan with these run times from now on, if the policy does so at all."""
    news, now = False, out.now
    for job_id, likely in delta.of:
        record = state.jobs.get(job_id)
        if record is not None and record.job.gang:
            record.learned(likely)
            news |= _follow(state, record, now)
            place(state, (record,), out)
    if news:
        _tell_heads(state)


def follow_policy(state: SchedulerState, out: Outcome) -> None:
    """Begin or stop to plan with learned run times, as the policy now says."""
    news, now = False, out.now
    if state.policy.plans_by_learned:
        for record in state.jobs.values():
            news |= _follow(state, record, now)
    else:
        state.learned_ends.clear()
        for record in state.jobs.values():
            if record.forget_learned():
                state.cluster.note(record.job.id)
                news = True
    place(state, state.jobs.values(), out)
    if news:
        _tell_heads(state)


def correct(state: SchedulerState, now: float) -> None:
    """Give jobs that have outlived their learned run time the next likely one."""
    ends, news = state.learned_ends, False
    if len(ends) > 2 * len(state.running) + 100:  # most entries are of jobs that have ended
        ends[:] = [end for end in ends if end[1] in state.running]
        heapify(ends)
    while ends and ends[0][0] <= now:
        record = state.running.get(heappop(ends)[1])
        if record is not None:
            news |= _follow(state, record, now)
    if news:
        _tell_heads(state)


def _follow(state: SchedulerState, record: JobRecord, now: float) -> bool:
    """Update the learned run time of the job; return whether it changes what is planned."""
    if record.likely is None or not state.policy.plans_by_learned:
        return False
    began, age_s = record.started_at, None
    if began is not None:
        age_s = max(0.0, now - began)
        if record.learned_s is not None and began + record.learned_s <= now:
            age_s = max(age_s, record.learned_s)  # they differ at most by rounding
    if not record.go_by_learned(age_s):
        return False
    if began is None:
        state.queue.planned_anew(record)
    else:
        state.cluster.note(record.job.id)
        state.watch_learned(record)
    return record.job.declared_s is None


def _tell_heads(state: SchedulerState) -> None:
    """Have the starts of all heads worked out anew."""
    for head in state.queue_reservations.all_heads():
        record = state.jobs.get(head.job_id)
        if record is not None:
            state.memo.forget(EXPECTED, record)
            if record.eq_class is not None:
                state.memo.forget(SETTLED, record.eq_class)
    state.dirty = True
