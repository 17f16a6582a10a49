"""Queues from rows to a session's decisions: it hears of a hold at once, and so does the next
scheduler; jobs move."""

import math
import time

import pytest
from django.utils import timezone

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.deltas import QueueDebts
from scheduling.engine.queue.queues import FORGOTTEN_S
from scheduling.engine.shards.division import WHOLE
from scheduling.models import Job, SchedulerLease
from scheduling.queries import known
from scheduling.services.common.lease import Lease
from scheduling.services.jobs.changes import change_job
from scheduling.services.scheduler.debts import DebtsWritten, write_debts
from scheduling.session import changes as session_changes
from scheduling.session import restore
from scheduling.session.changes import Changes
from scheduling.session.memory.queues import debts
from scheduling.session.pods.follow import Lifecycle
from tenants.models import Queue, Quota
from tests.engine.scenario import node

HOUR = 3600.0
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
        """Run a cycle; return the names of the jobs that start."""
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


def test_what_queues_are_owed_outlives_the_scheduler(org, eve, vision, caplog, monkeypatch):
    """The next scheduler goes on with what queues are owed, faded by the time that passed; so
    does a dry run."""
    Queue.objects.create(tenant=vision, name="night", weight=3)
    for i, queue in enumerate(("default", "default", "night", "night")):
        submit(eve, f"job-{i}", queue=queue)
    first = Scheduler(org)
    first.cycle()
    lease = SchedulerLease.objects.create(cluster=org.cluster, token=3)
    told, ours = DebtsWritten(), Lease(org.cluster.pk, "me", 3, timezone.now())
    for passed in (HOUR, HOUR + 10, 2 * HOUR):
        run_cycle(first.state, [], time.time() + passed)
        told.tell(ours, first.state)
    owed = first.state.queues.debts()
    assert [each[:2] for each in owed] == [("vision", "default"), ("vision", "night")]
    assert owed[0][2] == -owed[1][2] != 0
    lease.refresh_from_db()
    assert lease.queue_debts["owed"]["vision"] == {each[1]: each[2] for each in owed}

    monkeypatch.setattr(known, "standstill", lambda _: "")
    assert QueueDebts(owed, lease.queue_debts["at"]) in known.Known(org.cluster).facts(WHOLE)
    lease.queue_debts["at"] = time.time() - FORGOTTEN_S
    lease.save()
    other = Scheduler(org)
    other.cycle()
    faded = [share / math.e for _, _, share in owed]
    assert [each[2] for each in other.state.queues.debts()] == pytest.approx(faded, rel=1e-3)

    write_debts(Lease(org.cluster.pk, "me", 2, timezone.now()), (), 0.0)  # it no longer leads
    lease.refresh_from_db()
    assert lease.queue_debts
    for bad in (["x"], {"owed": {"vision": 1}, "at": 0}, {"owed": {}, "at": "soon"}):
        SchedulerLease.objects.update(queue_debts=bad)
        assert debts(org.cluster.pk, WHOLE) is None
        assert "debts of queues" in caplog.text


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
