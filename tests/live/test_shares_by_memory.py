"""Shares of a GPU by memory, from REST to the kubelet: a GPU holds as many as its memory allows."""

import pytest
import yaml

from metrics.benches import stage
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobState as S
from scheduling.models import Job, NodeRecord
from scheduling.queries.quota_use import quota_uses
from tests.live.test_job_changes import Rest, state

pytestmark = pytest.mark.live


@pytest.fixture
def inventory(tmp_path):
    """Return a fleet of one node with one GPU of 24,576 MiB."""
    path = stage.inventory(tmp_path / "fleet.yaml", 1)
    document = yaml.safe_load(path.read_text())
    document["pools"][0] |= {"gpus": 1, "gpu_memory_mib": 24_576, "link_model": ""}
    path.write_text(yaml.safe_dump(document))
    return path


def test_three_thirds_run_on_one_gpu_and_a_fourth_waits(world):
    rest = Rest(world)
    world.drive(lambda: NodeRecord.objects.filter(gpus=1).exists())
    third = {"gpus": 1, "gpu_memory_mib": 8_192}
    jobs = [rest.submit(f"third-{i}", **third) for i in range(3)]
    world.drive(lambda: {state(job) for job in jobs} == {S.RUNNING})
    rows = [row for job in jobs for row in world.placements(job)]
    assert [(row.devices, row.held_milli, row.held_beyond) for row in rows] == [
        ([0], 333, 333_333_334)
    ] * 3
    assert [u.used for u in quota_uses() if u.used] == [1_000]
    book = world.scheduler.led[world.cluster.pk, WHOLE].session.state.book
    assert [a.used for a in book.accounts() if a.used] == [1_000]
    pods = world.pods()
    for row in rows:
        assert pods[row.pod_name]["metadata"]["annotations"]["kant.io/milli"] == "333"
    late = rest.submit("late", **third)
    world.drive(lambda: Job.objects.get(pk=late).reason == "InsufficientGpus")
    rest.post(f"jobs/{jobs[0]}/cancel")
    world.drive(lambda: state(late) == S.RUNNING)
    assert world.audit()["double_holdings"] == []
