"""After a database restore from a backup, the cluster knows more than the database."""

import pytest
from django.db.models import F

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent, Placement
from scheduling.models.jobs import LIVE_PLACEMENTS
from tests.live.conftest import NODES, wait

pytestmark = pytest.mark.live

ALL = NODES * 8000


def restored(job, state=S.PENDING, attempt=0, **values):
    """Restore the job's rows from a backup that was made when it was in that state."""
    Placement.objects.filter(job=job, attempt__gt=attempt).delete()
    Placement.objects.filter(job=job).update(state="RUNNING", ended_at=None)
    steps = JobEvent.objects.filter(job=job).exclude(kind=K.SUBMITTED)
    (steps if not attempt else steps.filter(kind=K.REQUEUED)).delete()
    values |= {"ended_at": None, "version": F("version") - 1}
    if not attempt:
        values |= dict.fromkeys(("admitted_at", "bound_at", "running_at"))
    Job.objects.filter(pk=job.pk).update(state=state, attempt=attempt, **values)


def uids(world):
    return {name: pod["metadata"]["uid"] for name, pod in world.pods().items()}


def led(world):
    return (world.cluster.pk, WHOLE) in world.scheduler.led


def found(job):
    rows = JobEvent.objects.filter(job=job, reason="FoundInCluster").order_by("id")
    return list(rows.values_list("kind", "from_state", "to_state"))


def test_a_job_that_waited_goes_on_with_the_pods_that_it_has_since(world):
    gang, held = world.submit("gang", pods=2), world.submit("held", pods=1)
    for job in (gang, held):
        world.drive_to(job, S.RUNNING)
    before = uids(world)
    restored(gang, S.QUOTA_RESERVED)
    restored(held, held=True)
    world.restart_scheduler()
    for job in (gang, held):
        world.drive_to(job, S.RUNNING)
    assert uids(world) == before
    world.drive(lambda: world.free_gpus() == ALL - 24000)
    assert found(gang) == [(K.ADMITTED, S.QUOTA_RESERVED, S.ADMITTED)]
    assert world.kinds(held) == [K.SUBMITTED, K.ADMITTED, K.RUNNING]
    row = Job.objects.get(pk=held.pk)
    assert (row.attempt, row.held) == (1, False)
    for job in (gang, held):
        world.finish(job)
        world.drive_to(job, S.SUCCEEDED)
    world.drive(lambda: world.free_gpus() == ALL)


@pytest.mark.parametrize(("exit_code", "state"), [(0, S.SUCCEEDED), (1, S.FAILED)])
def test_a_job_that_has_ended_since_does_not_run_again(world, exit_code, state):
    job = world.submit(run_s=0.2, exit_code=exit_code)
    world.drive_to(job, state)
    before = uids(world)
    restored(job)
    world.restart_scheduler()
    world.drive_to(job, state)
    assert uids(world) == before
    world.drive(lambda: world.free_gpus() == ALL)


def test_a_job_that_was_placed_anew_since_goes_on_where_it_is(world):
    job = world.submit(pods=2)
    world.drive_to(job, S.RUNNING)
    pod = world.placements(job)[0].pod_name
    world.call("DELETE", f"/api/v1/namespaces/kant-jobs/pods/{pod}", {"gracePeriodSeconds": 0})
    world.drive(lambda: Job.objects.get(pk=job.pk).attempt == 2)
    world.drive_to(job, S.RUNNING)
    wait(lambda: len(world.pods()) == 2)
    before = uids(world)
    restored(job, S.RUNNING, attempt=1)
    world.restart_scheduler()
    world.drive(lambda: led(world) and world.state(job) == S.RUNNING)
    assert uids(world) == before
    live = world.placements(job, state__in=LIVE_PLACEMENTS)
    assert {p.pod_name for p in live} == before.keys()
    assert found(job) == [(K.REQUEUED, S.RUNNING, S.PENDING), (K.ADMITTED, S.PENDING, S.ADMITTED)]
    world.drive(lambda: world.free_gpus() == ALL - 16000)


