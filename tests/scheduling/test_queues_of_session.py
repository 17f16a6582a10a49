"""Queues from their rows to what a session decides: a hold is heard of at once, and by the next
scheduler; jobs move."""

import time

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.shards.division import WHOLE
from scheduling.models import Job
from scheduling.services.jobs.changes import change_job
from scheduling.session import changes as session_changes
from scheduling.session import restore
from scheduling.session.changes import Changes
from scheduling.session.pods.follow import Lifecycle
from tenants.models import Queue, Quota
from tests.engine.scenario import node

URL = "/api/v1/jobs"
HELLO = {"name": "one", "tenant": "vision", "gpu_type": "H100", "gpus": 8}


class Scheduler:
    """The rows and the engine of a session."""

    def __init__(self, org):
        self.life, self.state = Lifecycle(), SchedulerState()
        self.changes = Changes(org.cluster, WHOLE, (), self.life)
        self.changes.start()
        self.life.out.deltas.append(d.NodeChanged(node("n1", 8)))
        restore.take_up_jobs(self.changes)

    def cycle(self):
        """Names of the jobs that start."""
        self.changes.read(time.time())
        told, self.life.out.deltas = self.life.out.deltas, []
        result = run_cycle(self.state, told, time.time())
        ids = [start.job_id for start in result.started]
        return [Job.objects.get(pk=job_id).name for job_id in ids]

    def why(self, name):
        verdict = self.state.jobs[str(Job.objects.get(name=name).pk)].verdict
        return verdict and verdict.reason.value


@pytest.fixture
def vision(org, monkeypatch):
    monkeypatch.setattr(session_changes, "LOOK_S", 0.0)
    tenant = org.tenants["vision"]
    Quota.objects.create(tenant=tenant, gpu_type=org.gpu_types["H100"], guaranteed_milli=64_000)
    return tenant


def submit(client, name, **fields):
    answer = client.post(URL, {**HELLO, "name": name, **fields}, format="json")
    assert answer.status_code == 201, answer.json()


def setting(tenant, name, **columns):
    row = Queue.objects.get(tenant=tenant, name=name)
    Queue.objects.filter(pk=row.pk).update(version=row.version + 1, **columns)


def test_a_hold_is_heard_of_by_the_next_pass_and_by_the_next_scheduler(org, eve, vision):
    Queue.objects.create(tenant=vision, name="night", state="held")
    submit(eve, "held", queue="night")
    scheduler = Scheduler(org)
    assert scheduler.cycle() == []
    assert scheduler.why("held") == "QueueHeld"
    other = Scheduler(org)
    assert other.cycle() == []
    assert other.why("held") == "QueueHeld"
    setting(vision, "night", state="open")
    assert scheduler.cycle() == ["held"]
    assert other.cycle() == ["held"]


def test_a_tenant_with_a_plain_queue_is_told_nothing_of(org, eve, vision):
    submit(eve, "one")
    scheduler = Scheduler(org)
    assert scheduler.cycle() == ["one"]
    assert scheduler.state.queues.known == {}
    setting(vision, "default", state="held")
    submit(eve, "two")
    assert scheduler.cycle() == []
    assert scheduler.why("two") == "QueueHeld"
    setting(vision, "default", state="open")
    scheduler.cycle()
    assert scheduler.state.queues.known == {}
    assert scheduler.why("two") == "InsufficientGpus"


def test_a_job_that_moves_is_decided_about_in_its_new_queue(org, eve, vision):
    Queue.objects.create(tenant=vision, name="night", state="held")
    submit(eve, "one", queue="night")
    scheduler = Scheduler(org)
    assert scheduler.cycle() == []
    change_job(org.users["eve"], Job.objects.get(), {"queue": "default"})
    assert scheduler.cycle() == ["one"]


def test_ranks_and_limits_of_rows_decide(org, eve, vision):
    Queue.objects.create(tenant=vision, name="urgent", rank=5, max_gpus={"H100": 4})
    submit(eve, "old", gpus=4)
    submit(eve, "large", queue="urgent")
    submit(eve, "new", queue="urgent", gpus=4)
    submit(eve, "newer", queue="urgent", gpus=4)
    scheduler = Scheduler(org)
    assert scheduler.cycle() == ["new", "old"]
    assert scheduler.why("large") == scheduler.why("newer") == "QueueLimitReached"
