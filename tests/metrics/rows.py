"""Rows that the metric tests read: a cluster with nodes, jobs and placements at known instants."""

from datetime import UTC, datetime, timedelta

from django.core.cache import cache

from metrics.prometheus import exporter
from scheduling.engine.states import JobState
from scheduling.models import Cluster, Job, NodeRecord, Placement, PodSet
from scheduling.models.jobs import PlacementState
from tenants.models import Tenant

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def cluster(nodes: int = 2, *, gpus: int = 8, model: str = "H100", leaf_size: int = 8) -> Cluster:
    found, _ = Cluster.objects.get_or_create(name="c1")
    first = found.nodes.count()
    NodeRecord.objects.bulk_create(
        NodeRecord(
            cluster=found,
            name=f"n{i:03}",
            gpu_model=model,
            gpus=gpus,
            healthy_gpus=gpus,
            free_gpus=gpus,
            leaf=f"l{i // leaf_size}",
        )
        for i in range(first, first + nodes)
    )
    return found


def job(
    where: Cluster,
    name: str,
    *,
    pods: int = 1,
    gpus: int = 8,
    gang: bool = True,
    submitted: float = 0.0,
    bound: float | None = None,
    ended: float | None = None,
    nodes: tuple[str, ...] = (),
    model: str = "H100",
) -> Job:
    """A job with one pod on each of `nodes`, from `bound` to `ended`."""
    tenant, _ = Tenant.objects.get_or_create(name="vision")
    state = (
        JobState.PENDING
        if bound is None
        else JobState.RUNNING
        if ended is None
        else JobState.SUCCEEDED
    )
    row = Job.objects.create(
        name=name,
        tenant=tenant,
        cluster=where,
        gang=gang,
        state=state,
        gpu_milli=pods * gpus * 1000,
        submitted_at=at(submitted),
        attempt=0 if bound is None else 1,
        admitted_at=None if bound is None else at(bound),
        bound_at=None if bound is None else at(bound),
        ended_at=None if ended is None else at(ended),
    )
    PodSet.objects.create(job=row, index=0, name="main", count=pods, gpus=gpus, gpu_models=[model])
    if bound is not None:
        Placement.objects.bulk_create(
            Placement(
                job=row,
                attempt=1,
                pod_set=0,
                ordinal=i,
                pod_name=f"{name}-{i}",
                node=node,
                gpu_model=model,
                devices=list(range(gpus)),
                held_milli=gpus * 1000,
                state=PlacementState.SUCCEEDED if ended is not None else PlacementState.RUNNING,
                intended_at=at(bound),
                bound_at=at(bound),
                held_from=at(bound),
                ended_at=None if ended is None else at(ended),
            )
            for i, node in enumerate(nodes)
        )
    return row


def exposition():
    """Return what Prometheus is told, with nothing cached."""
    cache.clear()
    return exporter.told()
