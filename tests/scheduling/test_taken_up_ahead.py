"""Kant makes and decides jobs of plain pods before it asks or locks anything: changes in between
still count, and nothing is half written."""

import threading
import time
import uuid

import pytest
from django.db import connection, connections, transaction
from django.db.models import F

from scheduling.kube.seam import Bind, PodSeen
from scheduling.models import Cluster, Job, JobEvent, JobPod, Placement, SchedulerLease
from scheduling.services.common.lease import LeaseLost
from scheduling.services.plain_pods.ahead import StillSo
from scheduling.services.scheduler import taking
from scheduling.session import session as sessions
from tenants.models import Queue, QueueState, Quota, Tenant
from tests import organisation
from tests.scheduling.test_statements_of_passes import GPUS, NODES, Live, org, seen_to_bound
from tests.scheduling.test_take_up import plain

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif("connection.vendor != 'postgresql'", reason="writers to SQLite take turns"),
]
__all__ = ["org"]


@pytest.fixture
def live(org):
    """A session that has bound pods before, so that it reads nothing more."""
    live = Live(org)
    seen_to_bound(live, 0, 2)
    return live


@pytest.fixture
def meanwhile(monkeypatch):
    """Let something happen once, after pods were judged and before the result is written."""
    waiting = []

    def run_cycle(*given):
        for act in waiting:
            act()
        waiting.clear()
        return cycle(*given)

    cycle = sessions.run_cycle
    monkeypatch.setattr(sessions, "run_cycle", run_cycle)
    return waiting.append


def came(live, *pods):
    """Return the plain pods that a pass sees and asks to bind; it takes them up or does not."""
    live.door.asked.clear()
    live.door.seen += map(PodSeen, pods)
    live.statements()
    return [effect.name for effect in live.door.asked if isinstance(effect, Bind)]


def one(number, **fields):
    return plain(number, gpus=1, extended={}, **fields)


def known():
    """Return the number of rows."""
    return tuple(model.objects.count() for model in (Job, JobPod, JobEvent, Placement))


def deactivate():
    Tenant.objects.filter(name="vision").update(is_active=False, version=F("version") + 1)


def limit():
    Tenant.objects.filter(name="vision").update(max_waiting=0, version=F("version") + 1)


def close():
    queues = Queue.objects.filter(tenant__name="vision")
    queues.update(state=QueueState.CLOSED, version=F("version") + 1)


def delete():
    Quota.objects.filter(tenant__name="vision").delete()
    Job.objects.filter(tenant__name="vision").delete()
    Queue.objects.filter(tenant__name="vision").delete()
    Tenant.objects.filter(parent__name="vision").delete()
    Tenant.objects.filter(name="vision").delete()


REFUSALS = {
    deactivate: "TenantInactive",
    limit: "TooManyWaiting",
    close: "InvalidPod",
    delete: "UnknownTenant",
}


@pytest.mark.parametrize("change", REFUSALS)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside others"])
def test_what_changes_before_it_is_written_counts(live, meanwhile, change, beside):
    """The second pass follows the change: the pod is refused and its GPU is free. `beside`: the
    pass also writes about other jobs, for which one statement is not enough."""
    if beside:
        came(live, one("waits", tenant="law"))
    before = known()
    meanwhile(change)
    if beside:
        # The same pass writes that it waits for something else now.
        meanwhile(lambda: live.session.life.out.writes.notes.append(_note(live)))
    assert came(live, one(10)) == []
    assert not JobPod.objects.filter(name="p-10").exists()
    if not beside and change is not delete:
        assert known() == before
    if beside:
        assert JobEvent.objects.filter(message="told meanwhile").count() == 1
    live.statements()
    [refusal] = {
        effect.reason
        for effect in live.door.asked
        if getattr(effect, "name", "") == "p-10" and hasattr(effect, "reason")
    }
    assert refusal == REFUSALS[change]
    assert not Job.objects.filter(name="p-10").exists()
    of_session = live.session
    left = [*of_session.life.jobs.values(), *of_session.life.starting.values()]
    assert not any(job.name == "p-10" for job in left)


def _note(live):
    from scheduling.session.memory.live import Note

    job = next(job for job in live.session.life.jobs.values() if job.name == "p-waits")
    return Note(job.id, job.state, "Told", "told meanwhile")


def test_all_gpus_are_free_again(live, meanwhile):
    """Pods whose job was rolled back hold nothing, here or in the engine."""
    meanwhile(lambda: Tenant.objects.filter(name="vision").update(version=F("version") + 1))
    free = NODES * GPUS - 2
    pods = [one(10 + n) for n in range(free)]
    assert came(live, *pods) == []
    assert Placement.objects.count() == 2
    assert len(came(live)) == free  # by a transaction, with current knowledge
    assert Placement.objects.count() == NODES * GPUS
    held = Placement.objects.values_list("node", "devices")
    assert len({(node, *devices) for node, devices in held}) == NODES * GPUS
    assert Job.objects.filter(state="ADMITTED").count() == NODES * GPUS


