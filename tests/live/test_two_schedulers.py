"""Of two schedulers of one cluster, one keeps its lease however long its start takes; when it
has lost the lease, it stops at once."""

import threading
import time
from contextlib import contextmanager

import pytest
from django.db import connection

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, SchedulerLease
from scheduling.queries.standstill import standstill
from scheduling.services.scheduler import cycle
from scheduling.services.scheduler.cycle import Scheduler
from scheduling.session import restore
from scheduling.session.memory import load
from scheduling.session.session import Session
from tests import cases
from tests.live.conftest import WITHIN_S, wait

pytestmark = pytest.mark.live
LEASE_S = 8.0  # renewed after half of it; on a busy machine before the rest is over
SLOW_S = LEASE_S + 1.0


@contextmanager
def running(world, *schedulers):
    """Run each scheduler in a thread of its own, as its loop does."""
    ended = threading.Event()

    def run(scheduler):
        while not ended.is_set():
            scheduler.run(world.cluster.pk)
            scheduler.alarm.wait(time.monotonic() + 0.2)
        scheduler.stop()
        connection.close()

    threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in schedulers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(WITHIN_S)
            assert not thread.is_alive()


@pytest.fixture
def two(shared_world, settings):
    settings.KANT_LEASE_SECONDS = LEASE_S
    return Scheduler("a"), Scheduler("b")


def leads(scheduler, world):
    return (world.cluster.pk, WHOLE) in scheduler.led


def begun(monkeypatch, owner, name, until=lambda: None):
    """Return when calls of the function began; the first one goes on when `until` has returned."""
    real, calls = getattr(owner, name), []

    def noted(*args, **options):
        calls.append(time.monotonic())
        if len(calls) == 1:
            until()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, noted)
    return calls


@pytest.mark.parametrize("verb", ["", "watch"])  # all requests, or the lists alone
def test_a_first_list_may_take_longer_than_the_lease(shared_world, two, verb):
    world = shared_world
    world.fault("slow-replies", verb=verb, count=0, delay_ms=int(SLOW_S * 1000))
    job = world.submit(pods=2)
    with running(world, *two):
        wait(lambda: any(leads(each, world) for each in two))
        assert SchedulerLease.objects.get().token == 1
        world.call("DELETE", "/sim/faults")
        wait(lambda: world.state(job) == S.RUNNING)
    assert SchedulerLease.objects.get().token == 1


def test_meanwhile_people_are_told_that_it_is_listed(shared_world, two):
    world = shared_world
    world.fault("slow-replies", verb="watch", count=0, delay_ms=600_000)
    with running(world, *two):
        wait(lambda: "still being listed" in Cluster.objects.get().status_message)
        assert "still being listed: " in standstill(Cluster.objects.get())


STEPS = [
    (cycle, "settle"),
    (cycle, "take_nodes"),
    (cycle, "take_up_pods"),
    (Session, "restore"),
    (Session, "listed"),
    (restore, "take_up_jobs"),
    (restore, "finish_what_was_begun"),
    (load, "jobs"),
    (cycle, "apply_decisions"),
]


@pytest.mark.parametrize(
    ("owner", "name"), cases.some(STEPS), ids=lambda it: getattr(it, "__name__", it)
)
def test_each_step_of_a_start_may_take_longer_than_the_lease(
    shared_world, two, monkeypatch, owner, name
):
    world = shared_world
    job = world.submit(pods=2)
    calls = begun(monkeypatch, owner, name, until=lambda: time.sleep(SLOW_S))
    with running(world, *two):
        wait(lambda: world.state(job) == S.RUNNING)
    assert calls
    assert SchedulerLease.objects.get().token == 1


@pytest.mark.parametrize(
    ("owner", "name", "following"),
    cases.some(
        [
            (Session, "listed", (cycle, "settle")),
            (cycle, "settle", (cycle, "take_nodes")),
            (cycle, "take_nodes", (cycle, "take_up_pods")),
            (restore, "take_up_jobs", (restore, "finish_what_was_begun")),
        ]
    ),
)
def test_who_loses_the_lease_meanwhile_stops_at_once(
    shared_world, settings, monkeypatch, owner, name, following
):
    world, first = shared_world, Scheduler("a")
    settings.KANT_LEASE_SECONDS = LEASE_S
    world.submit(pods=2)
    goes_on = threading.Event()
    calls = begun(monkeypatch, owner, name, until=lambda: goes_on.wait(WITHIN_S))
    further = begun(monkeypatch, *following)
    with running(world, first):
        wait(lambda: calls)
        [held] = first.keeper.held.values()
        SchedulerLease.objects.update(holder="b", token=2, expires_at="2100-01-01T00:00Z")
        wait(lambda: not held.session.gateway.is_alive)  # although its thread is still at that step
        goes_on.set()
        wait(lambda: not first.keeper.held)
    assert not further
    assert not first.led
    assert world.pods() == {}
    assert SchedulerLease.objects.get().holder == "b"


def test_who_hangs_for_good_loses_the_lease(shared_world, two, monkeypatch):
    world, (first, second) = shared_world, two
    monkeypatch.setattr("scheduling.services.scheduler.keeper.STUCK_S", 2.0)
    hangs, goes_on = threading.Event(), threading.Event()
    real = Scheduler._take_over

    def take_over(self, listing):
        if self is first:
            hangs.set()
            goes_on.wait(WITHIN_S)
        return real(self, listing)

    monkeypatch.setattr(Scheduler, "_take_over", take_over)
    with running(world, first):
        assert hangs.wait(WITHIN_S)
        with running(world, second):
            wait(lambda: leads(second, world))
            assert SchedulerLease.objects.get().token == 2
            goes_on.set()
            wait(lambda: not first.keeper.held)
            assert not first.led


def test_a_slow_cluster_keeps_no_other_waiting(shared_world, settings):
    world, scheduler = shared_world, Scheduler("a")
    slow = Cluster.objects.create(name="slow", access={"server": "http://127.0.0.1:9"})
    began = time.monotonic()
    scheduler.run(slow.pk)
    scheduler.run(slow.pk)
    assert time.monotonic() - began < 20
    job = world.submit()
    with running(world, scheduler):
        wait(lambda: world.state(job) == S.RUNNING)
        assert (slow.pk, WHOLE) in scheduler.keeper.held
