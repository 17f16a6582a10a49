"""Two clusters for jobs that name none, and jobs that hold their GPUs."""

from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.models import Cluster, Job, NodeRecord, Placement, PodSet
from scheduling.models.jobs import PlacementState
from tenants.models import Quota, Tenant

URL = "/api/v1/jobs"
HELLO = {"name": "hello", "tenant": "vision", "gpu_type": "H100", "gpus": 8}


@pytest.fixture
def two(org):
    """Clusters demo and far, with 4 and 2 idle nodes of 8 H100, those of far in one leaf; demo
    also has A100. vision may use 64 H100."""
    NodeRecord.objects.filter(gpu_model="A100").update(free_gpus=4)
    NodeRecord.objects.filter(gpu_model="H100").update(free_gpus=8)
    far = Cluster.objects.create(name="far", access={"server": "http://127.0.0.1:1"})
    NodeRecord.objects.bulk_create(
        NodeRecord(
            cluster=far, name=f"f{i}", gpu_model="H100", gpus=8, healthy_gpus=8, free_gpus=8,
            leaf="leaf-f",
        )
        for i in range(2)
    )  # fmt: skip
    heard = timezone.now() + timedelta(hours=1)  # however long a test takes
    Cluster.objects.update(connected=True, last_cycle_at=heard)
    for model in ("H100", "A100"):
        Quota.objects.create(
            tenant=org.tenants["vision"], gpu_type=org.gpu_types[model], guaranteed_milli=64_000
        )
    return org


def fill(cluster, nodes, *, declared_s=None, tenant="law"):
    """Let a job of another tenant hold all GPUs of this many nodes of a cluster for a minute."""
    far = Cluster.objects.get(name=cluster)
    rows = NodeRecord.objects.filter(cluster=far, gpu_model="H100", free_gpus=8)[:nodes]
    names = [row.name for row in rows]
    NodeRecord.objects.filter(name__in=names).update(free_gpus=0, allocated_milli=8000)
    now = timezone.now()
    job = Job.objects.create(
        name="full", tenant=Tenant.objects.get(name=tenant), cluster=far, state="RUNNING",
        submitted_at=now, admitted_at=now, declared_s=declared_s, gpu_milli=8000 * nodes, attempt=1,
    )  # fmt: skip
    PodSet.objects.create(job=job, index=0, name="w", count=nodes, gpus=8, gpu_models=["H100"])
    for at, name in enumerate(names):
        Placement.objects.create(
            job=job, attempt=1, pod_set=0, ordinal=at, pod_name=f"full-{at}", node=name,
            gpu_model="H100", devices=list(range(8)), state=PlacementState.RUNNING,
            intended_at=now, held_from=now, held_milli=8000,
        )  # fmt: skip
    return job


def submit(org, status=201, **fields):
    answer = org.client("eve").post(URL, HELLO | fields, format="json")
    assert answer.status_code == status, answer.json()
    return answer.json()
