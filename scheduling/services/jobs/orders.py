"""Job documents that a cluster and a tenant accept, and the rows they become."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduling.engine.states import JobEventKind, JobState
from scheduling.engine.verdict import Reason
from scheduling.job_fields.nouns import columns_of
from scheduling.models import Cluster, Job, JobEvent, PodSet
from scheduling.services.cluster_choice.told import ChosenForJob, document_of
from scheduling.services.jobs.priority_limits import refuse_too_high
from scheduling.services.jobs.validation import JobSpec
from tenants.errors import Conflict, FieldError, Invalid
from tenants.models import GpuType, Queue, Tenant, User
from tenants.selectors import known_gpu_types_hint
from tenants.tree import Tree

# Variables that tell the pods of an array which of its jobs they belong to.
ARRAY_INDEX, ARRAY_COUNT = "KANT_ARRAY_INDEX", "KANT_ARRAY_COUNT"


@dataclass(frozen=True, slots=True)
class Order:
    """A document that the cluster, the tenant and its queue accept.

    `choice`: why this cluster, if the document names none. `awaits_movable`: until it is written,
    it waits for jobs that may move to another cluster.
    """

    spec: JobSpec
    tenant: Tenant
    cluster: Cluster
    queue: Queue
    choice: ChosenForJob | None = None
    awaits_movable: bool = False


def jobs_of(order: Order) -> int:
    """Return how many jobs are ordered."""
    array = order.spec.job.array
    return 1 if array is None else array.count


def refuse_inactive(tenant: Tenant) -> None:
    """Raise Conflict for a tenant that takes no new jobs."""
    if not tenant.is_active:
        raise Conflict(
            f"Tenant “{tenant.name}” is not active and takes no new jobs. An operator can "
            "activate it."
        )


def known_gpu_types() -> list[str]:
    return list(GpuType.objects.values_list("name", flat=True))


def refuse_anywhere(spec: JobSpec, tenant: Tenant, tree: Tree, gpu_types: Collection[str]) -> None:
    """Raise Invalid for what is wrong on every cluster.

    That is a priority above the tenant's limit, or a GPU type that is not in `gpu_types`, which has
    all.
    """
    refuse_too_high(tree, tenant.pk, spec.job.priority)
    _refuse_unknown(spec, gpu_types)


def _refuse_unknown(spec: JobSpec, known: Collection[str]) -> None:
    faults = [
        FieldError(
            spec.path(index, "gpu_type"),
            f"There is no GPU type {model!r}. {known_gpu_types_hint(known)}",
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
    """Return the job and its pod sets, not yet written.

    `actor` None = Kant itself. `columns`: further columns of the job.
    """
    spec = order.spec
    if (choice := order.choice) is not None:
        told = document_of(choice.chosen, choice.outlooks, at)
        columns |= {"any_cluster": True, "cluster_choice": told}
    job = Job(
        **columns_of(spec.job),
        tenant=order.tenant,
        cluster=order.cluster,
        user=actor,
        gpu_milli=spec.gpu_milli,
        state=JobState.PENDING.value,
        reason=Reason.PENDING_EVALUATION.value,
        message="Waits for the next scheduling cycle.",
        reason_at=at,
        submitted_at=at,
        **columns,
    )
    sets = enumerate(spec.job.pod_sets)
    return job, [PodSet(job=job, index=index, **columns_of(one)) for index, one in sets]


def submitted(actor: User | None, job: Job) -> JobEvent:
    return JobEvent(
        job=job,
        at=job.submitted_at,
        kind=JobEventKind.SUBMITTED.value,
        to_state=job.state,
        message=job.chosen["summary"] if job.chosen else "",
        actor=actor.get_username() if actor is not None else "",
    )
