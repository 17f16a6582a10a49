"""Static quota admission: which classes have passed quota into the global queue."""

from collections.abc import Collection

from scheduling.engine.admission.candidates import assess, assessed
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.reasons.after import ON_HOLD, tell_waits
from scheduling.engine.reasons.tell import tell, tell_all
from scheduling.engine.state import SchedulerState
from scheduling.engine.verdict import Reason, Verdict


def admit_by_quota(state: SchedulerState, out: Outcome) -> None:
    """Assess every class against what runs now, before placement and again after it.

    Starts may have used quota up in between. What has changed for jobs is reported at the end of
    the cycle (`report_quota`).
    """
    for job_id in state.parked:
        if (record := state.jobs.get(job_id)) is not None and record.eq_class is None:
            _park(state, record, out)
    state.parked.clear()
    for eq_class in state.set_aside:
        _park_class(state, eq_class, out)
    state.set_aside.clear()
    if not state.queue.eq_classes:
        return
    since = state.memo.since_assessed()
    for eq_class in state.queue.touched if since.nothing else state.queue.eq_classes:
        if (
            since.only_booked
            and eq_class.refusal is not None
            and not (eq_class.reserved or eq_class.fresh)
        ):
            continue
        if since.only_returned and eq_class.reserved and not eq_class.fresh:
            continue
        if eq_class.jobs and not assessed(state, eq_class):
            assess(state, eq_class)
        turned = eq_class.turns()
        if turned:
            state.dirty = True  # whether it is in the way of others may have changed
        if turned or eq_class.fresh:
            out.turned.setdefault(eq_class, set()).update(eq_class.fresh)


def report_quota(state: SchedulerState, out: Outcome) -> None:
    """Report the waiting jobs that have passed quota, or no longer have.

    All jobs of a class are reported only if the answer differs from that at the end of the last
    cycle; otherwise only the jobs that have joined the class.
    """
    for eq_class, came in out.turned.items():
        if eq_class.tell_reserved():
            names = [key.job_id for key in eq_class.jobs]
        else:
            names = sorted(came)
        reserved = eq_class.reserved
        changed = out.quota_reserved if reserved else out.quota_lost
        for name in names:
            record = state.jobs.get(name)
            if record is None or record.eq_class is not eq_class or record.started_at is not None:
                continue
            if record.passed_quota(passed=reserved):
                changed.append(name)


def _park_class(state: SchedulerState, eq_class: EquivalenceClass, out: Outcome) -> None:
    """Report the jobs of a class that was set aside because its queue is held.

    Nothing else keeps these jobs back: otherwise they would have been in no class.
    """
    jobs = state.jobs
    held = state.queues.held.get((eq_class.tenant, eq_class.queue))
    told: list[JobRecord] = []
    for key in eq_class.jobs:
        record = jobs.get(key.job_id)
        if record is None or record.aside is not eq_class:
            continue  # something happened to the job meanwhile
        in_vain = state.dependencies.any_doomed
        if held is None or in_vain or record.started_at is not None:
            _park(state, record, out)
            continue
        if record.passed_quota(passed=False):
            out.quota_lost.append(key.job_id)
        told.append(record)
    if held is not None:
        tell_all(told, held, out)


def _park(state: SchedulerState, record: JobRecord, out: Outcome) -> None:
    """Report a job that may not be tried now.

    It or its queue is held, it waits for other jobs, or its start time is yet to come.
    """
    if record.started_at is None and record.passed_quota(passed=False):
        out.quota_lost.append(record.job.id)
    by = state.dependencies.doomed_by(record.job)
    state.doom(record, by)
    if record.held:
        tell(record, ON_HOLD, out)
        return
    before = state.dependencies.waits_for(record.job)
    if by is not None:
        tell(record, doomed(record.job.after_ok, by), out)
        return
    if before:
        tell_waits(state.dependencies, record, before, out)
        return
    held = state.queues.why_held(record.job)
    if held is not None:
        tell(record, held, out)
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
    """Return why a job that needs the success of these jobs and arrays never starts.

    `by` failed: it is one of them, or one that they need themselves.
    """
    if by in after_ok:
        text = f"It waits for job or array {by} to succeed, and that did not succeed."
        remedies = ("take it out of `after_ok`", "submit the job again without it")
    else:
        text = (
            "It starts only after another job succeeds, which will never start: job or array "
            f"{by} did not succeed."
        )
        remedies = ("change or cancel the jobs between them", "submit the job again without them")
    return Verdict(Reason.MISCONFIGURED, text, {"after": by}, remedies)
