"""Quota to borrow that is kept for blocked jobs, and what that leaves to the jobs behind them."""

from scheduling.engine.admission.candidates import ask_of, refused
from scheduling.engine.demand.requested import Demand
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.reservations import Reservations, Waits
from scheduling.engine.quota.book import Kept, Refusal
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import NO_GPUS, JobRequest


def waits_for(state: SchedulerState, record: JobRecord, kept: Kept = frozenset()) -> Waits | None:
    """The account that refuses the job if nothing of `kept` is borrowed, and all that it waits to
    borrow; None when quota lets it start."""
    found = refused(state, record, kept)
    if found is None:
        return None
    no, demand = found
    return no.account, state.book.awaited(record.job.tenant, demand, no)


def waits_first(state: SchedulerState, way: Reservations, record: JobRecord) -> bool:
    """Whether quota refuses the job and it is the first to wait for some of it: to borrow it, or,
    where it may not, for what its tenant is guaranteed."""
    waits = waits_for(state, record)
    if waits is None:
        return False
    refusing, borrowed = waits
    if borrowed:
        return bool(borrowed.difference(way.kept))
    return own_quota(state, record.job.tenant, refusing.gpu_model) not in way.accounts


def own_quota(state: SchedulerState, tenant: str, model: str) -> tuple[str, str]:
    """The nearest quota that the tenant's jobs are charged to, by its tenant and GPU model."""
    chain = state.book.chain(tenant, model)
    return (chain[0].tenant if chain else tenant), model


def kept_from(
    state: SchedulerState, way: Reservations, record: JobRecord, models: frozenset[str]
) -> frozenset[str]:
    """GPU models of which no part of the job can start without borrowing what is kept."""
    if NO_GPUS in models:
        return frozenset()  # no quota is asked for
    free: set[str] = set()
    for choice in ask_of(state, record).ways:
        for demand in choice.starts:
            if withheld(state, way, record.job, demand) is None:
                free.update(demand)
    return models - free


def closes_quota(state: SchedulerState, way: Reservations, tenant: str, model: str) -> bool:
    """Whether a job ahead waits for the tenant's own quota of the GPU model."""
    chain = state.book.chain(tenant, model) if way.accounts else ()
    return bool(chain) and (chain[0].tenant, model) in way.accounts


def withheld(
    state: SchedulerState, way: Reservations, job: JobRequest, demand: Demand
) -> Refusal | None:
    """Why quota refuses it where it is only what is kept that forbids it."""
    book, tenant, non_preemptible = state.book, job.tenant, not job.preemptible
    if way.withheld_at != book.version:
        way.withheld_at = book.version
        way.withheld.clear()
    key = (tenant, non_preemptible, *demand.items())
    if key not in way.withheld:
        free = book.refusal_of(tenant, demand, non_preemptible=non_preemptible) is None
        kept_back = (
            book.refusal_of(tenant, demand, way.all_kept, non_preemptible=non_preemptible)
            if free
            else None
        )
        way.withheld[key] = kept_back
    return way.withheld[key]
