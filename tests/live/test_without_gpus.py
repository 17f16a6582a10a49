"""Jobs without GPUs on the embedded cluster: a chain of these and a training job."""

import uuid

import pytest
import yaml

from metrics.benches import stage
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobState as S
from scheduling.models import Job
from scheduling.queries.explain import explain_job
from scheduling.queries.rehearsal import Outlook, rehearse_job
from tests.live.conftest import NODES

pytestmark = pytest.mark.live


@pytest.fixture
def inventory(tmp_path):
    """Return a fleet with two nodes without GPUs, each with room for two pods."""
    fleet = stage.inventory(tmp_path / "fleet.yaml", NODES)
    document = yaml.safe_load(fleet.read_text())
    document["pools"].append({"name": "cpu", "count": 2, "cpu_milli": 200, "memory_mib": 8192})
    fleet.write_text(yaml.safe_dump(document))
    return fleet


def nodes_of(world, job):
    return {place.node for place in world.placements(job)}


def test_what_is_prepared_is_trained_on_and_evaluated(world):
    prep = world.submit("prep", pods=3, gpus=0)
    train = world.submit("train", pods=NODES, after_ok=[str(prep.pk)])
    check = world.submit("check", gpus=0, after_ok=[str(train.pk)])
    world.drive_to(prep, S.RUNNING)
    assert nodes_of(world, prep) == {"cpu-0000", "cpu-0001"}
    assert {(p.gpu_model, p.held_milli) for p in world.placements(prep)} == {("", 0)}
    wide = world.submit("wide", pods=2, gpus=0)
    world.drive(lambda: Job.objects.get(pk=wide.pk).reason == "InsufficientCpuOrMemory")
    told = explain_job(world.user, Job.objects.get(pk=wide.pk))
    assert told.evidence["pods_that_fit"] == 1
    assert told.start.basis == "unknown"
    world.restart_scheduler()
    world.drive(lambda: (world.cluster.pk, WHOLE) in world.scheduler.led)
    world.finish(prep)
    world.drive_to(wide, S.RUNNING)
    world.drive_to(train, S.RUNNING)
    assert not nodes_of(world, train) & nodes_of(world, prep)
    assert world.free_gpus() == 0
    assert world.state(check) == S.PENDING
    world.finish(train)
    world.drive_to(check, S.RUNNING)
    assert nodes_of(world, check) <= nodes_of(world, prep)
    world.finish(check)
    world.drive_to(check, S.SUCCEEDED)


def test_what_no_node_without_gpus_could_hold_is_told_and_is_in_nobodys_way(world):
    world.set_policy(queueing="strict-fifo")
    large, small = world.submit("large", pods=5, gpus=0), world.submit("small", pods=4, gpus=0)
    world.drive_to(small, S.RUNNING)
    row = Job.objects.get(pk=large.pk)
    assert (row.reason, row.evidence["installed"]) == ("ExceedsCapacity", 400)
    assert explain_job(world.user, row).will_never_run
    sets = list(small.pod_sets.all())
    again = Job.objects.get(pk=small.pk)
    again.pk, again.state = uuid.uuid4(), S.PENDING.value
    again._prefetched_objects_cache = {"pod_sets": sets}
    said = rehearse_job(world.user, again)
    assert (said.outlook, said.quota, said.alternatives) == (Outlook.WAITS, (), ())
