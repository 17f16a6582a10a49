"""Give jobs their positions in the queue by learned run times (`queue/order.py`).

The first run time that is learned for a job fixes its position, also for the next scheduler: a
position that changed with every new finding would mean nothing. Jobs are ordered by submission if
the policy does not plan by learned run times, and in queues with the order `fifo`.
"""

from collections.abc import Iterable

from scheduling.engine.backfill.gathering import needs_several
from scheduling.engine.deltas import JobHistory
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.order import stands_at
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import JobRequest


def place(state: SchedulerState, records: Iterable[JobRecord], out: Outcome) -> None:
    """Position jobs by what was first learned of them, or by submission again if that is off."""
    for record in records:
        if not _may_stand_later(state, record.job):
            if record.stands_at is not None:
                state.stand(record, None, out.now)
                out.stands(record)
            continue
        likely = record.likely
        waits = record.started_at is None and record.job.gang and record.job.declared_s is None
        if record.stands_at is None and likely is not None and waits:
            middle_s = likely.middles[0] if likely.middles else likely.most_s
            at = stands_at(record.job, middle_s, needs_several=needs_several(state, record))
            state.stand(record, at, out.now)
            out.stands(record)


def stood_before(state: SchedulerState, told: JobHistory, out: Outcome) -> None:
    """Restore the position that a job had under an earlier scheduler."""
    record = state.jobs[told.job_id]
    kept = told.stands_at if _may_stand_later(state, record.job) else None
    if kept != record.stands_at:
        state.stand(record, kept, out.now)
    if kept != told.stands_at:
        out.stands(record)


def _may_stand_later(state: SchedulerState, job: JobRequest) -> bool:
    queue = state.queues.of(job)
    return state.policy.plans_by_learned and (queue is None or not queue.fifo)
