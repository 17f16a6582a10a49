"""The minimum run time counts from the moment when pods begin to run, which the scheduler
observes."""

import pytest

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobState as S
from scheduling.models import Placement

pytestmark = pytest.mark.live


def runs_since(world, job):
    state = world.scheduler.led[world.cluster.pk, WHOLE].session.state
    return state.jobs[str(job.pk)].runs_since


@pytest.mark.parametrize("gang", [True, False])
def test_when_pods_began_to_run_outlives_the_scheduler(world, gang):
    world.set_policy(preemption=["priority"], min_runtime_s=60)
    job = world.submit("job", pods=2, gang=gang)
    world.drive(lambda: Placement.objects.filter(job=job, state="RUNNING").count() == 2)
    world.drive(lambda: len(runs_since(world, job)) == 2)
    before = dict(runs_since(world, job))
    rows = Placement.objects.filter(job=job)
    assert all(row.intended_at <= row.running_at for row in rows)
    world.restart_scheduler()
    world.drive(
        lambda: str(job.pk) in world.scheduler.led[world.cluster.pk, WHOLE].session.state.jobs
    )
    assert world.state(job) == S.RUNNING
    after = runs_since(world, job)
    assert after.keys() == before.keys()
    assert all(abs(after[pod] - at) < 2.0 for pod, at in before.items())
