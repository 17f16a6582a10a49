"""Events of jobs and changes of quotas since they were read last."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.urls import reverse

from scheduling.engine.states import JobEventKind
from scheduling.models import Job, JobEvent
from scheduling.models.jobs import PREEMPTED
from tenants.database.chunks import chunks
from tenants.models import AuditRecord
from tenants.services.quota_terms import gpus
from webhooks.models import HookEvent, HookOutbox
from webhooks.outbox.messages import HookMessage

# A step reads no more than that; the next one goes on.
AT_ONCE = 2000
# Ids are given before transactions commit: one that is missing may come so late. A transaction of
# Kant that is open for longer was given up by the database.
LATE = timedelta(minutes=2)
MOST_GAPS = 5000
# Likewise for the times of audit records.
OVERLAP = timedelta(seconds=30)
KINDS = {
    JobEventKind.RUNNING: HookEvent.STARTED,
    JobEventKind.PREEMPTED: HookEvent.PREEMPTED,
    JobEventKind.SUCCEEDED: HookEvent.SUCCEEDED,
    JobEventKind.FAILED: HookEvent.FAILED,
    JobEventKind.CANCELLED: HookEvent.CANCELLED,
}
# Some pods of a job that goes on with the others.
PARTLY = JobEventKind.REASON.value, PREEMPTED
QUOTA_ACTIONS = ("quota.changed", "quota.deleted")


@dataclass(frozen=True, slots=True)
class ReadJobs:
    """What became of jobs, how far that was read, and what is missing before."""

    messages: Sequence[HookMessage]
    read_to: int
    gaps: Sequence[tuple[int, str]]


def job_news(outbox: HookOutbox, wanted: Collection[str], now: datetime) -> ReadJobs:
    """Events of jobs that were not read yet; of those that are `wanted` the messages."""
    # Whole rows of the few that matter come later: most events are none of these.
    rows = JobEvent.objects.filter(id__gt=outbox.read_to).order_by("id")
    fresh = list(rows.values_list("id", "kind", "reason")[:AT_ONCE])
    late = {int(row_id): str(since) for row_id, since in outbox.gaps}
    came = [
        row
        for ids in chunks(sorted(late))
        for row in JobEvent.objects.filter(id__in=ids).values_list("id", "kind", "reason")
    ]
    there = {row[0] for row in (*fresh, *came)}
    read_to = fresh[-1][0] if fresh else outbox.read_to
    # The newest matter: what was begun long ago is there, or was rolled back.
    first = max(outbox.read_to + 1, read_to - AT_ONCE - MOST_GAPS)
    missing = [i for i in range(first, read_to) if i not in there]
    late |= dict.fromkeys(missing[-MOST_GAPS:], now.isoformat())
    gaps = [
        (row_id, since)
        for row_id, since in late.items()
        if row_id not in there and now - datetime.fromisoformat(since) < LATE
    ]
    asked: dict[int, str] = {}
    for row_id, kind, reason in (*fresh, *came):
        if (event := _event(kind, reason)) in wanted and event is not None:
            asked[row_id] = event
    messages = [m for ids in chunks(sorted(asked)) for m in _of_jobs({i: asked[i] for i in ids})]
    return ReadJobs(messages, read_to, gaps[-MOST_GAPS:])


def quota_news(outbox: HookOutbox, now: datetime) -> tuple[list[HookMessage], datetime]:
    """Changes of quotas since then, some of them again, and until when they were read."""
    since = outbox.audited_to - OVERLAP
    records = AuditRecord.objects.filter(
        at__gt=since, at__lte=now, action__in=QUOTA_ACTIONS
    ).select_related("tenant")
    found = list(records.order_by("at", "id")[:AT_ONCE])
    return [*map(_of_quota, found)], found[-1].at if len(found) == AT_ONCE else now


def job_data(job: Job, event: JobEvent | None, at: datetime) -> dict[str, Any]:
    """What is told of a job in all its events. `event`: where one tells why; else the job does."""
    told: Any = event or job
    models = dict.fromkeys(m for row in job.pod_sets.all() for m in row.gpu_models)
    started = job.running_at if job.running_at and job.running_at <= at else None
    return {
        "job": str(job.pk),
        "name": job.name,
        "tenant": job.tenant.name,
        "cluster": job.cluster.name,
        "queue": job.queue,
        "user": job.user.get_username() if job.user else None,
        "kind": job.kind,
        "priority": job.priority,
        "gpus": gpus(job.gpu_milli),
        "gpu_types": list(models),
        "state": event.to_state if event else job.state,
        "reason": told.reason,
        "message": told.message,
        "at": _iso(at),
        "submitted_at": _iso(job.submitted_at),
        "waited_s": round(((started or at) - job.submitted_at).total_seconds(), 3),
        "ran_s": None if started is None else round((at - started).total_seconds(), 3),
    }


def subject_of_job(job: Job) -> str:
    return f"{job.tenant.name} / {job.name}"[:200]


def with_what_is_told(jobs: Any) -> Any:
    """A queryset of jobs with what `job_data` reads."""
    return jobs.select_related("tenant", "cluster", "user").prefetch_related("pod_sets")


def _event(kind: str, reason: str) -> str | None:
    if (kind, reason) == PARTLY:
        return HookEvent.PREEMPTED
    return KINDS.get(JobEventKind(kind))


def _of_jobs(asked: dict[int, str]) -> Iterable[HookMessage]:
    events = list(JobEvent.objects.filter(id__in=asked).order_by("id"))
    ids = {event.job_id for event in events}
    jobs = {job.pk: job for job in with_what_is_told(Job.objects.filter(pk__in=ids))}
    for event in events:
        job = jobs.get(event.job_id)
        if job is None:
            continue  # deleted since: it was over for longer than jobs are kept
        yield HookMessage(
            key=f"event-{event.pk}",
            event=asked[event.pk],
            at=event.at,
            subject=subject_of_job(job),
            data=job_data(job, event, event.at),
            tenant_id=job.tenant_id,
            page=reverse("job", args=[job.pk]),
        )


def _of_quota(record: AuditRecord) -> HookMessage:
    tenant, _, gpu_type = record.subject.partition(" / ")
    return HookMessage(
        key=f"audit-{record.pk}",
        event=HookEvent.QUOTA,
        at=record.at,
        subject=record.subject,
        data={
            "tenant": tenant,
            "gpu_type": gpu_type,
            "before": record.before,
            "after": record.after,
            "actor": record.actor_name,
            "reason": record.reason,
            "source": record.source,
            "at": _iso(record.at),
        },
        tenant_id=record.tenant_id,
        page=reverse("quotas"),
    )


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
