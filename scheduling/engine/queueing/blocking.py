"""What a job that cannot start means for the jobs behind it (paper 3.2.2, table 1)."""

from scheduling.engine.queueing.admission import assess, pools_wanted, quota_verdict
from scheduling.engine.queueing.report import tell_lane
from scheduling.engine.queueing.state import Outcome, SchedulerState
from scheduling.engine.queueing.waiting import Lane
from scheduling.engine.types import QueueingPolicy
from scheduling.engine.verdict import Reason, Verdict


class Blocking:
    """Pools, and tenants' accounts, that belong to a blocked job for the rest of the cycle.

    Strict FIFO: a job that cannot start closes the pools it competes for, one that its quota
    refuses closes the account that refused it. Best-effort FIFO closes nothing.
    """

    def __init__(self, state: SchedulerState, out: Outcome) -> None:
        self._state = state
        self._out = out
        self._strict = state.policy.queueing is QueueingPolicy.STRICT_FIFO
        self._pools: dict[str, str] = {}  # GPU model -> the job ahead
        self._accounts: dict[tuple[str, str], str] = {}

    def closed_to(self, lane: Lane) -> frozenset[str]:
        """GPU models that the lane may not use because somebody ahead waits for them."""
        if not self._pools and not self._accounts:
            return frozenset()
        book = self._state.book
        models = pools_wanted(self._state, self._state.jobs[lane.head])
        return frozenset(
            m
            for m in models
            if m in self._pools
            or any((a.tenant, a.gpu_model) in self._accounts for a in book.chain(lane.tenant, m))
        )

    def blocked(self, lane: Lane, closed: frozenset[str]) -> None:
        """Tell the lane why it waits, and close what the policy wants closed behind it."""
        state, out = self._state, self._out
        assess(state, lane)
        if lane.never is not None:
            tell_lane(state, lane, lane.never, lane.never, out)
            return
        wanted = pools_wanted(state, state.jobs[lane.head])
        if closed and closed >= wanted:
            verdict = self._behind(lane, min(closed))
            tell_lane(state, lane, verdict, verdict, out)
            return
        if lane.refusal is not None:
            verdict = quota_verdict(lane.refusal)
            account = lane.refusal.account
            if self._strict:
                self._accounts.setdefault((account.tenant, account.gpu_model), lane.head)
        elif lane.failure is not None:
            verdict = lane.failure
            if self._strict and not verdict.will_never_run:
                for model in sorted(wanted):
                    self._pools.setdefault(model, lane.head)
        else:
            verdict = self._behind(lane, min(closed)) if closed else _PENDING
        rest = verdict
        if self._strict and not verdict.will_never_run:
            rest = _behind(lane.head, min(wanted))
        tell_lane(state, lane, verdict, rest, out)

    def _behind(self, lane: Lane, model: str) -> Verdict:
        ahead = self._pools.get(model)
        if ahead is None:
            accounts = self._state.book.chain(lane.tenant, model)
            keys = [(a.tenant, a.gpu_model) for a in accounts]
            ahead = next(self._accounts[key] for key in keys if key in self._accounts)
        return _behind(ahead, model)


_PENDING = Verdict(Reason.PENDING_EVALUATION, "The job is considered in the next cycle.")


def _behind(ahead: str, model: str) -> Verdict:
    return Verdict(
        Reason.BEHIND_IN_QUEUE,
        f"A job ahead waits for {model} GPUs, and this cluster starts jobs strictly in order.",
        {"ahead": ahead, "gpu_model": model},
        ("wait for the job ahead", "choose another GPU model"),
    )
