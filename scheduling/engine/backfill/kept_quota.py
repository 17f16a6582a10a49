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

# What jobs wait for of which a start by quota is looked for in a walk.
MAX_ASKED = 32


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
        return bool(borrowed.difference(way.kept).difference(way.awaited))
    account = own_quota(state, record.job.tenant, refusing.gpu_model)
    return account not in way.accounts and account not in way.awaited


def news_of(state: SchedulerState, way: Reservations, record: JobRecord) -> frozenset[object]:
    """What the job, which a quota or a limit refuses, is the first to wait for under backfill; none
    if a job ahead waits for all of it, or enough starts were looked for."""
    if not state.policy.foresees_starts or len(way.asked) >= MAX_ASKED:
        return frozenset()
    wanted: set[object] = {("limit", name) for name in jobs_to_stop(state, record)}
    waits = waits_for(state, record)
    if waits is not None:
        refusing, borrowed = waits
        wanted |= borrowed or {own_quota(state, record.job.tenant, refusing.gpu_model)}
    return frozenset(wanted) if not wanted <= way.asked.keys() else frozenset()


def own_quota(state: SchedulerState, tenant: str, model: str) -> tuple[str, str]:
    """The nearest quota that the tenant's jobs are charged to, by its tenant and GPU model."""
    chain = state.book.chain(tenant, model)
    return (chain[0].tenant if chain else tenant), model


def kept_from(
    state: SchedulerState,
    way: Reservations,
    record: JobRecord,
    models: frozenset[str],
    kept: Kept,
) -> frozenset[str]:
    """GPU models of which no part of the job can start without borrowing, or holding, what is
    kept."""
    if NO_GPUS in models:
        return frozenset()  # no quota is asked for
    free: set[str] = set()
    for choice in ask_of(state, record).ways:
        for demand in choice.starts:
            if withheld(state, way, record.job, demand, kept) is None:
                free.update(demand)
    return models - free


def closes_quota(state: SchedulerState, way: Reservations, tenant: str, model: str) -> bool:
    """Whether a job ahead waits for the tenant's own quota of the GPU model."""
    chain = state.book.chain(tenant, model) if way.accounts else ()
    return bool(chain) and (chain[0].tenant, model) in way.accounts


def withheld(
    state: SchedulerState, way: Reservations, job: JobRequest, demand: Demand, kept: Kept
) -> Refusal | None:
    """Why quota refuses it where it is only what is kept that forbids it."""
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
