"""What a job that cannot start means for the jobs behind it (paper 3.2.2, table 1).

| policy | a blocked job closes to the jobs behind it |
|---|---|
| strict FIFO | the pools it competes for; the account that refused it |
| best-effort FIFO | nothing |
| backfill | the nodes reserved for it; without a reservation, after a threshold, its pools |
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from scheduling.engine.decisions import Reservation
from scheduling.engine.queueing.admission import (
    assess,
    candidates,
    pools_wanted,
    quota_verdict,
)
from scheduling.engine.queueing.limits import over_job_limit
from scheduling.engine.queueing.report import tell_lane
from scheduling.engine.queueing.reserve import expected_start
from scheduling.engine.queueing.start import would_start
from scheduling.engine.queueing.state import Outcome, SchedulerState
from scheduling.engine.queueing.waiting import Expected, JobRecord, Lane
from scheduling.engine.types import QueueingPolicy
from scheduling.engine.verdict import Reason, Verdict


@dataclass(frozen=True, slots=True)
class Head:
    """The first blocked job of a pool under backfill."""

    job_id: str
    overdue: bool
    expected: Expected | None


class Terms(NamedTuple):
    """What the blocked jobs ahead leave to a lane: which of its jobs may be tried, and how.

    Pools in `closed` and nodes in `avoid` are not to be used. `later`: jobs that end before the
    heads ahead can start are tried first.
    """

    record: JobRecord
    closed: frozenset[str] = frozenset()
    avoid: frozenset[str] = frozenset()
    later: bool = False


class Ahead(NamedTuple):
    """The blocked heads of some pools, the seconds until the first can start, their nodes and
    whether any has nodes reserved."""

    heads: tuple[Head, ...]
    window: float
    nodes: frozenset[str]
    later: bool


class Blocking:
    """Pools, accounts and nodes that belong to blocked jobs for the rest of one cycle."""

    def __init__(self, state: SchedulerState, out: Outcome) -> None:
        self._state = state
        self._out = out
        self._policy = state.policy.queueing
        self._pools: dict[str, str] = {}  # GPU model -> the job ahead
        self._accounts: dict[tuple[str, str], str] = {}
        self._heads: dict[str, Head] = {}
        # What holds for all lanes alike until another job is found blocked.
        self._ahead_of: dict[frozenset[str], Ahead] = {}
        self._closed_to: dict[tuple[frozenset[str], bool], frozenset[str]] = {}
        self._told: dict[str, Verdict] = {}

    def terms(self, lane: Lane) -> Terms:
        """What the blocked jobs ahead leave to this lane."""
        first = self._state.jobs[lane.head]
        if not (self._pools or self._accounts or self._heads):
            return Terms(first)
        models = pools_wanted(self._state, first)
        ahead = self._ahead_of.get(models) or self._ahead(models)
        short = None if lane.shortest > ahead.window else self._ends_within(lane, ahead.window)
        closed = self._closed_to.get((models, short is None)) if not self._accounts else None
        if closed is None:
            closed = frozenset(m for m in models if self._is_closed(lane.tenant, m, short is None))
            self._closed_to[models, short is None] = closed
        if short is not None or not ahead.heads:
            return Terms(short or first, closed)
        return Terms(first, closed, ahead.nodes, ahead.later)

    def _ahead(self, models: frozenset[str]) -> Ahead:
        """The heads of these pools together."""
        heads = [self._heads[m] for m in sorted(models) if m in self._heads]
        starts = [head.expected.at if head.expected else -math.inf for head in heads]
        avoid = [head.expected.nodes for head in heads if head.expected is not None]
        window = min(starts, default=-math.inf) - self._out.now
        found = Ahead(tuple(heads), window, frozenset().union(*avoid), bool(avoid))
        self._ahead_of[models] = found
        return found

    def _is_closed(self, tenant: str, model: str, too_long: bool) -> bool:
        if model in self._pools:
            return True
        head = self._heads.get(model)
        if head is not None and head.overdue and head.expected is None and too_long:
            return True
        chain = self._state.book.chain(tenant, model) if self._accounts else ()
        return any((a.tenant, a.gpu_model) in self._accounts for a in chain)

    def _ends_within(self, lane: Lane, window: float) -> JobRecord | None:
        """The first job of the lane that, as declared, is over when the heads can start."""
        for key in lane.jobs:
            record = self._state.jobs[key[3]]
            if record.job.declared_s is not None and record.job.declared_s <= window:
                return record
        return None

    def blocked(self, lane: Lane, terms: Terms) -> None:
        """Tell the lane why it waits, and close what the policy wants closed behind it."""
        state, out = self._state, self._out
        assess(state, lane)
        if lane.never is not None:
            tell_lane(state, lane, lane.never, lane.never, out)
            return
        record = state.jobs[lane.head]
        wanted = pools_wanted(state, record)
        if terms.closed >= wanted:
            verdict = self._behind(lane, min(terms.closed))
            tell_lane(state, lane, verdict, verdict, out)
            return
        verdict = self._reason(lane, terms, wanted)
        rest = verdict
        if "max_running" in verdict.evidence:
            pass  # no GPU would help it: it is in nobody's way
        elif not verdict.will_never_run and self._close(lane, record, wanted):
            rest = _behind(lane.head, min(wanted))
        tell_lane(state, lane, verdict, rest, out)

    def _reason(self, lane: Lane, terms: Terms, wanted: frozenset[str]) -> Verdict:
        capped = over_job_limit(self._state, self._state.jobs[lane.head])
        if capped is not None:
            return capped
        if lane.refusal is not None:
            return quota_verdict(lane.refusal)
        if terms.avoid and would_start(self._state, self._state.jobs[lane.head], terms.closed):
            return self._reserved(self._heads[min(m for m in wanted if m in self._heads)])
        if lane.failure is not None:
            return lane.failure
        if terms.closed:
            return self._behind(lane, min(terms.closed))
        return Verdict(Reason.PENDING_EVALUATION, "The job is considered in the next cycle.")

    def _close(self, lane: Lane, record: JobRecord, wanted: frozenset[str]) -> bool:
        """Apply the policy to the jobs behind; whether those of the same lane are among them."""
        if self._policy is QueueingPolicy.BEST_EFFORT_FIFO:
            return False
        self._ahead_of.clear()
        self._closed_to.clear()
        self._told.clear()
        if self._policy is QueueingPolicy.STRICT_FIFO:
            if lane.refusal is None:
                for model in sorted(wanted):
                    self._pools.setdefault(model, lane.head)
        elif lane.refusal is None:
            self._lead(record, [m for m in sorted(wanted) if m not in self._heads])
            return False
        elif not self._overdue(record):
            return False
        if lane.refusal is not None:
            account = lane.refusal.account
            self._accounts.setdefault((account.tenant, account.gpu_model), lane.head)
        return True

    def overdue(self, record: JobRecord) -> bool:
        """Whether backfilled jobs may be preempted for this one."""
        since = record.blocked_since
        return (
            self._policy is QueueingPolicy.BACKFILL
            and since is not None
            and since + self._state.policy.backfill_after_s <= self._out.now
        )

    def _overdue(self, record: JobRecord) -> bool:
        """Whether the job has been blocked for longer than the policy's threshold."""
        if record.blocked_since is None:
            self._out.block(record, self._out.now)
        assert record.blocked_since is not None
        due = record.blocked_since + self._state.policy.backfill_after_s
        if due > self._out.now:
            self._state.wake_at(due)
        return due <= self._out.now

    def _lead(self, record: JobRecord, pools: list[str]) -> None:
        """Make the job the head of the pools that have none yet."""
        if pools:
            head = Head(record.job.id, self._overdue(record), self._expected(record))
            self._heads.update(dict.fromkeys(pools, head))

    def _expected(self, record: JobRecord) -> Expected | None:
        """The head's reservation; worked out again only when the cluster has changed."""
        state = self._state
        if record.expected_at != state.cluster.version:
            record.expected_at = state.cluster.version
            expected = None
            for candidate in candidates(state, record, frozenset()):
                expected = expected_start(state, candidate, self._out.now)
                if expected is not None:
                    break
            if expected != record.expected:
                record.expected = expected
                at, nodes = (expected.at, expected.nodes) if expected else (None, frozenset[str]())
                self._out.reservations.append(Reservation(record.job.id, at, tuple(sorted(nodes))))
                if expected is not None:
                    state.reserving.add(record.job.id)
                else:
                    state.reserving.discard(record.job.id)
        return record.expected

    def give_up(self) -> None:
        """Report the reservations of jobs that are the head of no pool any more."""
        heads = {head.job_id for head in self._heads.values()}
        for job_id in sorted(self._state.reserving - heads):
            record = self._state.jobs.get(job_id)
            if record is not None:
                record.expected, record.expected_at = None, -1
                self._out.reservations.append(Reservation(job_id, None))
        self._state.reserving &= heads

    def _behind(self, lane: Lane, model: str) -> Verdict:
        head = self._heads.get(model)
        if head is not None and head.job_id != lane.head:
            return self._reserved(head)
        ahead = self._pools.get(model)
        if ahead is None:
            keys = [(a.tenant, a.gpu_model) for a in self._state.book.chain(lane.tenant, model)]
            ahead = next(self._accounts[key] for key in keys if key in self._accounts)
        return _behind(ahead, model)

    def _reserved(self, head: Head) -> Verdict:
        verdict = self._told.get(head.job_id)
        if verdict is None:
            verdict = self._told[head.job_id] = _reserved(head)
        return verdict


def _behind(ahead: str, model: str) -> Verdict:
    return Verdict(
        Reason.BEHIND_IN_QUEUE,
        f"A job ahead waits for {model} GPUs, and jobs behind it may not overtake it.",
        {"ahead": ahead, "gpu_model": model},
        ("wait for the job ahead", "choose another GPU model"),
    )


def _reserved(head: Head) -> Verdict:
    numbers: dict[str, int | float | str] = {"ahead": head.job_id}
    text = "What is free is kept for a job ahead that has waited too long."
    if head.expected is not None:
        numbers["starts_at"] = head.expected.at
        numbers["nodes"] = len(head.expected.nodes)
        text = "What is free is reserved for a job ahead whose start is known."
    return Verdict(
        Reason.RESERVED_FOR_HEAD,
        text,
        numbers,
        ("declare a run time that ends before the job ahead starts", "wait for the job ahead"),
    )
