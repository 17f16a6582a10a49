"""Quota to borrow that is kept for blocked jobs, and what that leaves to the jobs behind them."""

from scheduling.engine.queueing.admission import ask_of, refused
from scheduling.engine.queueing.ahead import InTheWay, Waits
from scheduling.engine.queueing.asks import Demand
from scheduling.engine.queueing.quota import Kept, Refusal
from scheduling.engine.queueing.state import SchedulerState
from scheduling.engine.queueing.waiting import JobRecord


def waits_for(state: SchedulerState, record: JobRecord, kept: Kept = frozenset()) -> Waits | None:
    """The account that refuses the job if nothing of `kept` is borrowed, and all that it waits for;
    None when quota lets it start."""
    found = refused(state, record, kept)
    if found is None:
        return None
    no, demand = found
    return no.account, state.book.awaited(record.job.tenant, demand, no)


def awaited(state: SchedulerState, way: InTheWay, record: JobRecord) -> Kept:
    """What the job waits for if quota refuses it, apart from what is kept for those ahead."""
    waits = waits_for(state, record)
    return frozenset() if waits is None else waits[1].difference(way.kept)


def kept_from(
    state: SchedulerState, way: InTheWay, record: JobRecord, models: frozenset[str]
) -> frozenset[str]:
    """GPU models of which no part of the job can start without borrowing what is kept."""
    free: set[str] = set()
    for choice in ask_of(state, record).ways:
        for demand in choice.starts:
            if withheld(state, way, record.job.tenant, demand) is None:
                free.update(demand)
    return models - free


def closes_quota(state: SchedulerState, way: InTheWay, tenant: str, model: str) -> bool:
    """Whether a job ahead waits for the tenant's own quota of the GPU model."""
    chain = state.book.chain(tenant, model) if way.accounts else ()
    return bool(chain) and (chain[0].tenant, model) in way.accounts


def withheld(state: SchedulerState, way: InTheWay, tenant: str, demand: Demand) -> Refusal | None:
    """Why quota refuses it where it is only what is kept that forbids it."""
    book = state.book
    if way.withheld_at != book.version:
        way.withheld_at = book.version
        way.withheld.clear()
    key = (tenant, *demand.items())
    if key not in way.withheld:
        free = book.refusal_of(tenant, demand) is None
        way.withheld[key] = book.refusal_of(tenant, demand, way.all_kept) if free else None
    return way.withheld[key]
