"""Submit and cancel jobs, one by one or as arrays."""

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import F
from django.utils import timezone

from scheduling.engine.states import OPEN, TERMINAL, JobEventKind, JobState, after
from scheduling.models import Job, JobEvent
from scheduling.queries import selectors
from scheduling.queries.wording import in_state
from scheduling.services.common.doorbell import ring_after_commit
from scheduling.services.jobs.array_changes import clusters_of, lock_array
from scheduling.services.jobs.submission.acceptance import Acceptance
from scheduling.services.jobs.submission.together import MOST_TOGETHER, UsersJob, submit_together
from scheduling.services.jobs.submission.written import Made, write_order
from tenants.database.chunks import chunks
from tenants.errors import Conflict, Invalid, NotAllowed
from tenants.models import User
from tenants.permissions import Access, access_of
from tenants.services.joined import Joined
from tenants.services.receipts import Receipt, keep
from tenants.services.transactions import unit_of_work


def submit_job(
    actor: User,
    document: Mapping[str, Any],
    *,
    receipt: Receipt | None = None,
    dry_run: bool = False,
) -> Job:
    """Accept a job document (`services.jobs.validation`) and wake the scheduler of its cluster.

    `receipt`: kept in the job's transaction. Raises Invalid (fields; also ExceedsCapacity and
    NoMatchingGpuType), NotFound for a tenant the actor may not see, NotAllowed, Conflict for a
    tenant that is inactive or has too many waiting jobs, and for a queue that takes no jobs or has
    too many; KeyTaken. Jobs submitted while others are being written are written together
    (docs/decisions/0096).
    """
    submission = UsersJob(actor, document, receipt)
    job = _submitted(submission, dry_run=True) if dry_run else _joined(submission)
    assert isinstance(job, Job)
    return job


def _submitted(submission: UsersJob, *, dry_run: bool = False) -> Made:
    actor, document, receipt = submission
    acceptance = Acceptance(actor, [document])
    order = acceptance.order_of(document)
    if order.spec.job.array is not None:
        raise Invalid.field("array", "Only a single job can be submitted here, not an array.")
    with unit_of_work(dry_run):
        acceptance.keep_beside([order])
        made = write_order(actor, order, acceptance.tree)
        if receipt:
            keep([(receipt, made)])
        return made


_joined = Joined(_submitted, submit_together, MOST_TOGETHER)


def submit_array(
    actor: User,
    document: Mapping[str, Any],
    *,
    receipt: Receipt | None = None,
    dry_run: bool = False,
) -> selectors.JobArray:
    """Accept a document with `array: {count}` as that many jobs, all or none of them.

    Each is named by its index, which its pods find in KANT_ARRAY_INDEX. Raises like `submit_job`.
    """
    acceptance = Acceptance(actor, [document])
    order = acceptance.order_of(document)
    if order.spec.job.array is None:
        raise Invalid.field("array", "Give the number of jobs, e.g. array: {count: 100}.")
    with unit_of_work(dry_run):
        acceptance.keep_beside([order])
        array = write_order(actor, order, acceptance.tree)
        assert isinstance(array, selectors.JobArray)
        if receipt:
            keep([(receipt, array)])
    return array


def cancel_job(
    actor: User, job: Job, *, access: Access | None = None, dry_run: bool = False
) -> Job:
    """End a job that is not over; the scheduler deletes its pods.

    `access`: the rights of the actor, if read before. Raises NotFound, NotAllowed, and Conflict if
    it is already over. Returns the changed job.
    """
    access = access or access_of(actor)
    if not access.may_view(job.tenant_id):
        raise selectors.no_such_job(job.pk)
    if not access.may_cancel(job.tenant_id, job.user_id):
        raise NotAllowed(
            "Only the user who submitted this job, a tenant admin or an operator may cancel it."
        )
    with unit_of_work(dry_run):
        job = _cancelled(actor, job)
        ring_after_commit(job.cluster_id)
    return job


def cancel_array(actor: User, array_id: uuid.UUID, *, dry_run: bool = False) -> selectors.JobArray:
    """End all jobs of an array that are not over. Raises like `cancel_job`."""
    access = access_of(actor)
    first = selectors.first_of_array(actor, array_id)
    if not access.may_cancel(first.tenant_id, first.user_id):
        raise NotAllowed(
            "Only the user who submitted this array, a tenant admin or an operator may cancel it."
        )
    with unit_of_work(dry_run):
        rows = lock_array(first).filter(state__in=list(OPEN))
        states = {job_id: JobState(state) for job_id, state in rows.values_list("id", "state")}
        if not states:
            raise Conflict("All jobs of this array are over.")
        _cancel_all(actor, states)
        array = selectors.array_by_id(actor, array_id)
        for cluster_id in clusters_of(first):
            ring_after_commit(cluster_id)
    return array


def _cancel_all(actor: User, states: Mapping[uuid.UUID, JobState]) -> None:
    """Cancel jobs in these states whose rows are locked."""
    now, message = timezone.now(), f"Cancelled by {actor.get_username()}."
    events = []
    for state in sorted(set(states.values())):
        target = after(state, JobEventKind.CANCELLED).value
        for chunk in chunks([i for i in states if states[i] == state]):
            Job.objects.filter(id__in=chunk).update(
                state=target, version=F("version") + 1, ended_at=now, **_closing(message, now)
            )
            events += [_cancel_event(actor, i, state, target, message, now) for i in chunk]
    JobEvent.objects.bulk_create(events)


def _closing(message: str, now: datetime) -> dict[str, Any]:
    return {"reason": "", "message": message, "evidence": {}, "reason_at": now}


def _cancel_event(
    actor: User, job_id: uuid.UUID, state: JobState, target: str, message: str, now: datetime
) -> JobEvent:
    return JobEvent(
        job_id=job_id,
        at=now,
        kind=JobEventKind.CANCELLED.value,
        from_state=state.value,
        to_state=target,
        message=message,
        actor=actor.get_username(),
    )


def _cancelled(actor: User, job: Job) -> Job:
    """Make one guarded transition; read again as often as the scheduler wrote first."""
    while True:
        job.refresh_from_db(fields=["state", "version", "ended_at", "reason", "message"])
        state = JobState(job.state)
        if state in TERMINAL:
            raise Conflict(
                f"The job is already {in_state(state)}, since {job.ended_at:%Y-%m-%d %H:%M:%S} UTC."
                if job.ended_at
                else f"The job is already {in_state(state)}."
            )
        now = timezone.now()
        target = after(state, JobEventKind.CANCELLED)
        message = f"Cancelled by {actor.get_username()}."
        changed = Job.objects.filter(id=job.pk, version=job.version).update(
            state=target.value, version=job.version + 1, ended_at=now, **_closing(message, now)
        )
        if changed:
            break
    _cancel_event(actor, job.pk, state, target.value, message, now).save(force_insert=True)
    job.refresh_from_db()
    return job
