"""Job documents that a cluster and a tenant accept, and the rows they become."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec.structs import asdict

from scheduling.engine.cluster.affinity import write_terms
from scheduling.engine.states import JobEventKind, JobState
from scheduling.engine.verdict import Reason
from scheduling.models import Cluster, Job, JobEvent, PodSet
from scheduling.services.jobs.pod_set_spec import PodTemplate
from scheduling.services.jobs.spec import JobSpec
from tenants.errors import Conflict, FieldError, Invalid
from tenants.models import GpuType, Tenant, User
from tenants.selectors import known_gpu_types_hint

# By which the pods of an array find which of its jobs they are of.
ARRAY_INDEX, ARRAY_COUNT = "KANT_ARRAY_INDEX", "KANT_ARRAY_COUNT"


@dataclass(frozen=True, slots=True)
class Order:
    """A document that the cluster and the tenant accept."""

    spec: JobSpec
    tenant: Tenant
    cluster: Cluster


def refuse_inactive(tenant: Tenant) -> None:
    """Raises Conflict for a tenant that takes no new jobs."""
    if not tenant.is_active:
        raise Conflict(
            f"Tenant “{tenant.name}” is not active and takes no new jobs. An operator can "
            "activate it."
        )


def refuse_unknown_gpu_types(spec: JobSpec) -> None:
    """Raises Invalid naming each GPU type that does not exist."""
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


def rows_of(
    actor: User | None, order: Order, at: datetime, **columns: Any
) -> tuple[Job, list[PodSet]]:
    """The job and its pod sets, not yet written; `actor` None = Kant itself, `columns`: more of
    the job's."""
    spec = order.spec
    job = Job(
        name=spec.name,
        tenant=order.tenant,
        cluster=order.cluster,
        user=actor,
        kind=spec.kind.value,
        priority=spec.priority,
        gang=spec.gang,
        preemptible=spec.preemptible,
        preempts=spec.preempts,
        uses_spares=spec.uses_spares,
        declared_s=spec.declared_s,
        run_limit_s=spec.run_limit_s,
        checkpoint_notice_s=spec.checkpoint_notice_s,
        max_restarts=spec.max_restarts,
        start_not_before=spec.start_not_before,
        held=spec.held,
        after=list(spec.after),
        after_ok=list(spec.after_ok),
        strategy=spec.strategy,
        required_level=spec.required_level,
        preferred_level=spec.preferred_level,
        labels=dict(spec.labels),
        gpu_milli=spec.gpu_milli,
        state=JobState.PENDING.value,
        reason=Reason.PENDING_EVALUATION.value,
        message="Waits for the next scheduling cycle.",
        reason_at=at,
        submitted_at=at,
        **columns,
    )
    pairs = zip(spec.pod_sets, spec.templates, strict=True)
    return job, [pod_set_row(job, index, s, template) for index, (s, template) in enumerate(pairs)]


def submitted(actor: User | None, job: Job) -> JobEvent:
    return JobEvent(
        job=job,
        at=job.submitted_at,
        kind=JobEventKind.SUBMITTED.value,
        to_state=job.state,
        actor=actor.get_username() if actor is not None else "",
    )


def pod_set_row(job: Job, index: int, s: Any, template: PodTemplate) -> PodSet:
    """The row of an engine pod set and its template."""
    settings = asdict(template.settings)
    for name in ("image_pull_secrets", "volumes"):
        settings[name] = list(settings[name])
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
        node_affinity=write_terms(s.node_affinity),
        tolerations=[
            {"key": t.key, "operator": t.operator, "value": t.value, "effect": t.effect}
            for t in s.tolerations
        ],
        required_level=s.required_level,
        preferred_level=s.preferred_level,
        max_per_node=s.max_per_node,
        max_per_leaf=s.max_per_leaf,
        slice_size=s.slice_size,
        balance_level=s.balance_level,
        extended=dict(s.extended),
        image=template.image,
        command=list(template.command),
        env=dict(template.env),
        annotations=dict(template.annotations),
        **settings,
    )
