"""Changes of queues over REST reach the scheduler and appear on pages."""

import pytest

from scheduling.engine.states import JobState as S
from scheduling.models import Job
from scheduling.queries.queues.stages import queues_now
from scheduling.session import changes
from tenants.models import Queue
from tests.live.test_job_changes import Rest, state

pytestmark = pytest.mark.live
WHY = {"reason": "The file server moves"}


@pytest.fixture
def rest(world, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.5)
    return Rest(world)


def reason(job):
    return Job.objects.values_list("reason", flat=True).get(pk=job)


def now(name):
    (found,) = queues_now([Queue.objects.select_related("tenant").get(name=name)])
    return found


def test_a_held_queue_starts_nothing_until_it_is_released(world, rest):
    rest.post("queues", tenant="team", name="nightly")
    running = rest.submit("running", queue="nightly")
    world.drive(lambda: state(running) is S.RUNNING)
    rest.post("queues/team/nightly/hold", **WHY)
    waits, free = rest.submit("waits", queue="nightly"), rest.submit("free")
    world.drive(lambda: reason(waits) == "QueueHeld" and state(free) is S.RUNNING)
    assert state(running) is S.RUNNING
    found = now("nightly")
    assert (found.stages["tenant-queue"], found.running) == (1, 1)
    assert found.head.name == "waits"
    rest.post("queues/team/nightly/release", reason="It has moved")
    world.drive(lambda: state(waits) is S.RUNNING)
    found = now("nightly")
    assert (found.waiting, found.running, found.started) == (0, 2, 2)


def test_a_job_leaves_a_held_queue_by_a_move(world, rest):
    rest.post("queues", tenant="team", name="nightly")
    rest.post("queues/team/nightly/hold", **WHY)
    job = rest.submit("job", queue="nightly")
    submitted = Job.objects.get(pk=job).submitted_at
    world.drive(lambda: reason(job) == "QueueHeld")
    rest.patch(job, queue="default")
    world.drive(lambda: state(job) is S.RUNNING)
    assert Job.objects.get(pk=job).submitted_at == submitted


def test_a_limit_that_is_raised_lets_the_next_job_start(world, rest):
    rest.post("queues", tenant="team", name="nightly", max_running=1)
    one, two = (rest.submit(name, queue="nightly") for name in ("one", "two"))
    world.drive(lambda: state(one) is S.RUNNING and reason(two) == "QueueLimitReached")
    answer = rest.client.patch(
        "/api/v1/queues/team/nightly",
        {"max_running": 2},
        format="json",
        headers={"If-Match": '"1"'},
    )
    assert answer.status_code == 200, answer.json()
    world.drive(lambda: state(two) is S.RUNNING)


def test_a_draining_queue_runs_out_and_goes(world, rest):
    rest.post("queues", tenant="team", name="old")
    job = rest.submit("job", queue="old")
    rest.post("queues/team/old/drain", **WHY)
    refused = rest.client.post(
        "/api/v1/jobs",
        {"name": "late", "tenant": "team", "gpu_type": "H100", "gpus": 1, "queue": "old"},
        format="json",
    )
    assert (refused.status_code, "it is draining" in refused.json()["detail"]) == (409, True)
    world.drive(lambda: state(job) is S.RUNNING)
    gone = "/api/v1/queues/team/old?reason=x"
    assert rest.client.delete(gone, headers={"If-Match": '"2"'}).status_code == 409
    world.finish(Job.objects.get(pk=job))
    world.drive(lambda: state(job) is S.SUCCEEDED)
    assert rest.client.delete(gone, headers={"If-Match": '"2"'}).status_code == 204
