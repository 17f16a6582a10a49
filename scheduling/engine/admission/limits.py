"""Limits that are no quota.

They are the running jobs of a tenant, the jobs and GPUs of a queue, and the run time of a job.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from scheduling.engine.admission.candidates import ask_of
from scheduling.engine.decisions import RunLimit
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.queues import Beyond
from scheduling.engine.quota.holds import Hold
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import MILLI, JobRequest, QueueSpec
from scheduling.engine.verdict import Reason, Verdict, counted, gpus

_OTHER_QUEUE = ("move the job to another queue", "raise the limit of the queue")


def over_job_limit(state: SchedulerState, record: JobRecord) -> Verdict | None:
    """Return why a limit keeps the job from starting now; None if none does.

    The tenant or the queue runs as many jobs as it may, or the queue may hold no more of the GPUs
    that the job asks for. Further pods of a started job are no new job.
    """
    for name, runs, most in _reached(state, record):
        return Verdict(
            Reason.WAITING_FOR_QUOTA,
            f"Tenant {name} runs {counted(runs, 'job', 'jobs')} and may run {most} at once.",
            {"tenant": name, "running": runs, "max_running": most},
            ("wait until jobs of the tenant end", "raise the tenant's limit"),
        )
    return over_queue_limit(state, record)


def over_queue_limit(state: SchedulerState, record: JobRecord) -> Verdict | None:
    """Return why a limit of its queue keeps the job from starting now; None if none does."""
    queue = state.queues.limit_of(record.job)
    if queue is None:
        return None
    most = queue.max_running
    if most is not None and record.started_at is None:
        runs = _running_of(state, queue)
        if runs >= most:
            return Verdict(
                Reason.QUEUE_LIMIT_REACHED,
                f"Queue {queue.name} of tenant {queue.tenant} runs "
                f"{counted(runs, 'job', 'jobs')} and may run {most} at once.",
                {
                    "tenant": queue.tenant,
                    "queue": queue.name,
                    "running": runs,
                    "max_running": most,
                },
                ("wait until jobs of the queue end", *_OTHER_QUEUE),
            )
    no = _beyond(state, record) if queue.max_milli else None
    return None if no is None else queue_is_full(record.job, no)


def queue_is_full(job: JobRequest, no: Beyond) -> Verdict:
    """Return the reason of a job that asks for more GPUs than its queue may hold."""
    return Verdict(
        Reason.QUEUE_LIMIT_REACHED,
        f"Queue {job.queue} of tenant {job.tenant} holds {no.used / MILLI:g} of at most "
        f"{gpus(no.most, no.model)}; this job needs {no.asked / MILLI:g} more.",
        {
            "tenant": job.tenant,
            "queue": job.queue,
            "gpu_model": no.model,
            "asked": no.asked / MILLI,
            "used": no.used / MILLI,
            "max_gpus": no.most / MILLI,
        },
        ("wait until jobs of the queue end", "make the job smaller", *_OTHER_QUEUE),
    )


def _beyond(state: SchedulerState, record: JobRecord) -> Beyond | None:
    """Return why its queue refuses the first way to start if it refuses every way."""
    ask = ask_of(state, record)
    found: Beyond | None = None
    for way in ask.ways if not ask.beyond else ():
        for start in way.starts:
            no = state.queues.beyond(record.job, start)
            if no is None:
                return None
            found = found or no
    return found


def _running_of(state: SchedulerState, queue: QueueSpec) -> int:
    """Count the jobs of the queue that run or are about to, here and elsewhere."""
    runs = state.queues.runs_elsewhere(queue)
    for record in _run_here(state):
        runs += record.job.queue == queue.name and record.job.tenant == queue.tenant
    return runs


def jobs_to_stop(state: SchedulerState, record: JobRecord) -> dict[str, int]:
    """Return {tenant at its limit of running jobs: how many have to stop before the job starts}."""
    return {name: runs - most + 1 for name, runs, most in _reached(state, record)}


def stops_enough(state: SchedulerState, to_stop: dict[str, int], tenants: Iterable[str]) -> bool:
    """Return whether the limits let the job start once a job of each of these tenants stopped."""
    left = to_stop.copy()
    for tenant in tenants if left else ():
        for name in state.book.lineage(tenant):
            if name in left:
                left[name] -= 1
    return all(jobs <= 0 for jobs in left.values())


def limits_of(state: SchedulerState, record: JobRecord) -> dict[str, int]:
    """Return {tenant at or above that of the job: its limit of running jobs}.

    Empty for a job that has started: its further pods are no new job.
    """
    if record.started_at is not None or not state.book.limits_jobs:
        return {}
    tenants = [state.book.tenants.get(name) for name in state.book.lineage(record.job.tenant)]
    return {t.id: t.max_running for t in tenants if t is not None and t.max_running is not None}


def running_below(state: SchedulerState, name: str) -> Counter[str]:
    """Return {tenant at or below the named one: its own jobs that run or are about to}."""
    running = _running(state)
    return Counter(
        {
            tenant: jobs
            for tenant, jobs in running.items()
            if name in tuple(state.book.lineage(tenant))
        }
    )


def takes_last(state: SchedulerState, record: JobRecord, hold: Hold) -> bool:
    """Return whether this job would take the last place at a limit from the job of the hold.

    It would if it still runs when that job is to start.
    """
    for name in limits_of(state, record):
        most = hold.limited.get(name)
        if most is None:
            continue
        below = running_below(state, name)
        if sum([jobs - hold.jobs[tenant] for tenant, jobs in below.items()]) + 2 > most:
            return True
    return False


def _reached(state: SchedulerState, record: JobRecord) -> Iterator[tuple[str, int, int]]:
    """Yield the tenants at or above the job's own that are at their limit of running jobs.

    Each as (tenant, how many jobs it runs, how many it may run).
    """
    for name, most in limits_of(state, record).items():
        runs = running_below(state, name).total()
        if runs >= most:
            yield name, runs, most


def _running(state: SchedulerState) -> Counter[str]:
    """Count by tenant its own jobs that run or are about to, here and elsewhere."""
    running = Counter[str]()
    for tenant, jobs in state.book.jobs_elsewhere:
        running[tenant] += jobs
    running.update(record.job.tenant for record in _run_here(state))
    return running


def _run_here(state: SchedulerState) -> Iterator[JobRecord]:
    """Yield jobs that run or are about to; a running job may wait for places of further pods."""
    yield from state.running.values()
    for name, record in state.promised.items():
        if name not in state.running:
            yield record


def watch_run_limit(state: SchedulerState, record: JobRecord, now: float) -> None:
    """Note when to warn a started job of its run-time limit, and when it is reached.

    Done once per limit. If the warning was due before the job came to this state, an earlier
    scheduler has given it.
    """
    ends_at = record.watch_limit()
    if ends_at is None:
        return
    assert record.started_at is not None
    warn_at = max(record.started_at, ends_at - state.policy.warn_before_s)
    if warn_at >= now:
        heappush(state.run_ends, (warn_at, ends_at, record.job.id, False))
    heappush(state.run_ends, (ends_at, ends_at, record.job.id, True))


def report_run_limits(state: SchedulerState, out: Outcome) -> None:
    """Report the jobs whose warning or end is due; the shell decides what to tell them."""
    while state.run_ends and state.run_ends[0][0] <= out.now:
        _, ends_at, job_id, exceeded = heappop(state.run_ends)
        record = state.running.get(job_id)
        if record is None or record.started_at is None or record.job.run_limit_s is None:
            continue
        if record.started_at + record.job.run_limit_s == ends_at:
            out.run_limits.append(RunLimit(job_id, ends_at, exceeded))
