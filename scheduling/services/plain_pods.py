"""Jobs for pods that somebody else made (docs/decisions/0015-plain-pods.md).

Called inside the transaction of a pass, under its lease. The id of the job is the uid of the pod:
one pod never becomes two jobs, whoever offers it again.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scheduling.engine.states import TERMINAL, WAITING, JobEventKind, JobState
from scheduling.engine.verdict import Reason
from scheduling.kube.seam import PlainPod, PodFacts
from scheduling.models import Cluster, Job, JobEvent, PodSet
from scheduling.models.jobs import CANCELLED
from scheduling.services.capacity import Pool, pools, refuse_what_never_fits
from scheduling.services.doorbell import ring_after_commit
from scheduling.services.job_spec import JobSpec, job_spec
from scheduling.services.lease import Lease
from scheduling.services.orders import (
    Order,
    refuse_inactive,
    refuse_unknown_gpu_types,
    rows_of,
    submitted,
)
from scheduling.services.plain_pod_spec import (
    PLACES,
    Refused,
    document_of,
    hold_of,
    refusal_of,
    tenant_of,
    where_to,
)
from scheduling.services.priority_limits import refuse_too_high
from scheduling.services.waiting_limits import refuse_too_many_waiting
from scheduling.session.live import Cause, Offer
from scheduling.wording import in_state
from tenants.errors import DomainError
from tenants.models import Tenant


def take_up(lease: Lease, offers: Sequence[Offer], now: datetime) -> list[JobEvent]:
    """Make a job of each pod that has none, or have its job follow it; the answers are written
    into the offers. Returns the events of the jobs, to be written."""
    if not offers:
        return []
    ids = [uuid.UUID(offer.pod.uid) for offer in offers]
    known = {job.pk: job for job in Job.objects.select_for_update().filter(id__in=ids)}
    cluster = Cluster.objects.get(id=lease.cluster_id)
    place = _Place(cluster, pools(cluster))
    events: list[JobEvent] = []
    for number, (job_id, offer) in enumerate(zip(ids, offers, strict=True)):
        pod, job = offer.pod, known.get(job_id)
        assert pod.plain is not None
        try:
            if job is None:
                # A microsecond apart, so that they stand in the queue in their order.
                at = now + timedelta(microseconds=number)
                events.append(_new_job(place, job_id, pod, pod.plain, at))
            elif job.cluster_id != cluster.pk:
                continue  # the same cluster under another name; that one has it
            elif job.state in TERMINAL:
                offer.over = _end_of(job)
            elif job.state in WAITING:
                events += _follow(job, offer, pod.plain, now)
        except Refused as refused:
            offer.refusal = refused.cause
    if events:
        ring_after_commit(cluster.pk)
    return events


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the pods are to run."""

    cluster: Cluster
    installed: Mapping[str, Pool]


def _new_job(
    place: _Place, job_id: uuid.UUID, pod: PodFacts, plain: PlainPod, at: datetime
) -> JobEvent:
    tenant, spec = _accepted(place, pod, plain)
    order = Order(spec, tenant, place.cluster)
    of_pod = {"id": job_id, "pod_namespace": pod.namespace, "pod_name": pod.name}
    job, sets = rows_of(None, order, at, **of_pod, pod_hold=hold_of(plain))
    for name, value in _why_held(job.pod_hold, at).items():
        setattr(job, name, value)
    try:
        refuse_too_many_waiting(tenant, 1)
    except DomainError as error:
        raise Refused("TooManyWaiting", error.detail) from None
    job.save(force_insert=True)
    PodSet.objects.bulk_create(sets)
    event = submitted(None, job)
    event.message = f"Taken up from pod {pod.namespace}/{pod.name}."
    return event


def _accepted(place: _Place, pod: PodFacts, plain: PlainPod) -> tuple[Tenant, JobSpec]:
    name = tenant_of(pod)
    tenant = Tenant.objects.filter(name=name).first()
    if tenant is None:
        text = f"There is no tenant “{name}”. Set the label kant.io/tenant to one that there is."
        raise Refused("UnknownTenant", text)
    try:
        refuse_inactive(tenant)
    except DomainError as error:
        raise Refused("TenantInactive", error.detail) from None
    return tenant, _spec(place, tenant, pod, plain)


def _spec(place: _Place, tenant: Tenant, pod: PodFacts, plain: PlainPod) -> JobSpec:
    try:
        spec = job_spec(document_of(pod, plain, place.cluster.name))
        refuse_unknown_gpu_types(spec)
        refuse_what_never_fits(place.cluster, spec, place.installed)
        refuse_too_high(tenant.pk, spec.priority)
    except DomainError as error:
        raise refusal_of(error) from None
    return spec


def _follow(job: Job, offer: Offer, plain: PlainPod, now: datetime) -> list[JobEvent]:
    """Take over what of a pod may change while it waits: its scheduling gates, and what those who
    set them change meanwhile. A pod that must not be bound any more is refused, its job held."""
    hold = hold_of(plain)
    changes: dict[str, Any] = {}
    try:
        where = where_to(plain)
        [row] = job.pod_sets.all()
        changes = {name: value for name, value in where.items() if getattr(row, name) != value}
    except Refused as refused:
        offer.refusal = refused.cause
        hold = hold or refused.cause.text
    events = []
    if changes:
        PodSet.objects.filter(job=job).update(**changes)
        names = " and ".join(PLACES[name] for name in changes)
        events.append(_event(job, JobEventKind.CHANGED, f"Changed on its pod: {names}.", now))
    if hold != job.pod_hold:
        kind = JobEventKind.HELD if hold else JobEventKind.RELEASED
        events.append(_event(job, kind, hold or "Its pod can be bound now.", now))
    if events:
        values = {"pod_hold": hold, "version": job.version + 1, **_why_held(hold, now)}
        Job.objects.filter(id=job.pk).update(**values)
    return events


def _why_held(hold: str, now: datetime) -> dict[str, Any]:
    """What a job that is held by its pod says of itself until the scheduler has seen it."""
    if not hold:
        return {}
    return {"reason": Reason.ON_HOLD.value, "message": hold, "evidence": {}, "reason_at": now}


def _end_of(job: Job) -> Cause:
    reason = CANCELLED if job.state == JobState.CANCELLED else job.reason or "JobOver"
    why = f": {job.message}" if job.message else ""
    return Cause(reason, f"Its job is {in_state(job.state)}{why}")


def _event(job: Job, kind: JobEventKind, message: str, at: datetime) -> JobEvent:
    return JobEvent(
        job=job,
        at=at,
        kind=kind.value,
        from_state=job.state,
        to_state=job.state,
        message=message,
    )
