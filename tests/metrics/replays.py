"""Replays of the history of `blocked_head`, and of the history of a single job."""

from datetime import timedelta

from django.utils import timezone

from metrics.replays import services
from scheduling.models import Job, Placement, PodSet
from tests.metrics import rows

NODES = tuple(f"n{i:03}" for i in range(4))


def asked(cluster, operator, *, until=1200, **change):
    return services.create_replay(
        operator, cluster, since=rows.at(0), until=rows.at(until), **change
    )


def job_that_ran(tenant, cluster):
    """One job of 8 GPUs for an hour, begun three hours ago."""
    begun = timezone.now() - timedelta(hours=3)
    times = {"submitted_at": begun, "admitted_at": begun, "bound_at": begun}
    job = Job.objects.create(
        name="train", tenant=tenant, cluster=cluster, state="SUCCEEDED", gpu_milli=8000,
        attempt=1, ended_at=begun + timedelta(hours=1), **times,
    )  # fmt: skip
    PodSet.objects.create(job=job, index=0, name="main", count=1, gpus=8, gpu_models=["H100"])
    Placement.objects.create(
        job=job, attempt=1, pod_set=0, ordinal=0, pod_name="train-0", node="h000",
        gpu_model="H100", devices=list(range(8)), held_milli=8000, state="SUCCEEDED",
        intended_at=begun, held_from=begun, ended_at=job.ended_at,
    )  # fmt: skip
