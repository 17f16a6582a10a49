"""Node rows match what pods hold, whatever freed or took a place, and also if the process that
was to write a row could not."""

from collections import Counter

import pytest
from django.db import OperationalError

from scheduling.engine.lifecycle import reorganise
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobState as S
from scheduling.models import Job, NodeRecord, SchedulerLease
from scheduling.models.jobs import PlacementState as P
from scheduling.services.common.lease import take_or_renew
from scheduling.services.jobs.changes import hold_job
from scheduling.services.scheduler import cycle, projection
from scheduling.services.scheduler.cycle import Scheduler
from tests.live.conftest import NODES
from tests.live.plain_pods import make

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(cycle, "PROJECT_S", 0.1)
    monkeypatch.setattr(cycle, "RETRY_S", 0.1)


def rows(world):
    return dict(NodeRecord.objects.values_list("name", "allocated_milli"))


def held(world):
    """Return {node: GPU-milli held} from the cluster's own record."""
    found = Counter()
    for each in world.audit()["holdings"]:
        if not each.get("until"):
            found[each["node"]] += each["milli"] * len(each["devices"])
    return found


def hold_alone(world, *jobs):
    """Return whether these jobs hold their places, nobody else holds anything, and the rows
    agree."""
    pods = [p for job in jobs for p in world.placements(job, state=P.RUNNING)]
    milli, there = held(world), rows(world)
    nodes = Counter()
    for pod in pods:
        nodes[pod.node] += pod.held_milli
    return milli == nodes and len(there) == NODES and all(there[n] == milli[n] for n in there)


def low_and_high(world, **low):
    """A job on all nodes, and a job of one node that preempts it."""
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    victim = world.submit("low", pods=NODES, **low)
    world.drive_to(victim, S.RUNNING)
    world.drive(lambda: hold_alone(world, victim))
    return victim, world.submit("high", priority=5)


def test_a_gang_makes_room_for_less_than_it_held(world):
    _, high = low_and_high(world)
    world.drive_to(high, S.RUNNING)
    world.drive(lambda: hold_alone(world, high))


def test_a_job_makes_room_by_some_of_its_pods(world):
    low, high = low_and_high(world, min_count=1)
    world.drive_to(high, S.RUNNING)
    world.drive(lambda: hold_alone(world, low, high))
    world.cancel(high)
    world.drive(lambda: len(world.placements(low, state=P.RUNNING)) == NODES)
    world.drive(lambda: hold_alone(world, low))


@pytest.mark.parametrize("end", ["hold", "cancel"])
def test_who_others_make_room_for_does_not_want_it_any_more(world, end):
    low, high = low_and_high(world, stop_s=2.0)
    world.drive(lambda: Job.objects.get(pk=high.pk).reason == "WaitingForPreemption")
    world.drive(lambda: sum(rows(world).values()) < NODES * 8000)  # the rows include its nomination
    for job in (low, high):
        row = Job.objects.get(pk=job.pk)
        hold_job(world.user, row) if end == "hold" else world.cancel(row)
    world.drive(lambda: hold_alone(world))


def test_a_pod_moves(world, monkeypatch):
    monkeypatch.setattr(reorganise, "LOOK_S", 0.5)
    world.set_policy(consolidation=True, min_runtime_s=0)
    jobs = [world.submit("hold", gpus=7), world.submit("end", gpus=1)]
    for job in jobs:
        world.drive_to(job, S.RUNNING)
    service = world.submit("service", gpus=1, gang=False, kind="inference", stop_s=0.5)
    world.drive_to(service, S.RUNNING)
    world.cancel(jobs[1])
    world.drive(lambda: world.placements(service, state=P.RUNNING, attempt=2))
    world.drive(lambda: hold_alone(world, jobs[0], service))


def test_a_pod_of_another_scheduler_comes_and_goes(world):
    world.drive(lambda: hold_alone(world))
    name = min(rows(world))
    make(world, "theirs", gpus=4, nodeName=name, schedulerName="default-scheduler")
    world.drive(lambda: rows(world)[name] == 4000)
    world.call("DELETE", "/api/v1/namespaces/default/pods/theirs", {"gracePeriodSeconds": 0})
    world.drive(lambda: rows(world)[name] == 0)


# --- writers that fail ----------------------------------------------------------------------------
@pytest.fixture
def unwritten(world, monkeypatch):
    """`unwritten(what)`: the next write of a row runs into this instead."""
    write = projection.write_nodes

    def arm(what):
        def meet(*args, **columns):
            monkeypatch.setattr(projection, "write_nodes", write)
            what(*args, **columns)

        monkeypatch.setattr(projection, "write_nodes", meet)

    return arm


def the_database_fails(*_, **__):
    raise OperationalError("server closed the connection unexpectedly")


def test_the_database_fails_when_it_is_to_be_written(world, unwritten):
    job = world.submit(pods=2)
    unwritten(the_database_fails)
    world.drive_to(job, S.RUNNING)
    world.drive(lambda: hold_alone(world, job))


def test_the_connection_breaks_after_it_was_written(world, unwritten):
    write = projection.write_nodes

    def breaks(*args, **columns):
        write(*args, **columns)
        the_database_fails()

    job = world.submit(pods=2)
    unwritten(breaks)
    world.drive_to(job, S.RUNNING)
    world.drive(lambda: hold_alone(world, job))


def test_the_process_is_killed_before_it_is_written(world, monkeypatch):
    job = world.submit(pods=2)
    world.drive_to(job, S.RUNNING)
    world.drive(lambda: hold_alone(world, job))
    with monkeypatch.context() as patch:
        patch.setattr(projection, "write_nodes", lambda *_, **__: None)
        world.cancel(job)
        world.drive(lambda: not held(world) and not world.placements(job, state=P.RUNNING))
        world.restart_scheduler()
    assert not hold_alone(world)
    world.drive(lambda: hold_alone(world))


def test_another_scheduler_leads_before_it_is_written(world, unwritten):
    """As after a process that stood still for longer than its lease."""
    other, write = Scheduler("other"), projection.write_nodes

    def too_late(*args, **columns):
        SchedulerLease.objects.update(expires_at=None)
        assert take_or_renew(world.cluster.pk, "other", now=cycle.timezone.now(), seconds=60)
        write(*args, **columns)  # raises LeaseLost

    job = world.submit(pods=2)
    world.drive_to(job, S.RUNNING)
    world.drive(lambda: hold_alone(world, job))
    world.cancel(job)
    unwritten(too_late)
    world.drive(lambda: SchedulerLease.objects.get().holder == "other")
    assert (world.cluster.pk, WHOLE) not in world.scheduler.led
    world.scheduler.stop()
    world.scheduler = other
    world.drive(lambda: hold_alone(world))
