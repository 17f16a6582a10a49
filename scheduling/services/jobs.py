"""Submit and cancel: the two things people do to jobs. All else the scheduler does."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from scheduling.engine.states import TERMINAL, JobEventKind, JobState, after
from scheduling.engine.verdict import Reason
from scheduling.models import Cluster, Job, JobEvent, PodSet
from scheduling.services.capacity import refuse_what_never_fits
from scheduling.services.doorbell import ring
from scheduling.services.job_spec import JobSpec, PodTemplate, job_spec
from tenants.errors import Conflict, FieldError, Invalid, NotAllowed, NotFound
from tenants.models import GpuType, Tenant, User
from tenants.permissions import Access, access_of
from tenants.selectors import known_gpu_types_hint, tenant_by_name
from tenants.services.transactions import unit_of_work


def submit_job(actor: User, document: Mapping[str, Any], *, dry_run: bool = False) -> Job:
    """Accept a job document (`services.job_spec`) and wake the scheduler of its cluster.

    Raises Invalid (fields; also ExceedsCapacity and NoMatchingGpuType), NotFound for a tenant
    the actor may not see, NotAllowed, Conflict for an inactive tenant or cluster.
    """
    spec = job_spec(document)
    access = access_of(actor)
    tenant = _tenant_to_submit_to(access, spec)
    cluster = _cluster_of(spec)
    _refuse_unknown_gpu_types(spec)
    refuse_what_never_fits(cluster, spec)
    now = timezone.now()
    job = Job(
        name=spec.name,
        tenant=tenant,
        cluster=cluster,
        user=actor,
        kind=spec.kind.value,
        priority=spec.priority,
        gang=spec.gang,
        preemptible=spec.preemptible,
        declared_s=spec.declared_s,
        strategy=spec.strategy,
        labels=dict(spec.labels),
        gpu_milli=spec.gpu_milli,
        state=JobState.PENDING.value,
        reason=Reason.PENDING_EVALUATION.value,
        message="Waits for the next scheduling cycle.",
        reason_at=now,
        submitted_at=now,
    )
    pairs = zip(spec.pod_sets, spec.templates, strict=True)
    sets = [_row(job, index, s, template) for index, (s, template) in enumerate(pairs)]
    with unit_of_work(dry_run):
        job.save(force_insert=True)
        PodSet.objects.bulk_create(sets)
        JobEvent.objects.create(
            job=job,
            at=now,
            kind=JobEventKind.SUBMITTED.value,
            to_state=job.state,
            actor=actor.get_username(),
        )
        # Robust: the job is stored; were the broker away, the next tick would find the job.
        transaction.on_commit(partial(ring, cluster.pk), robust=True)
    # What was just written need not be read again to be shown.
    job._prefetched_objects_cache = {"pod_sets": sets}  # type: ignore[attr-defined]
    return job


def cancel_job(actor: User, job: Job, *, dry_run: bool = False) -> Job:
    """End a job that is not over; its pods are deleted by the scheduler.

    Raises NotAllowed, and Conflict when it is already over. Returns the changed job.
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
        transaction.on_commit(partial(ring, job.cluster_id), robust=True)
    return job


def _cancelled(actor: User, job: Job) -> Job:
    """One guarded transition; the scheduler may be faster a few times, so look again."""
    while True:
        job.refresh_from_db(fields=["state", "version", "ended_at", "reason", "message"])
        state = JobState(job.state)
        if state in TERMINAL:
            raise Conflict(
                f"The job is already {state}, since {job.ended_at:%Y-%m-%d %H:%M:%S} UTC."
                if job.ended_at
                else f"The job is already {state}."
            )
        now = timezone.now()
        target = after(state, JobEventKind.CANCELLED)
        message = f"Cancelled by {actor.get_username()}."
        changed = Job.objects.filter(id=job.pk, version=job.version).update(
            state=target.value,
            version=job.version + 1,
            ended_at=now,
            reason="",
            message=message,
            evidence={},
            reason_at=now,
        )
        if changed:
            break
    JobEvent.objects.create(
        job=job,
        at=now,
        kind=JobEventKind.CANCELLED.value,
        from_state=state.value,
        to_state=target.value,
        message=message,
        actor=actor.get_username(),
    )
    job.refresh_from_db()
    return job


def _tenant_to_submit_to(access: Access, spec: JobSpec) -> Tenant:
    tenant = tenant_by_name(access, spec.tenant)
    if not access.may_submit(tenant.pk):
        raise NotAllowed(
            f"Submitting to tenant “{tenant.name}” needs the role engineer or tenant-admin there. "
            "Ask one of its tenant admins."
        )
    if not tenant.is_active:
        raise Conflict(
            f"Tenant “{tenant.name}” is not active and takes no new jobs. An operator can "
            "activate it."
        )
    return tenant


def _cluster_of(spec: JobSpec) -> Cluster:
    """The named cluster, or the only active one."""
    clusters = {c.name: c for c in Cluster.objects.filter(is_active=True)}
    if spec.cluster in clusters:
        return clusters[spec.cluster]
    names = ", ".join(sorted(clusters)) or "none"
    if spec.cluster:
        raise Invalid.field(
            "cluster", f"There is no active cluster {spec.cluster!r}. Active clusters: {names}."
        )
    if len(clusters) != 1:
        raise Invalid.field("cluster", f"Say which cluster to run on. Active clusters: {names}.")
    return next(iter(clusters.values()))


def _refuse_unknown_gpu_types(spec: JobSpec) -> None:
    known = set(GpuType.objects.values_list("name", flat=True))
    faults = [
        FieldError(
            spec.path(index, "gpu_type"),
            f"There is no GPU type {model!r}. {known_gpu_types_hint()}",
        )
        for index, pod_set in enumerate(spec.pod_sets)
        for model in pod_set.gpu_models
        if model not in known
    ]
    if faults:
        raise Invalid.fields(faults)


def _row(job: Job, index: int, s: Any, template: PodTemplate) -> PodSet:
    """The row of an engine pod set and its template."""
    return PodSet(
        job=job,
        index=index,
        name=s.name,
        count=s.count,
        min_count=s.min_count,
        gpu_models=list(s.gpu_models),
        gpus=s.gpus,
        gpu_milli=s.gpu_milli,
        gpu_memory_mib=s.gpu_memory_mib,
        cpu_milli=s.cpu_milli,
        memory_mib=s.memory_mib,
        nics=s.nics,
        node_selector=dict(s.node_selector),
        tolerations=[
            {"key": t.key, "operator": t.operator, "value": t.value, "effect": t.effect}
            for t in s.tolerations
        ],
        required_level=s.required_level,
        preferred_level=s.preferred_level,
        max_per_node=s.max_per_node,
        image=template.image,
        command=list(template.command),
        env=dict(template.env),
        annotations=dict(template.annotations),
    )