def test_a_pod_that_has_a_job_gets_no_second(live, org, meanwhile):
    """The same cluster under another name was faster."""
    pod, other = one(10), Cluster.objects.create(name="other")
    job = Job(id=uuid.uuid4(), name="theirs", tenant=org.tenants["vision"], cluster=other)
    job.state, job.submitted_at = "PENDING", Job.objects.first().submitted_at

    def take():
        job.save()
        JobPod.objects.create(job=job, pod_set=0, ordinal=0, name=pod.name, uid=pod.uid)

    meanwhile(take)
    assert came(live, pod) == []
    assert came(live) == []
    assert JobPod.objects.get(uid=pod.uid).job_id == job.pk
    assert not any(one.name == "p-10" for one in live.session.life.jobs.values())


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside others"])
def test_who_leads_no_more_writes_and_binds_nothing(live, meanwhile, beside):
    if beside:
        came(live, one("waits", tenant="law"))
        meanwhile(lambda: live.session.life.out.writes.notes.append(_note(live)))
    before = known()
    meanwhile(lambda: SchedulerLease.objects.update(token=F("token") + 1))
    live.door.asked.clear()
    live.door.seen.append(PodSeen(one(10)))
    with pytest.raises(LeaseLost):
        live.statements()
    assert live.door.asked == []
    assert known() == before


def test_a_pod_is_bound_after_it_is_written(live, monkeypatch):
    """A process that dies before or during the statement has bound nothing."""
    before = known()

    def breaks(*given):
        raise ConnectionError("the process ends here")

    monkeypatch.setattr(StillSo, "write", breaks)
    live.door.asked.clear()
    live.door.seen.append(PodSeen(one(10)))
    with pytest.raises(ConnectionError):
        live.statements()
    assert (live.door.asked, known()) == ([], before)


def test_what_one_statement_writes_is_what_a_transaction_writes(live, monkeypatch):
    """Compare every column except ids, names and times; also for a pod that waits."""
    ahead = [one(10), one("model", notes={"kant.io/gpu-models": "A100"})]
    came(live, *ahead)
    monkeypatch.setattr(taking, "take_up_ahead", lambda *given: None)
    after = [one(11), one("model-2", notes={"kant.io/gpu-models": "A100"})]
    came(live, *after)
    for first, second in zip(ahead, after, strict=True):
        assert _rows(first.uid) == _rows(second.uid)
    # Memory has the same ids as the rows.
    placed = {p.pk: (p.node, p.devices) for p in Placement.objects.all()}
    pods = [pod for job in live.session.life.jobs.values() for pod in job.pods.values()]
    assert {pod.row: (pod.place.node, list(pod.place.devices)) for pod in pods} == placed


OWN = {
    "id",
    "job_id",
    "uid",
    "name",
    "pod_name",
    "labels",
    "node",
    "devices",
    "nics",
    "_state",
    "at",
}


def _rows(uid):
    job = Job.objects.get(pk=uid)
    of_job = [[job], job.pod_sets.all(), job.pods.all(), job.placements.all(), job.events.all()]
    return [
        {
            name: str(value).replace(job.name, "its name")
            for name, value in vars(row).items()
            if name not in OWN and not name.endswith("_at")
        }
        for rows in of_job
        for row in rows
    ]


@pytest.mark.parametrize("change", [False, True], ids=["as it was", "changed"])
@pytest.mark.django_db(transaction=True)
def test_who_changes_a_tenant_at_once_is_waited_for(change):
    """A change that was not committed when the statement began still counts."""
    org = organisation.build()
    org.cluster.namespace_tenants = {"*": ["*"]}
    org.cluster.save()
    of = {"tenant": org.tenants["vision"], "gpu_type": org.gpu_types["H100"]}
    Quota.objects.create(**of, guaranteed_milli=NODES * GPUS * 1000)
    live = Live(org)
    seen_to_bound(live, 0, 1)
    locked, bound = threading.Event(), []

    def changes():
        try:
            with transaction.atomic():
                Tenant.objects.select_for_update().get(name="vision")
                if change:
                    deactivate()
                locked.set()
                _until_somebody_waits()
        finally:
            connections.close_all()

    other = threading.Thread(target=changes)
    # Judged before the other one begins, and written while it is at work.
    write = StillSo.write

    def later(*given):
        other.start()
        assert locked.wait(60)
        return write(*given)

    StillSo.write = later
    try:
        bound = came(live, one(10))
    finally:
        StillSo.write = write
        other.join()
    assert bound == ([] if change else ["p-10"])
    assert Job.objects.filter(name="p-10").exists() is not change


def _until_somebody_waits():
    deadline = time.monotonic() + 60
    asked = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted"
    while time.monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute(asked)
            if cursor.fetchone()[0]:
                return
        time.sleep(0.02)
    raise AssertionError("nobody waits for the lock")
