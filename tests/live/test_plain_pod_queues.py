"""A plain pod names a queue by Kant's label, or by another scheduler's label and the map."""

import pytest

from scheduling.engine.states import JobEventKind
from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, Job
from scheduling.services.jobs.changes import change_job
from scheduling.session import changes
from tenants.models import Queue, QueueState
from tests.live.plain_pods import (
    MERGE,
    condition,
    job_of,
    make,
    path,
    state_of,
    told,
    ungate,
)

pytestmark = pytest.mark.live
KAI = "kai.scheduler/queue"


@pytest.fixture
def nightly(world):
    return Queue.objects.create(tenant=world.tenant, name="nightly")


def test_a_pod_is_taken_up_into_the_queue_that_it_names(world, nightly):
    tenant = world.tenant.name
    Cluster.objects.update(queue_map={"gpu-queue": f"{tenant}/nightly"})
    own = make(world, "own", gpus=1, labels={"kant.io/tenant": tenant, "kant.io/queue": "nightly"})
    mapped = make(world, "mapped", gpus=1, labels={KAI: "gpu-queue"})
    world.drive(lambda: state_of(own) is S.RUNNING and state_of(mapped) is S.RUNNING)
    for uid in (own, mapped):
        assert (job_of(uid).tenant.name, job_of(uid).queue) == (tenant, "nightly")


def test_an_unknown_queue_is_refused_with_an_event_until_the_map_has_it(
    world, nightly, monkeypatch
):
    monkeypatch.setattr(changes, "COUNT_S", 0.5)
    tenant = world.tenant.name
    Cluster.objects.update(queue_map={"other": f"{tenant}/default"})
    uid = make(world, gpus=1, labels={KAI: "gpu-queue"})
    world.drive(lambda: told(world))
    [(kind, reason, note)] = told(world)
    assert (kind, reason) == ("Warning", "UnknownQueue")
    assert "queue_map of cluster" in note
    assert job_of(uid) is None
    Cluster.objects.update(queue_map={"gpu-queue": f"{tenant}/nightly"})
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert job_of(uid).queue == "nightly"


def test_a_queue_that_the_tenant_has_not_is_told(world):
    labels = {"kant.io/tenant": world.tenant.name, "kant.io/queue": "nope"}
    uid = make(world, gpus=1, labels=labels)
    world.drive(lambda: told(world))
    [(_, reason, note)] = told(world)
    assert (reason, "has no queue “nope”" in note) == ("InvalidPod", True)
    assert note.startswith("label kant.io/queue: ")
    assert job_of(uid) is None


# --- labels that change while it waits ------------------------------------------------------------
OWN = "kant.io/queue"
GATE = [{"name": "example.com/later"}]


def relabel(world, name="plain", **labels):
    world.call("PATCH", path(name), {"metadata": {"labels": labels}}, kind=MERGE)


@pytest.fixture
def held(world, nightly, monkeypatch):
    """Jobs in `default` wait; refused pods are examined again soon."""
    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    Queue.objects.update_or_create(
        tenant=world.tenant, name="default", defaults={"state": QueueState.HELD}
    )
    return world.tenant.name


def test_a_waiting_job_follows_the_label_of_its_pod(world, held):
    Cluster.objects.update(queue_map={"gpu-queue": f"{held}/nightly"})
    own, mapped = make(world, gpus=1), make(world, "mapped", gpus=1)
    world.drive(lambda: {job_of(own) and job_of(own).reason} == {"QueueHeld"})
    since = job_of(own).submitted_at
    relabel(world, **{OWN: "nightly"})
    relabel(world, "mapped", **{KAI: "gpu-queue"})
    world.drive(lambda: state_of(own) is S.RUNNING and state_of(mapped) is S.RUNNING)
    for uid in (own, mapped):
        assert job_of(uid).queue == "nightly"
        [event] = job_of(uid).events.filter(kind=JobEventKind.CHANGED)
        assert event.message == "Changed on its pod: queue: default → nightly."
    assert job_of(own).submitted_at == since


def test_a_queue_that_does_not_take_a_waiting_job_is_told_until_it_does(world, held):
    uid = make(world, gpus=1)
    world.drive(lambda: job_of(uid) and job_of(uid).reason == "QueueHeld")
    relabel(world, **{OWN: "nope"})
    world.drive(lambda: told(world))
    [(kind, reason, note)] = told(world)
    assert (kind, reason) == ("Warning", "InvalidPod")
    assert note.startswith("label kant.io/queue: ")
    assert note.endswith("The job stays in queue default until then.")
    relabel(world, **{OWN: "default"})  # it is there: the job's current wait is reported again
    world.drive(lambda: condition(world)[1] == "QueueHeld")
    Queue.objects.filter(name="nightly").update(state=QueueState.CLOSED)
    relabel(world, **{OWN: "nightly"})
    world.drive(lambda: any("accepts no jobs: it is closed" in note for _, _, note in told(world)))
    assert (job_of(uid).queue, job_of(uid).state) == ("default", S.PENDING)
    world.restart_scheduler()
    Queue.objects.filter(name="nightly").update(state=QueueState.OPEN)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert job_of(uid).queue == "nightly"


def test_a_gang_moves_when_all_of_its_pods_name_the_queue(world, held):
    labels = {"kant.io/tenant": held, "kant.io/gang": "train"}
    for name in ("a", "b"):
        make(world, name, gpus=1, labels=labels, notes={"kant.io/gang-size": "2"})
    world.drive(lambda: Job.objects.filter(reason="QueueHeld").exists())
    relabel(world, "a", **{OWN: "nightly"})
    world.drive(lambda: told(world, "a"))
    [(_, reason, note)] = told(world, "a")
    assert reason == "GangDisagrees"
    assert "it is nightly of a and default of b" in note
    assert told(world, "b") == []
    relabel(world, "b", **{OWN: "nightly"})
    world.drive(lambda: Job.objects.get().state == S.RUNNING)
    assert Job.objects.get().queue == "nightly"


def test_a_job_that_a_person_has_moved_stays_there(world, held):
    uid = make(world, gpus=1, labels={"kant.io/tenant": held, OWN: "nightly"}, schedulingGates=GATE)
    world.drive(lambda: job_of(uid))
    change_job(world.user, job_of(uid), {"queue": "default"})
    world.restart_scheduler()
    ungate(world)
    world.drive(lambda: job_of(uid).reason == "QueueHeld")
    assert job_of(uid).queue == "default"
