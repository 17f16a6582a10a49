"""Submit and cancel jobs, one by one or as arrays."""

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F
from django.utils import timezone

from scheduling.engine.states import OPEN, TERMINAL, JobEventKind, JobState, after
from scheduling.models import Cluster, Job, JobEvent, PodSet
from scheduling.queries import selectors
from scheduling.queries.wording import in_state
from scheduling.services.common.bulk import Rows
from scheduling.services.common.doorbell import ring_after_commit
from scheduling.services.jobs.array_changes import lock_array
from scheduling.services.jobs.capacity import Installed, refuse_what_never_fits
from scheduling.services.jobs.dependencies import refuse_bad_dependencies
from scheduling.services.jobs.orders import (
    ARRAY_COUNT,
    ARRAY_INDEX,
    Order,
    known_gpu_types,
    refuse_inactive,
    refuse_unknown_gpu_types,
    rows_of,
    submitted,
)
from scheduling.services.jobs.priority_limits import refuse_too_high
from scheduling.services.jobs.rules import refuse_what_may_not_be_named
from scheduling.services.jobs.spec import JobSpec, job_spec
from scheduling.services.jobs.waiting_limits import refuse_too_many_waiting
from scheduling.services.queues.entry import Submitter, entered, take_in
from tenants.chunks import chunks
from tenants.errors import Conflict, Invalid, NotAllowed, NotFound
from tenants.models import Tenant, User
from tenants.permissions import Access, access_of
from tenants.selectors import tenant_by_name
from tenants.services.transactions import unit_of_work
from tenants.tree import Tree


def submit_job(actor: User, document: Mapping[str, Any], *, dry_run: bool = False) -> Job:
    """Accept a job document (`services.job_spec`) and wake the scheduler of its cluster.

    Raises Invalid (fields; also ExceedsCapacity and NoMatchingGpuType), NotFound for a tenant
    the actor may not see, NotAllowed, Conflict for a tenant that is inactive or has too many
    waiting jobs, and for a queue that takes no jobs or has too many.
    """
    order = _accepted(actor, document)
    if order.spec.job.array is not None:
        raise Invalid.field("array", "One job is submitted here, not an array of jobs.")
    job, sets = rows_of(actor, order, timezone.now())
    with unit_of_work(dry_run):
        refuse_too_many_waiting(order.tenant, 1)
        take_in(order.queue, 1)
        job.save(force_insert=True)
        PodSet.objects.bulk_create(sets)
        submitted(actor, job).save(force_insert=True)
        ring_after_commit(job.cluster_id)
    # What was just written need not be read again to be shown.
    job._prefetched_objects_cache = {"pod_sets": sets}  # type: ignore[attr-defined]
    return job


def submit_array(
    actor: User, document: Mapping[str, Any], *, dry_run: bool = False
) -> selectors.JobArray:
    """Accept a document with `array: {count}` as that many jobs, all or none of them.

    Each is named by its index, which its pods find in KANT_ARRAY_INDEX. Raises as `submit_job`.
    """
    order = _accepted(actor, document)
    if order.spec.job.array is None:
        raise Invalid.field("array", "Say how many jobs, e.g. array: {count: 100}.")
    count = order.spec.job.array.count
    now = timezone.now()
    job, sets = rows_of(actor, order, now)
    job.array_id = uuid.uuid4()
    with unit_of_work(dry_run):
        refuse_too_many_waiting(order.tenant, count)
        take_in(order.queue, count)
        _store_array(job, sets, submitted(actor, job), count)
        ring_after_commit(job.cluster_id)
    return selectors.JobArray(
        id=job.array_id,
        name=order.spec.job.name,
        tenant=order.tenant.name,
        cluster=order.cluster.name,
        user=actor.get_username(),
        count=count,
        gpu_milli=count * order.spec.gpu_milli,
        states={JobState.PENDING.value: count},
        submitted_at=now,
    )


