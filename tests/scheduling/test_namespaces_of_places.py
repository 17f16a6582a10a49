"""The rows know the namespaces of pods, also after the upgrade and for leftover pods."""

import importlib

import pytest
from django.apps import apps
from django.utils import timezone
from msgspec.structs import replace

from scheduling.engine.shards.division import WHOLE
from scheduling.models import Job, JobPod, Placement, PodSet
from scheduling.session.memory import load
from scheduling.session.memory.live import PodRef
from scheduling.session.pods.follow import Lifecycle
from scheduling.session.pods.leftovers import Leftovers
from tests.scheduling.test_scope_of_session import pod

ABSENT = "3f2b8c1e-0000-4000-8000-000000000001"


@pytest.fixture
def place(org):
    """Create a job and a place of it."""

    def make(name, state, namespace="", **job_fields):
        placed = "RELEASED" if state == "FAILED" else "RUNNING"
        job = Job.objects.create(
            name=name,
            tenant=org.tenants["vision"],
            cluster=org.cluster,
            state=state,
            submitted_at=timezone.now(),
            **job_fields,
        )
        return Placement.objects.create(
            job=job,
            attempt=1,
            pod_set=0,
            ordinal=0,
            namespace=namespace,
            pod_name=name,
            node="h000",
            state=placed,
            intended_at=timezone.now(),
        )

    return make


def test_the_upgrade_fills_in_what_schedulers_still_need(org, place):
    place("own", "RUNNING")
    place("plain", "RUNNING", pod_name="plain", pod_namespace="default")
    place("leaves", "CANCELLED")
    place("over", "FAILED")
    migration = importlib.import_module("scheduling.migrations.0017_namespaces_of_pods")
    migration.fill(apps, None)
    found = dict(Placement.objects.values_list("pod_name", "namespace"))
    assert found == {"own": "kant-jobs", "plain": "default", "leaves": "kant-jobs", "over": ""}


def test_the_upgrade_knows_the_pods_of_the_plain_pods_that_are_jobs_already(org, place):
    place("own", "RUNNING")
    taken = place("plain", "RUNNING", pod_name="pod-0", pod_namespace="default", labels={"a": "b"})
    PodSet.objects.create(job=taken.job, index=0, name="worker", count=1, gpus=1)
    migration = importlib.import_module("scheduling.migrations.0018_gangs_of_plain_pods")
    migration.fill(apps, None)
    [job], _ = load.jobs([str(taken.job_id)])
    labels = {"a": "b", "kant.io/tenant": "vision"}
    assert job.plain == {(0, 0): PodRef("pod-0", str(taken.job_id), labels)}
    assert JobPod.objects.count() == 1


@pytest.fixture
def leftovers(org):
    life = Lifecycle()
    life.scope.namespaces = {"vision": "vision-jobs", "law": "kant-jobs"}
    return Leftovers(org.cluster, WHOLE, (), life)


def test_only_pods_that_kant_has_made_are_left_over(leftovers, place):
    placed = place("placed", "RUNNING", "earlier")
    gone = place("gone", "FAILED", "earlier")
    pods = {
        "has a place": ("earlier", "placed", placed.job_id),
        "of a place that is over": ("earlier", "gone", gone.job_id),
        "of the same name": ("default", "gone", gone.job_id),
        "of no row": ("vision-jobs", "who", gone.job_id),
        "of no row, where the cluster has its pods": ("kant-jobs", "who", gone.job_id),
        "of no row, elsewhere": ("earlier", "who", gone.job_id),
        "of a job that is in no row": ("kant-jobs", "lost", ABSENT),
    }
    facts = {}
    for uid, (namespace, name, job) in pods.items():
        facts[uid] = replace(pod(name, "h000", job=str(job)), namespace=namespace), str(job)
    looked_up = leftovers.pods(facts)
    assert looked_up.left == {
        "of a place that is over",
        "of no row",
        "of no row, where the cluster has its pods",
    }
    assert looked_up.copies == {"of the same name", "of no row, elsewhere"}
    assert looked_up.strays == {"of a job that is in no row"}
    assert looked_up.others == set()


def test_only_services_that_kant_has_made_are_left_over(leftovers, place):
    over = str(place("over", "FAILED", "earlier").job_id)
    runs = str(place("runs", "RUNNING", "earlier").job_id)
    left = {(over, "earlier"), (over, "vision-jobs"), (ABSENT, "kant-jobs")}
    others = {(over, "default"), (ABSENT, "default"), (runs, "earlier")}
    assert leftovers.services(left | others) == left
    assert leftovers.services({(runs, "earlier")}) == set()
