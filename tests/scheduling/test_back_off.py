"""The delay of a job after failed placements, and after failed programs."""

import pytest

from scheduling.engine.deltas import JobRequeued
from scheduling.engine.states import JobState
from scheduling.engine.types import JobRequest, PodPlacement, PodSetSpec, Policy
from scheduling.models.jobs import PlacementState
from scheduling.session.memory.live import LiveJob, LivePod
from scheduling.session.pods.follow import Lifecycle

# Seconds after the first, second, ... failure in a row, with a base of 5 and a cap of 300.
WAITS = (5, 10, 20, 40, 80, 160, 300, 300, 300)


@pytest.fixture
def life():
    found = Lifecycle()
    found.scope.policy = Policy(
        backoff_base_s=5.0, backoff_cap_s=300.0, max_attempts=len(WAITS) + 1
    )
    request = JobRequest("job", "team", 0.0, (PodSetSpec("set", 1, 1),))
    found.jobs["job"] = LiveJob(request, "job", (), JobState.PENDING, 1, 1, max_restarts=100)
    return found


def placed(life, at):
    """Give the job a place anew and run its pod."""
    job = life.jobs["job"]
    job.attempt += 1
    job.state, job.leaving = JobState.RUNNING, None
    job.pods.clear()
    place = PodPlacement(0, 0, "n0", (0,), 1000)
    pod = LivePod(place, job.attempt, "p", "H100", PlacementState.RUNNING, placed_at=at, uid="u")
    job.add(pod)
    return job, pod


def told(life):
    """Return when the scheduler was told to place the job again."""
    *_, last = (d for d in life.out.deltas if isinstance(d, JobRequeued))
    return last.not_before


def test_each_placement_that_fails_doubles_the_wait_up_to_the_cap(life):
    now = 1000.0
    for wait in WAITS:
        job, pod = placed(life, now)
        life.vanished(job, pod, now + 1)
        assert told(life) == job.not_before == now + 1 + wait
        now = job.not_before
    job, pod = placed(life, now)
    life.vanished(job, pod, now + 1)
    assert job.state == JobState.FAILED


def test_so_does_each_program_that_fails_soon(life):
    now = 1000.0
    for wait in WAITS:
        job, pod = placed(life, now)
        life.requeueing.crashed(
            job, pod, "Exit code 1", now + 300
        )  # exactly the cap: still in a row
        assert told(life) == job.not_before == now + 300 + wait
        now = job.not_before
    job, pod = placed(life, now)
    life.requeueing.crashed(job, pod, "Exit code 1", now + 301)
    assert told(life) == now + 301 + WAITS[0]