def _store_array(job: Job, sets: list[PodSet], event: JobEvent, count: int) -> None:
    """Write `count` copies of a job that is not yet written, with its pod sets and event."""
    ids = [uuid.uuid4() for _ in range(count)]
    # A microsecond apart, so that they stand in the queue by their index.
    times = [job.submitted_at + timedelta(microseconds=index) for index in range(count)]
    jobs, pod_sets, events = Rows(Job), Rows(PodSet), Rows(JobEvent)
    of_job, of_event = jobs.prepare(job), events.prepare(event)
    of_sets = [(row, pod_sets.prepare(row)) for row in sets]
    for i in range(count):
        its = {"name": f"{job.name}-{i}", "array_index": i, "submitted_at": times[i]}
        jobs.add(of_job, id=ids[i], **its)
        for row, prepared in of_sets:
            env = {**row.env, ARRAY_COUNT: str(count), ARRAY_INDEX: str(i)}
            pod_sets.add(prepared, job_id=ids[i], env=env)
        events.add(of_event, job_id=ids[i], at=times[i])
    for rows in (jobs, pod_sets, events):
        rows.write()


def _accepted(actor: User, document: Mapping[str, Any]) -> Order:
    spec = job_spec(document)
    access = access_of(actor)
    tenant = _tenant_to_submit_to(access, spec)
    queue, spec = entered(Submitter(actor, access), tenant, document, spec)
    cluster = _cluster_of(spec)
    refuse_too_high(Tree(), tenant.pk, spec.job.priority)
    refuse_what_may_not_be_named(cluster.job_rules, spec)
    refuse_unknown_gpu_types(spec, known_gpu_types())
    refuse_what_never_fits(Installed(cluster), spec)
    if spec.job.after or spec.job.after_ok:
        wanted = {"after": spec.job.after, "after_ok": spec.job.after_ok}
        refuse_bad_dependencies(access, cluster, wanted)
    return Order(spec, tenant, cluster, queue)


def cancel_job(actor: User, job: Job, *, dry_run: bool = False) -> Job:
    """End a job that is not over; its pods are deleted by the scheduler.

    Raises NotFound, NotAllowed, and Conflict when it is already over. Returns the changed job.
    """
    access = access_of(actor)
    if not access.may_view(job.tenant_id):
        raise NotFound(f"There is no job {job.pk} that you may see.")
    if not access.may_cancel(job.tenant_id, job.user_id):
        raise NotAllowed(
            "Only the user who submitted this job, a tenant admin or an operator may cancel it."
        )
    with unit_of_work(dry_run):
        job = _cancelled(actor, job)
        ring_after_commit(job.cluster_id)
    return job


def cancel_array(actor: User, array_id: uuid.UUID, *, dry_run: bool = False) -> selectors.JobArray:
    """End all jobs of an array that are not over. Raises as `cancel_job`."""
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
        ring_after_commit(first.cluster_id)
    return array


def _cancel_all(actor: User, states: Mapping[uuid.UUID, JobState]) -> None:
    """Cancel jobs whose rows are locked, and which are in these states."""
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
    """One guarded transition; the scheduler may be faster a few times, so look again."""
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


def _tenant_to_submit_to(access: Access, spec: JobSpec) -> Tenant:
    tenant = tenant_by_name(access, spec.job.tenant)
    if not access.may_submit(tenant.pk):
        raise NotAllowed(
            f"Submitting to tenant “{tenant.name}” needs the role engineer or tenant-admin there. "
            "Ask one of its tenant admins."
        )
    refuse_inactive(tenant)
    return tenant


def _cluster_of(spec: JobSpec) -> Cluster:
    """The named cluster, or the only active one."""
    clusters = {c.name: c for c in Cluster.objects.filter(is_active=True)}
    if spec.job.cluster in clusters:
        return clusters[spec.job.cluster]
    names = ", ".join(sorted(clusters)) or "none"
    if spec.job.cluster:
        raise Invalid.field(
            "cluster", f"There is no active cluster {spec.job.cluster!r}. Active clusters: {names}."
        )
    if len(clusters) != 1:
        raise Invalid.field("cluster", f"Say which cluster to run on. Active clusters: {names}.")
    return next(iter(clusters.values()))
