"""Tell waiting jobs why they wait, only when that has changed."""

from scheduling.engine.decisions import Waiting
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.state import SchedulerState
from scheduling.engine.verdict import PREEMPTS_FROM, PROTECTED_UNTIL, Verdict


def worth_telling(old: Verdict | None, at: float, new: Verdict, out: Outcome) -> bool:
    """Return whether the reason changed, or its numbers did and were told long enough ago."""
    if old is None or old.reason is not new.reason:
        return True
    if (old.evidence.keys() ^ new.evidence.keys()) - {PROTECTED_UNTIL, PREEMPTS_FROM}:
        return True  # for example another limit than before
    return out.now >= at + out.refresh_s and (
        old.evidence != new.evidence or old.summary != new.summary
    )


def tell(record: JobRecord, verdict: Verdict, out: Outcome) -> None:
    """Report a job's reason if it is news to the job."""
    if worth_telling(record.verdict, record.verdict_at, verdict, out):
        record.tell(verdict, out.now)
        out.waiting[record.job.id] = Waiting(record.job.id, verdict)


def tell_class(
    state: SchedulerState, eq_class: EquivalenceClass, first: Verdict, rest: Verdict, out: Outcome
) -> None:
    """Report a reason to the first job of a class and one to the others; cheap if it is no news."""
    tell(state.jobs[eq_class.head], first, out)
    news = worth_telling(eq_class.rest, eq_class.rest_at, rest, out)
    told = eq_class.tell(rest, out.now) if news else eq_class.tell_fresh()
    tell_all([state.jobs[job_id] for job_id in told], rest, out)


def tell_all(records: list[JobRecord], verdict: Verdict, out: Outcome) -> None:
    """Do what `tell` does for each of them, fast: there may be thousands."""
    reason, now, waiting = verdict.reason, out.now, out.waiting
    for record in records:
        old = record.verdict
        if (
            old is None
            or old.reason is not reason
            or worth_telling(old, record.verdict_at, verdict, out)
        ):
            record.tell(verdict, now)
            job_id = record.job.id
            waiting[job_id] = Waiting(job_id, verdict)
