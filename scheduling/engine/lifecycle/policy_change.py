"""Switch the policy while jobs wait and run: no job loses its position."""

from collections.abc import Iterable

from scheduling.engine.demand.cpu_jobs import kept_off_gpus
from scheduling.engine.lifecycle.held_queues import scatter
from scheduling.engine.lifecycle.learned import follow_policy
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.fair_share import Held
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.preemption_delay import delay_of
from scheduling.engine.running.last_look import MoveBudget
from scheduling.engine.state import SchedulerState, judging
from scheduling.engine.types import BEYOND, Policy, PreemptionKind


def follow(state: SchedulerState, policy: Policy, out: Outcome) -> None:
    """Decide by this policy from now on."""
    now = out.now
    by_users = policy.fair_users != state.policy.fair_users
    by_waits = delay_of(policy) != delay_of(state.policy)
    elsewhere = policy.cpu_jobs_on_gpu_nodes != state.policy.cpu_jobs_on_gpu_nodes
    if policy.defrag_loss != state.policy.defrag_loss:
        state.look.budget = MoveBudget()  # the old budget does not carry over to the new share
    state.policy = policy
    state.judges = judging(policy)
    state.book.reclaim(PreemptionKind.RECLAIM in policy.preemption)
    if by_users:
        _count_users(state, now)
    if elsewhere:
        for record in list(state.jobs.values()):
            record.may_use(kept_off_gpus(record.job, policy.cpu_jobs_on_gpu_nodes))
    if by_users or by_waits or elsewhere:
        regroup(state, state.jobs.values(), now)
        scatter(state)
    for record in list(state.turns.values()):
        state.drop_turn(record)
    follow_policy(state, out)
    state.preemptible_jobs.forget()
    state.queue.forget_verdicts()
    state.memo.forget_shapes()


def _count_users(state: SchedulerState, now: float) -> None:
    """Start counting what users hold, without any past use, or stop it."""
    if not state.policy.fair_users:
        state.usage.users = None
        return
    users = state.usage.users = Held()
    users.pass_time(now, state.policy.usage_half_life_s)
    for record in state.jobs.values():
        places = state.cluster.held_by(record.job.id)
        for pod, (model, milli) in record.pods.items():
            held = milli + places[pod].placement.beyond / BEYOND
            users.change((record.job.tenant, record.job.user), model, held)
    for (user, model), elsewhere in state.usage.elsewhere.items():
        users.change(user, model, elsewhere)


def regroup(state: SchedulerState, records: Iterable[JobRecord], now: float) -> None:
    """Move jobs to the classes of the jobs that they are now equivalent to."""
    for record in records:
        if record.eq_class is not None:
            state.regroup(record, now)
