"""Limits that are no quota: jobs of a tenant that may run at once, and the run time of a job."""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from scheduling.engine.decisions import RunLimit
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.state import SchedulerState
from scheduling.engine.verdict import Reason, Verdict, counted


def over_job_limit(state: SchedulerState, record: JobRecord) -> Verdict | None:
    """Why the tenant may start no further job now; more pods of a started job are no new job."""
    for name, runs, most in _reached(state, record):
        return Verdict(
            Reason.WAITING_FOR_QUOTA,
            f"Tenant {name} runs {counted(runs, 'job', 'jobs')} and may run {most} at once.",
            {"tenant": name, "running": runs, "max_running": most},
            ("wait until jobs of the tenant end", "raise the tenant's limit"),
        )
    return None


def jobs_to_stop(state: SchedulerState, record: JobRecord) -> dict[str, int]:
    """{tenant that runs as many jobs as it may: how many of these have to stop, so that the job can
    start}."""
    return {name: runs - most + 1 for name, runs, most in _reached(state, record)}


def stops_enough(state: SchedulerState, to_stop: dict[str, int], tenants: Iterable[str]) -> bool:
    """Whether the limits let the job start once a job of each of these tenants has stopped."""
    left = to_stop.copy()
    for tenant in tenants if left else ():
        for name in state.book.lineage(tenant):
            if name in left:
                left[name] -= 1
    return all(jobs <= 0 for jobs in left.values())


def _reached(state: SchedulerState, record: JobRecord) -> Iterator[tuple[str, int, int]]:
    """The tenant of the job and those above it that run as many jobs as they may: (tenant, how many
    it runs, how many it may run)."""
    if record.started_at is not None or not state.book.limits_jobs:
        return
    running: Counter[str] | None = None
    for name in state.book.lineage(record.job.tenant):
        tenant = state.book.tenants.get(name)
        if tenant is None or tenant.max_running is None:
            continue
        running = _running(state) if running is None else running
        runs = sum(
            [jobs for other, jobs in running.items() if name in tuple(state.book.lineage(other))]
        )
        if runs >= tenant.max_running:
            yield name, runs, tenant.max_running


def _running(state: SchedulerState) -> Counter[str]:
    """{tenant: its own jobs that run or are about to, here and elsewhere}."""
    running = Counter[str]()
    for tenant, jobs in state.book.jobs_elsewhere:
        running[tenant] += jobs
    running.update(record.job.tenant for record in state.running.values())
    running.update(record.job.tenant for record in state.promised.values())
    return running


def watch_run_limit(state: SchedulerState, record: JobRecord, now: float) -> None:
    """Note when a job that has started is to be warned and when its time is up; once for each
    limit. A warning that was due before the job came to this state has been given."""
    limit = record.job.run_limit_s
    if limit is None or record.started_at is None:
        return
    ends_at = record.started_at + limit
    if ends_at == record.limit_at:
        return
    record.limit_at = ends_at
    warn_at = max(record.started_at, ends_at - state.policy.warn_before_s)
    if warn_at >= now:
        heappush(state.run_ends, (warn_at, ends_at, record.job.id, False))
    heappush(state.run_ends, (ends_at, ends_at, record.job.id, True))


def report_run_limits(state: SchedulerState, out: Outcome) -> None:
    """Report the jobs whose warning or end is due; what they are told is the shell's matter."""
    while state.run_ends and state.run_ends[0][0] <= out.now:
        _, ends_at, job_id, exceeded = heappop(state.run_ends)
        record = state.running.get(job_id)
        if record is None or record.started_at is None or record.job.run_limit_s is None:
            continue
        if record.started_at + record.job.run_limit_s == ends_at:
            out.run_limits.append(RunLimit(job_id, ends_at, exceeded))
