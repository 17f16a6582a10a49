"""The reasons of jobs that wait for the end of other jobs, and what is in their way.

A job that is on hold, or that can never run as it is, does not end by itself; nor does a job that
waits for it.
"""

from typing import Final

from scheduling.engine.decisions import Waiting
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.dependencies import DependentJobs, Stuck
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.reasons.tell import tell
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import JobRequest
from scheduling.engine.verdict import Reason, Verdict, counted

ON_HOLD: Final = Verdict(Reason.ON_HOLD, "The job is on hold.", {}, ("release it",))
# Keys of the evidence: the job that is in the way, and the reason that it was told.
IN_THE_WAY: Final = "in_the_way"
ITS_REASON: Final = "its_reason"


def tell_waits(
    dependencies: DependentJobs, record: JobRecord, before: list[str], out: Outcome
) -> None:
    """Tell a job that it waits for these jobs and arrays, which are not over."""
    verdict, old = _waits(dependencies, record, before), record.verdict
    if old is not None and _which(old) != _which(verdict):  # the same numbers, but another job
        _tell_at_once(record, verdict, out)
    else:
        tell(record, verdict, out)


def _waits(dependencies: DependentJobs, record: JobRecord, before: list[str]) -> Verdict:
    jobs, found = dependencies.number_of(before), dependencies.in_the_way(record.job)
    if found is None:
        return ends_of(jobs, before[0])
    first, stuck = found
    is_array = dependencies.is_array(first)
    return stands_in_the_way(record.job, jobs, first, stuck, is_array=is_array)


def _tell_at_once(record: JobRecord, verdict: Verdict, out: Outcome) -> None:
    record.tell(verdict, out.now)
    out.waiting[record.job.id] = Waiting(record.job.id, verdict)


def _which(verdict: Verdict) -> tuple[object, object]:
    return verdict.evidence.get(IN_THE_WAY), verdict.evidence.get(ITS_REASON)


def ends_of(jobs: int, first: str) -> Verdict:
    """Return the reason of a job that waits for `jobs` jobs; `first`: the first job or array."""
    return Verdict(Reason.ON_HOLD, _text(jobs), {"jobs": jobs, "after": first}, ("wait for them",))


def stands_in_the_way(
    job: JobRequest, jobs: int, first: str, stuck: Stuck, *, is_array: bool
) -> Verdict:
    """Return the reason of a job that waits for `jobs` jobs, one of which does not end by itself.

    That is `first`, a job or array; `is_array` says which. Somebody has to act on `stuck`: the job
    `first` itself, a job of the array `first`, or one that these wait for.
    """
    why = stuck.why
    if why.summary == ON_HOLD.summary:
        state = "is on hold"
        helps: tuple[str, ...] = (f"release job {stuck.job}",)
    elif why.reason is Reason.QUEUE_HELD:
        state = "does not start, as its queue is on hold"
        helps = (f"release the queue of job {stuck.job}",)
    elif why.will_never_run:
        state = "will never run as it is"
        helps = (f"change job {stuck.job}",)
    else:
        state, helps = "does not start", why.remedies
    if why.summary == ON_HOLD.summary or stuck.tenant != job.tenant:
        state = f"{state}."  # the readers may not be meant to know more of another tenant's job
    else:
        state = f"{state}: {why.summary}"
    if first == stuck.job:
        link = ""
    elif first == stuck.array:
        link = f" It is of array {first}."
    else:
        link = f" {'Array' if is_array else 'Job'} {first} waits for it."
    named = "after_ok" if first in job.after_ok else "after"
    return Verdict(
        Reason.ON_HOLD,
        f"{_text(jobs)} Job {stuck.job} {state}{link}",
        {"jobs": jobs, "after": first, IN_THE_WAY: stuck.job, ITS_REASON: why.reason.value},
        (*helps, f"take {first} out of `{named}`", "submit the job again without it"),
    )


def _text(jobs: int) -> str:
    return f"The job waits until {counted(jobs, 'other job has', 'other jobs have')} ended."


def tell_dependents(state: SchedulerState, out: Outcome) -> None:
    """Tell jobs whose dependencies have ceased or begun to start by themselves in this cycle.

    This goes along chains of dependencies of any length.
    """
    dependencies, jobs = state.dependencies, state.jobs
    if not (dependencies.watched or dependencies.any_waited_for):
        return
    if dependencies.watched:
        todo = [*out.waiting, *[start.job_id for start in out.started]]
    else:
        dependencies.watched = True
        todo = list(jobs)
    for name in todo:  # the loop appends the jobs behind it
        record = jobs.get(name)
        if record is None:
            continue
        for other in dependencies.stick(record.job, _stuck(dependencies, record)):
            behind = jobs.get(other)
            if behind is not None and _is_told(behind):
                verdict = _waits(dependencies, behind, dependencies.waits_for(behind.job))
                _tell_at_once(behind, verdict, out)
                todo.append(other)


def _stuck(dependencies: DependentJobs, record: JobRecord) -> Stuck | None:
    """Return what keeps a job from starting until somebody acts, or None."""
    why = record.verdict
    if why is None or record.started_at is not None:
        return None
    if _is_told(record):
        found = dependencies.in_the_way(record.job)
        return None if found is None else found[1]
    if why.will_never_run or why.reason in (Reason.ON_HOLD, Reason.QUEUE_HELD):
        return Stuck(record.job.id, record.job.tenant, record.job.array, why)
    return None


def _is_told(record: JobRecord) -> bool:
    """Return whether the job was last told that it waits for other jobs."""
    why = record.verdict
    return why is not None and why.reason is Reason.ON_HOLD and "jobs" in why.evidence


def held_by(
    verdict: Verdict, job: JobRequest, held: JobRequest, why: Verdict, *, is_array: bool
) -> Verdict:
    """Return the reason of a job that waits for a held job, if `why` says more about that hold.

    `is_array`: whether what the job names, `after` in the evidence, is an array.
    """
    if verdict.evidence.get(ITS_REASON) != Reason.ON_HOLD or why == ON_HOLD:
        return verdict
    stuck = Stuck(held.id, held.tenant, held.array, why)
    jobs, first = int(verdict.evidence["jobs"]), str(verdict.evidence["after"])
    return stands_in_the_way(job, jobs, first, stuck, is_array=is_array)
