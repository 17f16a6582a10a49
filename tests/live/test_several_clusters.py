"""Two embedded clusters, one scheduler: a job that names no cluster runs where room is free
first."""

from datetime import timedelta

import pytest
from django.utils import timezone

from metrics.benches import stage
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import OPEN, JobEventKind, JobState
from scheduling.models import Cluster, Job, JobEvent, NodeRecord
from scheduling.services.cluster_choice.moves import move_waiting
from scheduling.services.jobs.submit import submit_job
from tests.live.conftest import NODES, ClusterApi, wait
from tests.simcluster.forks import ForkedCluster

pytestmark = pytest.mark.live
JOB = {"name": "any", "tenant": "team", "gpu_type": stage.MODEL, "gpus": 8, "cluster": "any"}


@pytest.fixture
def far(world, tmp_path, inventory):
    """A second cluster, as large as the first."""
    process = ForkedCluster(str(inventory), tmp_path / "far")
    process.start()
    world.far = Cluster.objects.create(name="far", access={"kubeconfig": str(process.kubeconfig)})
    api = ClusterApi(process.kubeconfig)
    api.process = process
    yield api
    process.stop()


def test_a_job_runs_where_there_is_room_first_and_moves_there(world, far):
    def drive(until):
        """Give each cluster its turn, as the loop does."""

        def turn():
            for cluster in (world.cluster, world.far):
                world.scheduler.run(cluster.pk, budget_s=0.1)
            return until()

        wait(turn)

    def free(cluster):
        rows = NodeRecord.objects.filter(cluster=cluster)
        return sum(rows.values_list("free_gpus", flat=True))

    def jobs_of(cluster):
        return world.scheduler.led[cluster.pk, WHOLE].session.life.jobs

    def submit(**said):
        return submit_job(world.user, JOB | said)

    def is_running(job):
        return world.state(job) is JobState.RUNNING

    drive(lambda: free(world.cluster) == free(world.far) == 8 * NODES)
    full = submit(name="full", cluster="live", replicas=NODES)
    half = submit(name="half", cluster="far", replicas=NODES - 1)
    drive(lambda: is_running(full) and is_running(half))
    drive(lambda: free(world.far) == 8 and free(world.cluster) == 0)
    first = submit()
    assert first.cluster == world.far
    told = "Runs on far: starts there at once; on live at an unknown time"
    assert first.chosen["summary"].startswith(told)
    drive(lambda: is_running(first))

    # Nothing is free any more. The next job waits on one of them until the other has room.
    drive(lambda: free(world.far) == 0)
    second = submit()
    Job.objects.filter(pk=second.pk).update(priority=1)
    here, there = second.cluster, world.far if second.cluster == world.cluster else world.cluster
    drive(lambda: str(second.pk) in jobs_of(here))
    world.cancel(full if there == world.cluster else first)
    drive(lambda: free(there) > 0)
    assert world.state(second) in (JobState.PENDING, JobState.QUOTA_RESERVED)
    soon = timezone.now() + timedelta(seconds=40)
    Cluster.objects.update(last_cycle_at=soon)  # as then
    assert [job.pk for job in move_waiting(soon)] == [second.pk]
    drive(lambda: is_running(second) and str(second.pk) not in jobs_of(here))
    assert Job.objects.get(pk=second.pk).cluster == there
    [place] = world.placements(second)
    api = {world.cluster: world, world.far: far}
    assert place.pod_name in api[there].pods()
    assert place.pod_name not in api[here].pods()
    moved = JobEvent.objects.get(job=second, kind=JobEventKind.ROUTED)
    assert moved.evidence == {"from_cluster": here.name, "to_cluster": there.name}
    assert far.audit()["double_holdings"] == []

    # One cluster is gone: jobs for any cluster move to the other one at once and say why.
    far.process.stop()
    drive(lambda: not Cluster.objects.get(pk=world.far.pk).connected)
    third = submit()
    assert third.cluster == world.cluster
    assert "far is passed over: its scheduler cannot reach it" in third.chosen["summary"]
    # It delays nobody: the other cluster goes on freeing and giving places.
    holding = Job.objects.filter(cluster=world.cluster).exclude(pk=third.pk)
    for job in holding.filter(state__in=list(OPEN)):
        world.cancel(job)
    drive(lambda: is_running(third))
    assert not Cluster.objects.get(pk=world.far.pk).connected