def test_a_pod_of_a_service_that_was_placed_anew_since_stays(world):
    job = world.submit(pods=2, gang=False)
    world.drive(lambda: len(world.placements(job, state="RUNNING")) == 2)
    pod = world.placements(job)[0].pod_name
    world.call("DELETE", f"/api/v1/namespaces/kant-jobs/pods/{pod}", {"gracePeriodSeconds": 0})
    world.drive(lambda: len(world.placements(job, state="RUNNING", attempt=2)) == 1)
    before = uids(world)
    restored(job, S.RUNNING, attempt=1)
    world.restart_scheduler()
    world.drive(lambda: len(world.placements(job, state="RUNNING", attempt=2)) == 1)
    assert uids(world) == before
    assert found(job) == [(K.REASON, S.RUNNING, S.RUNNING)]
    assert len(world.placements(job, state__in=LIVE_PLACEMENTS)) == 2
    world.drive(lambda: world.free_gpus() == ALL - 16000)


def test_what_is_left_of_a_gang_is_deleted_and_it_starts_anew(world):
    job = world.submit(pods=2)
    world.drive_to(job, S.RUNNING)
    before = uids(world)
    restored(job)
    world.restart_scheduler()
    pod = sorted(before)[0]
    world.call("DELETE", f"/api/v1/namespaces/kant-jobs/pods/{pod}", {"gracePeriodSeconds": 0})
    world.drive_to(job, S.RUNNING)
    world.drive(lambda: len(uids(world)) == 2 and world.free_gpus() == ALL - 16000)
    assert not set(before.values()) & set(uids(world).values())


def test_places_that_others_have_since_are_not_given_twice(world):
    first = world.submit("first", pods=NODES)
    world.drive_to(first, S.RUNNING)
    places = list(Placement.objects.filter(job=first).values())
    world.cancel(first)
    second = world.submit("second", pods=NODES)
    world.drive_to(second, S.RUNNING)
    wait(lambda: len(world.pods()) == NODES)
    before = uids(world)
    restored(second)
    restored(first, S.RUNNING, attempt=1)
    assert Placement.objects.filter(job=first, state="RUNNING").count() == len(places)
    world.restart_scheduler()
    world.drive(lambda: led(world) and world.state(first) in (S.PENDING, S.QUOTA_RESERVED))
    world.drive_to(second, S.RUNNING)
    assert (uids(world), world.free_gpus()) == (before, 0)
    world.finish(second)
    world.drive_to(first, S.RUNNING)


def test_pods_of_a_job_that_the_database_has_lost_stay(world):
    job, other = world.submit("lost", pods=2), world.submit("other")
    for each in (job, other):
        world.drive_to(each, S.RUNNING)
    world.drive(lambda: len(world.call("GET", "/api/v1/services")["items"]) == 1)
    before = uids(world)
    Job.objects.filter(pk=job.pk).delete()
    world.restart_scheduler()
    world.drive(lambda: led(world))

    def told():
        events = world.call("GET", "/apis/events.k8s.io/v1/events")["items"]
        return {e["regarding"]["name"] for e in events if e["reason"] == "UnknownJob"}

    world.drive(lambda: len(told()) == 2)
    world.finish(other)
    world.drive_to(other, S.SUCCEEDED)
    assert uids(world) == before
    assert told() == {name for name in before if name.startswith("lost")}
    assert len(world.call("GET", "/api/v1/services")["items"]) == 1
    world.drive(lambda: world.free_gpus() == ALL - 16000)
    for name in told():
        world.kill(name)
    world.drive(lambda: not world.call("GET", "/api/v1/services")["items"])
    world.drive(lambda: world.free_gpus() == ALL)


def test_a_job_that_cannot_be_read_keeps_its_pods_until_somebody_mends_it(world):
    job, other = world.submit("changed", pods=2), world.submit("other")
    for each in (job, other):
        world.drive_to(each, S.RUNNING)
    before = uids(world)
    for name in ("labels", "env"):
        rows = Job.objects.filter(pk=job.pk) if name == "labels" else job.pod_sets.all()
        sound = rows.values_list(name, flat=True).get()
        rows.update(**{name: ["changed by hand"]})
        world.restart_scheduler()
        world.drive(lambda: led(world))
        assert (uids(world), world.state(job)) == (before, S.RUNNING)
        world.drive(lambda: world.free_gpus() == ALL - 24000)
        assert not Placement.objects.filter(job=job).exclude(state="RUNNING").exists()
        rows.update(**{name: sound})
    world.finish(other)
    world.drive_to(other, S.SUCCEEDED)
    world.restart_scheduler()
    world.drive(lambda: led(world) and world.free_gpus() == ALL - 16000)
    assert uids(world) == before
    world.finish(job)
    world.drive_to(job, S.SUCCEEDED)
    world.drive(lambda: world.free_gpus() == ALL)
