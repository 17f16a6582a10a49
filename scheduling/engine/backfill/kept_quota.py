"""Quota to borrow that is kept for blocked jobs, and what that leaves to the jobs behind them."""

from scheduling.engine.admission.candidates import ask_of, refused
from scheduling.engine.admission.limits import jobs_to_stop
from scheduling.engine.demand.requested import Demand
from scheduling.engine.memo import WITHHELD
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.reservations import Reservations, Waits
from scheduling.engine.quota.borrowing import Kept, Refusal
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import NO_GPUS, JobRequest

# For how many things that jobs wait for, a walk looks for a start by quota.
MAX_ASKED = 32


def waits_for(state: SchedulerState, record: JobRecord, kept: Kept = frozenset()) -> Waits | None:
    """Return the account that refuses the job, and all that the job waits to borrow.

    Nothing of `kept` may be borrowed. None if quota lets the job start.
    """
    found = refused(state, record, kept)
    if found is None:
        return None
    no, demand = found
    return no.account, state.book.awaited(record.job.tenant, demand, no)


def waits_first(state: SchedulerState, way: Reservations, record: JobRecord) -> bool:
    """Return whether quota refuses the job and the job is the first to wait for some of it.

    It waits to borrow quota or, if it may not borrow, for what its tenant is guaranteed.
    """
    waits = waits_for(state, record)
    if waits is None:
        return False
    refusing, borrowed = waits
    if borrowed:
        return bool(borrowed.difference(way.kept).difference(way.awaited))
    account = own_quota(state, record.job.tenant, refusing.gpu_model)
    return account not in way.accounts and account not in way.awaited


def news_of(state: SchedulerState, way: Reservations, record: JobRecord) -> frozenset[object]:
    """Return what the job, refused by quota or a limit, is the first to wait for under backfill.

    Nothing if jobs ahead wait for all of it, or if enough starts were looked for.
    """
    if not state.policy.foresees_starts or len(way.asked) >= MAX_ASKED:
        return frozenset()
    wanted: set[object] = {("limit", name) for name in jobs_to_stop(state, record)}
    waits = waits_for(state, record)
    if waits is not None:
        refusing, borrowed = waits
        wanted |= borrowed or {own_quota(state, record.job.tenant, refusing.gpu_model)}
    return frozenset(wanted) if not wanted <= way.asked.keys() else frozenset()


def own_quota(state: SchedulerState, tenant: str, model: str) -> tuple[str, str]:
    """Return the nearest quota that the tenant's jobs are charged to, as (tenant, GPU model)."""
    chain = state.book.chain(tenant, model)
    return (chain[0].tenant if chain else tenant), model


def kept_from(
    state: SchedulerState,
    way: Reservations,
    record: JobRecord,
    models: frozenset[str],
    kept: Kept,
) -> frozenset[str]:
    """Return the GPU models on which nothing of the job can start without what is kept.

    That means: without borrowing it, or without taking what is held for a head.
    """
    if NO_GPUS in models:
        return frozenset()  # no quota is asked for
    free: set[str] = set()
    for choice in ask_of(state, record).ways:
        for demand in choice.starts:
            if withheld(state, way, record.job, demand, kept) is None:
                free.update(demand)
    return models - free


def closes_quota(state: SchedulerState, way: Reservations, tenant: str, model: str) -> bool:
    """Return whether a job ahead waits for the tenant's own quota of the GPU model."""
    chain = state.book.chain(tenant, model) if way.accounts else ()
    return bool(chain) and (chain[0].tenant, model) in way.accounts


def withheld(
    state: SchedulerState, way: Reservations, job: JobRequest, demand: Demand, kept: Kept
) -> Refusal | None:
    """Return the refusal of quota if only what is kept forbids the demand; otherwise None."""
    book, tenant, non_preemptible = state.book, job.tenant, not job.preemptible
    known = state.memo.table(WITHHELD, way, state.memo.booked)
    key = (tenant, non_preemptible, kept, *demand.items())
    if key not in known:
        free = book.refusal_of(tenant, demand, non_preemptible=non_preemptible) is None
        kept_back = (
            book.refusal_of(tenant, demand, kept, non_preemptible=non_preemptible) if free else None
        )
        known[key] = kept_back
    why: Refusal | None = known[key]
    return why
