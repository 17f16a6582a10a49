"""Static quota admission of the tenants' queues: who has passed into the global queue."""

from collections.abc import Collection

from scheduling.engine.admission.candidates import assess
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.reasons.tell import tell
from scheduling.engine.state import SchedulerState
from scheduling.engine.verdict import Reason, Verdict, counted


def admit_by_quota(state: SchedulerState, out: Outcome) -> None:
    """Assess every lane against what runs now; who passed or no longer passes is reported when the
    cycle ends (`report_quota`).

    Called before placement and again after it, when starts have used quota up.
    """
    for job_id in state.parked:
        if (record := state.jobs.get(job_id)) is not None and record.lane is None:
            _park(state, record, out)
    state.parked.clear()
    if not state.queue.lanes:
        return
    facts = (state.pools.version, state.book.structure)
    at = (state.book.loosened, state.book.tightened)
    lanes = state.queue.touched if state.admitted_at == (facts, at) else state.queue.lanes
    alike = state.admitted_at[0] == facts
    only_booked = alike and state.admitted_at[1][0] == at[0]
    only_returned = alike and state.admitted_at[1][1] == at[1]
    state.admitted_at = (facts, at)
    for lane in lanes:
        if only_booked and lane.refusal is not None and not (lane.reserved or lane.fresh):
            continue  # bookings never allow what was refused
        if only_returned and lane.reserved and not lane.fresh:
            continue  # giving back never refuses what was allowed
        if lane.jobs and (lane.never_at != facts or not lane.quota_stands(state.book)):
            assess(state, lane)
        passes = lane.never is None and lane.refusal is None
        turned = passes != lane.reserved
        if turned:
            lane.reserved = passes
            state.dirty = True  # it may be in the way of others now, or no longer
        if turned or lane.fresh:
            out.turned.setdefault(lane, set()).update(lane.fresh)


def report_quota(state: SchedulerState, out: Outcome) -> None:
    """Report the waiting jobs that passed quota or no longer do: all of a lane only if its answer
    is another than when the last cycle ended, else those that have come to it."""
    for lane, came in out.turned.items():
        names = sorted(came)
        if lane.reserved != lane.told_reserved:
            lane.told_reserved = lane.reserved
            names = [key.job_id for key in lane.jobs]
        for name in names:
            record = state.jobs.get(name)
            if record is not None and record.lane is lane:
                _mark(record, lane.reserved, out)


def _mark(record: JobRecord, passes: bool, out: Outcome) -> None:
    if record.started_at is None and record.reserved != passes:
        record.reserved = passes
        (out.quota_reserved if passes else out.quota_lost).append(record.job.id)


def _park(state: SchedulerState, record: JobRecord, out: Outcome) -> None:
    """A job that may not be attempted now: on hold, after others, or before its time."""
    if record.started_at is None:
        _mark(record, False, out)
    by = state.doomed_by(record)
    state.doom(record, by)
    if record.held:
        tell(record, Verdict(Reason.ON_HOLD, "The job is on hold.", {}, ("release it",)), out)
        return
    before = state.waits_for(record)
    if by is not None:
        tell(record, doomed(record.job.after_ok, by), out)
        return
    if before:
        jobs = sum(len(state.arrays.get(name, (name,))) for name in dict.fromkeys(before))
        text = f"The job waits for the end of {counted(jobs, 'other job', 'other jobs')}."
        numbers: dict[str, int | float | str] = {"jobs": jobs, "after": before[0]}
        tell(record, Verdict(Reason.ON_HOLD, text, numbers, ("wait for them",)), out)
        return
    tell(
        record,
        Verdict(
            Reason.BACKING_OFF,
            "The job waits until its start time or the end of its back-off.",
            {"not_before": record.not_before},
        ),
        out,
    )


def doomed(after_ok: Collection[str], by: str) -> Verdict:
    """Why a job never starts that waits for the success of these jobs and arrays: `by` failed, one
    of them, or one that they wait for."""
    if by in after_ok:
        text = f"It was to start after job or array {by} succeeded, which did not."
        remedies = ("take it out of `after_ok`", "submit the job again without it")
    else:
        text = (
            "It was to start after the success of a job that will never start, as job or array "
            f"{by} did not succeed."
        )
        remedies = ("change or cancel the jobs between them", "submit the job again without them")
    return Verdict(Reason.MISCONFIGURED, text, {"after": by}, remedies)
