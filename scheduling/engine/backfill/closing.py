"""What a blocked job closes to the jobs behind it: pools, quota, and queues that had too much."""

from scheduling.engine.admission.limits import over_job_limit
from scheduling.engine.admission.out_of_service import within_reach
from scheduling.engine.backfill.kept_quota import own_quota, waits_for
from scheduling.engine.backfill.walk import Walk
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.quota.borrowing import Awaited, Kept

Line = tuple[str, str, str]  # tenant, queue, GPU model


def close_pools(walk: Walk, record: JobRecord, wanted: frozenset[str]) -> None:
    """Close these pools to all jobs behind the job."""
    way, name = walk.way, record.job.id
    for model in sorted(wanted.difference(way.pools)):
        way.pools[model] = name
        way.add((model, name), record.key)


def close_quota(
    walk: Walk,
    eq_class: EquivalenceClass,
    record: JobRecord,
    kept: Kept = frozenset(),
    *,
    passable: bool = False,
) -> None:
    """Close what a job refused by quota waits for: its tenant's quota, and what it would borrow.

    Guarantees of other tenants stay open to them. `passable`: jobs that the closing job could
    preempt may pass.
    """
    way = walk.way
    waits = waits_for(walk.state, record, kept)
    if waits is None:
        return
    refusing, borrowed = waits
    account = own_quota(walk.state, eq_class.tenant, refusing.gpu_model)
    more: Awaited = frozenset() if kept else borrowed.difference(way.kept)
    if more or account not in way.accounts:
        way.accounts.setdefault(account, eq_class.head)
        way.kept.update(dict.fromkeys(more, eq_class.head))
        if passable:
            way.closers[eq_class.head] = record.no_plan.awaits_min_runtime
        found = (*account, eq_class.head, more, record.no_plan.awaits_min_runtime)
        way.add(found, record.key)


def close_queues(walk: Walk, eq_class: EquivalenceClass, record: JobRecord) -> None:
    """Close pools to queues of the tenant that had too much while this queue had too little."""
    lines = queues_to_close(walk, eq_class)
    if lines:
        walk.way.queues.update(dict.fromkeys(lines, record.job.id))
        walk.way.add((*lines, record.job.id), record.key)
        walk.state.wake_at(walk.state.queues.waited_for_until(record.job))


def queues_to_close(walk: Walk, eq_class: EquivalenceClass) -> list[Line]:
    """Return (tenant, queue, GPU model) of what the class closes for its queue if it waits."""
    state, tenant = walk.state, eq_class.tenant
    if tenant not in state.queues.ordered or eq_class.never is not None:
        return []
    record = state.jobs[eq_class.head]
    behind_it = walk.waits_for.get((tenant, eq_class.queue))
    if behind_it is None:
        behind_it = walk.waits_for[tenant, eq_class.queue] = state.queues.wait_for(record.job)
    if not behind_it or record.job.without_gpus or over_job_limit(state, record) is not None:
        return []
    return [
        (tenant, queue, model)
        for model in sorted(within_reach(state, record))
        for queue in sorted(behind_it)
        if (tenant, queue, model) not in walk.way.queues
    ]
