"""A plain pod names a queue, by Kant's label or by that of another scheduler and the map."""

import pytest

from scheduling.engine.states import JobState as S
from scheduling.models import Cluster
from scheduling.session import changes
from tenants.models import Queue
from tests.live.plain_pods import job_of, make, state_of, told

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
