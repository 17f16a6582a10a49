"""Volumes in a divided cluster: a job goes to the shard whose nodes can mount them."""

import pytest

from scheduling.engine.states import JobEventKind
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent
from tests.live.plain_pods import job_of, make, state_of
from tests.live.shards import NORTH, SOUTH, divide, nodes_by_scope, of_two_spines, scope_of
from tests.live.volumes import MERGE, MOUNT, SIZE, claim, claims

pytestmark = pytest.mark.live


@pytest.fixture
def inventory(tmp_path):
    return of_two_spines(tmp_path)


def volume_on(world, node, name="data", namespace="kant-jobs"):
    """Create a volume that only this node can mount, for the claim of the same name."""
    host = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": SIZE["accessModes"],
        "csi": {"driver": "example.com", "volumeHandle": name},
        "storageClassName": "by-hand",
        "claimRef": {"namespace": namespace, "name": name},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}},
    }
    world.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})
    world.call("PATCH", claims(name, namespace), {"spec": {"volumeName": name}}, kind=MERGE)


def of_south(world):
    divide(world)
    world.drive(lambda: len(nodes_by_scope()[SOUTH]) == 4)
    return min(nodes_by_scope()[SOUTH])


def test_a_job_is_routed_anew_when_its_volume_turns_out_to_be_in_another_shard(world):
    node = of_south(world)
    job = world.submit(volumes=[MOUNT])
    world.drive(lambda: Job.objects.get(pk=job.pk).reason == "WaitingForVolume")
    assert scope_of(job) == NORTH  # the first of several equal ones
    claim(world, storageClassName="by-hand")
    volume_on(world, node)
    world.drive_to(job, S.RUNNING)
    assert (scope_of(job), [p.node for p in world.placements(job)]) == (SOUTH, [node])
    routed = JobEvent.objects.filter(job=job, kind=JobEventKind.ROUTED)
    assert [event.evidence["to"] for event in routed.order_by("id")] == [NORTH, SOUTH]
    second = world.submit("second", gpus=1, volumes=[MOUNT])
    world.drive(lambda: Job.objects.get(pk=second.pk).reason == "InsufficientGpus")
    assert scope_of(second) == SOUTH


def test_a_plain_pod_goes_to_the_shard_of_its_volume(world):
    node = of_south(world)
    claim(world, namespace="default", storageClassName="by-hand")
    uid = make(world, volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}])
    world.drive(lambda: job_of(uid) and job_of(uid).reason == "WaitingForVolume")
    volume_on(world, node, namespace="default")
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert job_of(uid).scope == SOUTH
