"""Static and dynamic admission of the head of a lane (paper 3.2.1)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from scheduling.engine.queueing.eligibility import demand_of, never
from scheduling.engine.queueing.quota import Refusal
from scheduling.engine.queueing.shapes import Wish, choices, narrowed, pools_of, wish_of
from scheduling.engine.queueing.state import SchedulerState
from scheduling.engine.queueing.waiting import JobRecord, Lane
from scheduling.engine.types import MILLI, JobRequest
from scheduling.engine.verdict import Reason, Verdict, gpus


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to start a job: its pod sets on these GPU models, at most these pods of each."""

    job: JobRequest
    counts: tuple[int, ...]


def assess(state: SchedulerState, lane: Lane) -> None:
    """Bring a lane's static verdicts up to date: can it ever run, may it run now by quota?"""
    record = state.jobs[lane.head]
    facts = (state.pools.version, state.book.structure)
    if lane.never_at != facts:
        lane.never_at = facts
        strategy = state.strategy_of(record.job)
        lane.never = never(record.job, state.pools, state.book, strategy, state.cluster.levels)
        lane.quota_at = -1
    if lane.quota_at != state.book.version:
        lane.quota_at = state.book.version
        lane.refusal = None if lane.never else _refused(state, record)


def _refused(state: SchedulerState, record: JobRecord) -> Refusal | None:
    """Why quota lets no part of the job start in any of its GPU models; None when it does."""
    first: Refusal | None = None
    for models in choices(record.job, state.pools.models()):
        for least in smallest_starts(record):
            no = state.book.refusal_of(
                record.job.tenant, demand_of(record.job, models, least, state.pools)
            )
            if no is None:
                return None
            first = first or no
    return first


def smallest_starts(record: JobRecord) -> Iterator[tuple[int, ...]]:
    """Pod counts of the least that may start: the gang's minimum, or any one missing pod."""
    missing = record.missing()
    if record.job.gang:
        yield wish_of(record.job, missing).least
        return
    for i, n in enumerate(missing):
        if n:
            yield tuple(int(i == j) for j in range(len(missing)))


def candidates(
    state: SchedulerState, record: JobRecord, closed: frozenset[str]
) -> Iterator[Candidate]:
    """Ways to start the job that quota allows now, the preferred GPU models first.

    Pools in `closed` belong to a job ahead and are not used.
    """
    job = record.job
    wish = wish_of(job, record.missing())
    for models in choices(job, state.pools.models()):
        if closed.intersection(models):
            continue
        counts = _most_by_quota(state, job, models, wish)
        if counts is not None:
            yield Candidate(narrowed(job, models), counts)


def _most_by_quota(
    state: SchedulerState, job: JobRequest, models: tuple[str, ...], wish: Wish
) -> tuple[int, ...] | None:
    """The most pods per pod set that quota allows, not fewer than the least; None = none.

    The pod sets of a job that is no gang do not wait for each other.
    """

    def allowed(counts: tuple[int, ...]) -> bool:
        asked = demand_of(job, models, counts, state.pools)
        return state.book.refusal_of(job.tenant, asked) is None

    if allowed(wish.most):
        return wish.most
    if not allowed(wish.least):
        return None
    if job.gang:
        return wish.filled(_largest(wish.room, lambda extra: allowed(wish.filled(extra))))
    counts = list(wish.least)
    for i, most in enumerate(wish.most):
        before, after = tuple(counts[:i]), tuple(counts[i + 1 :])
        counts[i] = _largest(most, partial(_joined, allowed, before, after))
    return tuple(counts) if any(counts) else None


def _joined(
    allowed: Callable[[tuple[int, ...]], bool],
    before: tuple[int, ...],
    after: tuple[int, ...],
    pods: int,
) -> bool:
    return allowed((*before, pods, *after))


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest n of 0 … most that fits, when 0 does and less fits more easily."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def fits_by_count(state: SchedulerState, candidate: Candidate) -> bool:
    """Dynamic admission: are enough GPUs free at all, in every pool of the job, to try?"""
    job = candidate.job
    if not job.gang:
        return any(
            s.gpus == 0 or state.cluster.free_milli(s.gpu_models[0]) > 0
            for s, n in zip(job.pod_sets, candidate.counts, strict=True)
            if n
        )
    least = wish_of(job, tuple(s.count for s in job.pod_sets)).least
    models = tuple(s.gpu_models[0] if s.gpus else "" for s in job.pod_sets)
    asked = demand_of(job, models, least, state.pools)
    return all(state.cluster.free_milli(m) >= milli for m, milli in asked.items())


def pools_wanted(state: SchedulerState, record: JobRecord) -> frozenset[str]:
    """GPU models whose pools the job's missing pods compete for."""
    return pools_of(record.job, state.pools.models())


def quota_verdict(refusal: Refusal) -> Verdict:
    """The reason of a job that quota refuses, with the account's numbers."""
    account = refusal.account
    numbers: dict[str, int | float | str] = {
        "tenant": account.tenant,
        "gpu_model": account.gpu_model,
        "asked": refusal.asked / MILLI,
        "used": account.used / MILLI,
        "guaranteed": account.guaranteed / MILLI,
        "borrowed": account.over / MILLI,
        "left": refusal.allowed / MILLI,
    }
    asked = gpus(refusal.asked, account.gpu_model)
    if refusal.reason is Reason.BORROW_LIMIT_REACHED:
        numbers["borrow_limit"] = account.borrow_limit / MILLI
        text = (
            f"Tenant {account.tenant} may borrow at most "
            f"{gpus(account.borrow_limit, account.gpu_model)}; {asked} more would exceed it."
        )
        return Verdict(
            Reason.BORROW_LIMIT_REACHED,
            text,
            numbers,
            ("wait until jobs of the tenant end", "raise the borrow limit"),
        )
    if account.shared:
        text = f"No other tenant has idle quota to lend tenant {account.tenant} for {asked}."
        remedies = ("wait until lenders' jobs or the tenant's own end", "make the job smaller")
    else:
        text = (
            f"Tenant {account.tenant} uses {account.used / MILLI:g} of its "
            f"{gpus(account.guaranteed, account.gpu_model)}; {asked} more are asked for."
        )
        remedies = ("wait until jobs of the tenant end", "make the job smaller")
    return Verdict(Reason.WAITING_FOR_QUOTA, text, numbers, remedies)
