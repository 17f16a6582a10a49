"""A policy that is switched while jobs wait and run: nobody loses a place."""

from scheduling.engine.queueing.fairness import Held
from scheduling.engine.queueing.state import SchedulerState
from scheduling.engine.types import Policy, PreemptionKind


def follow(state: SchedulerState, policy: Policy, now: float) -> None:
    """Decide by this policy from now on."""
    regroup = policy.fair_users != state.policy.fair_users
    state.policy = policy
    state.book.reclaim(PreemptionKind.RECLAIM in policy.preemption)
    if regroup:
        _count_users(state, now)
        _regroup(state, now)
    state.exposed.forget()
    state.queue.forget_verdicts()


def _count_users(state: SchedulerState, now: float) -> None:
    """Begin to count what users hold, of whose past nothing is known, or end it."""
    if not state.policy.fair_users:
        state.usage.users = None
        return
    users = state.usage.users = Held()
    users.pass_time(now, state.policy.usage_half_life_s)
    for record in state.jobs.values():
        for model, milli in record.pods.values():
            users.change((record.job.tenant, record.job.user), model, milli)
    for (user, model), milli in state.usage.elsewhere.items():
        users.change(user, model, milli)


def _regroup(state: SchedulerState, now: float) -> None:
    """Let every user's jobs wait in lanes of their own, or no longer."""
    for record in state.jobs.values():
        before = record.lane
        if before is None:
            continue
        state.queue.remove(record)
        state.line_up(record, now)
        assert record.lane is not None
        record.lane.admitted_at = max(record.lane.admitted_at, before.admitted_at)
