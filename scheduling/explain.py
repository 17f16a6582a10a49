"""Why a job waits: the stored verdict, the gate it stands at, and who is before it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from scheduling.engine.states import WAITING
from scheduling.engine.verdict import NEVER, Reason
from scheduling.models import Job
from tenants.models import User
from tenants.permissions import access_of

GATES = ("spec", "quota", "order", "capacity", "placement")
# The gate at which a job with this reason stands; PendingEvaluation has not come to any.
GATE_OF: dict[str, str] = {
    Reason.MISCONFIGURED: "spec",
    Reason.NO_MATCHING_GPU_TYPE: "spec",
    Reason.EXCEEDS_MAX_QUOTA: "quota",
    Reason.WAITING_FOR_QUOTA: "quota",
    Reason.BORROW_LIMIT_REACHED: "quota",
    Reason.ON_HOLD: "order",
    Reason.BACKING_OFF: "order",
    Reason.BEHIND_IN_QUEUE: "order",
    Reason.EXCEEDS_CAPACITY: "capacity",
    Reason.INSUFFICIENT_GPUS: "capacity",
    Reason.WAITING_FOR_PREEMPTION: "capacity",
    Reason.RESERVED_FOR_HEAD: "capacity",
    Reason.INSUFFICIENT_CPU_OR_MEMORY: "placement",
    Reason.FRAGMENTED_CAPACITY: "placement",
}
SHOWN_AHEAD = 5


@dataclass(frozen=True, slots=True)
class Gate:
    """One step on the way to a start; `ok` None = not reached yet."""

    gate: str
    ok: bool | None


@dataclass(frozen=True, slots=True)
class Ahead:
    """A waiting job that comes first; of tenants the viewer may not see only its size."""

    job: str | None
    name: str | None
    tenant: str | None
    gpu_milli: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is known about why a job is where it is. `position` counts from 1; it and `ahead`
    are of all waiting jobs of the cluster, whichever GPU type they ask for."""

    job: str
    state: str
    reason: str
    summary: str
    since: datetime | None
    will_never_run: bool
    evidence: dict[str, Any]
    remedies: tuple[str, ...]
    gates: tuple[Gate, ...]
    position: int | None
    ahead: tuple[Ahead, ...]
    reservation: "Reserved | None"


@dataclass(frozen=True, slots=True)
class Reserved:
    """When and where a blocked head is expected to start, as declared run times promise."""

    starts_at: datetime
    nodes: tuple[str, ...]


def explain_job(viewer: User, job: Job) -> Explanation:
    """Read what the last cycles said of a job. The caller has checked that it may be seen."""
    waits = job.state in WAITING
    evidence = dict(job.evidence)
    before = _before(job) if waits else Job.objects.none()
    return Explanation(
        job=str(job.pk),
        state=job.state,
        reason=job.reason,
        summary=job.message,
        since=job.reason_at,
        will_never_run=waits and job.reason in NEVER,
        evidence=evidence,
        remedies=tuple(evidence.pop("remedies", ())),
        gates=_gates(job),
        position=before.count() + 1 if waits else None,
        ahead=_shown(viewer, before),
        reservation=_reserved(job) if waits else None,
    )


def _reserved(job: Job) -> Reserved | None:
    if job.reserved_start is None:
        return None
    return Reserved(job.reserved_start, tuple(job.reserved_nodes))


def _gates(job: Job) -> tuple[Gate, ...]:
    if job.state not in WAITING:
        passed = True if job.admitted_at else None
        return tuple(Gate(gate, passed) for gate in GATES)
    if job.reason not in GATE_OF:
        return tuple(Gate(gate, None) for gate in GATES)
    at = GATES.index(GATE_OF[job.reason])
    return tuple(
        Gate(g, True if i < at else False if i == at else None) for i, g in enumerate(GATES)
    )


def _before(job: Job) -> QuerySet[Job]:
    """Waiting jobs of the cluster that stand before it: priority, then time, then size. Held
    jobs stand in nobody's way."""
    same_rank = Q(priority=job.priority)
    same_time = same_rank & Q(submitted_at=job.submitted_at)
    return Job.objects.filter(
        Q(priority__gt=job.priority)
        | (same_rank & Q(submitted_at__lt=job.submitted_at))
        | (same_time & Q(gpu_milli__lt=job.gpu_milli))
        | (same_time & Q(gpu_milli=job.gpu_milli, id__lt=job.pk)),
        cluster=job.cluster_id,
        state__in=list(WAITING),
        held=False,
    )


def _shown(viewer: User, before: QuerySet[Job]) -> tuple[Ahead, ...]:
    access = access_of(viewer)
    first = before.select_related("tenant").order_by("-priority", "submitted_at", "gpu_milli", "id")
    return tuple(
        Ahead(str(j.pk), j.name, j.tenant.name, j.gpu_milli)
        if access.may_view(j.tenant_id)
        else Ahead(None, None, None, j.gpu_milli)
        for j in first[:SHOWN_AHEAD]
    )
