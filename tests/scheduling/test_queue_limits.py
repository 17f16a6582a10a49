"""Estimate when a queue at its limit has room, from the declared run times of its running jobs."""

from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.models import Job, Placement, PodSet
from scheduling.queries.explain import start_of

pytestmark = pytest.mark.usefixtures("now")


@pytest.fixture
def night(org):
    def add(name, *, gpus=1, ran=60, ends=None, limit=None, queue="night", **fields):
        """Add a job of the queue that has run for `ran` seconds."""
        job = Job.objects.create(
            name=name,
            cluster=org.cluster,
            tenant=org.tenants["vision"],
            queue=queue,
            state="RUNNING",
            submitted_at=timezone.now() - timedelta(hours=1),
            admitted_at=timezone.now() - timedelta(seconds=ran),
            declared_s=ends,
            run_limit_s=limit,
            gpu_milli=1000 * gpus,
        )
        PodSet.objects.create(job=job, index=0, name="w", count=1, gpus=gpus, gpu_models=["H100"])
        Placement.objects.create(
            job=job, attempt=1, pod_set=0, ordinal=0, namespace="x", pod_name=name, node="n1",
            gpu_model="H100", held_milli=1000 * gpus, state="RUNNING", intended_at=timezone.now(),
        )  # fmt: skip
        return job

    return add


def waits(org, **evidence):
    job = Job(
        name="waits", cluster=org.cluster, tenant=org.tenants["vision"], queue="night",
        state="PENDING", submitted_at=timezone.now(), reason="QueueLimitReached", evidence=evidence,
    )  # fmt: skip
    start = start_of(job)
    return start.basis, start.at and round((start.at - timezone.now()).total_seconds())


def test_a_place_among_the_running_jobs_comes_with_the_first_declared_ends(org, night):
    night("late", ends=600)
    night("soon", ends=3600, limit=120)  # stopped then, whatever it declares
    night("silent")
    night("elsewhere", ends=70, queue="default")
    assert waits(org, running=3, max_running=3) == ("earliest", 60)
    # The limit was lowered: two jobs have to end.
    assert waits(org, running=3, max_running=2) == ("earliest", 540)
    assert waits(org, running=3, max_running=1) == ("unknown", None)


def test_gpus_come_with_the_jobs_that_hold_them(org, night):
    night("small", gpus=1, ends=120)
    night("large", gpus=4, ends=600)
    told = {"gpu_model": "H100", "used": 5.0, "max_gpus": 5.0}
    assert waits(org, asked=1.0, **told) == ("earliest", 60)
    assert waits(org, asked=2.0, **told) == ("earliest", 540)
    assert waits(org, asked=6.0, **told) == ("unknown", None)
    assert waits(org, asked=1.0, **{**told, "gpu_model": "A100"}) == ("unknown", None)


def test_a_job_that_should_have_ended_promises_nothing(org, night):
    night("overdue", ran=600, ends=300)
    assert waits(org, running=1, max_running=1) == ("unknown", None)
