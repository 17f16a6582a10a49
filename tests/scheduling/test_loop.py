"""Beat's ticks start cycles; if they stop, the scheduler's own clock does."""

import logging
import os
import threading
import time
from types import SimpleNamespace

import pytest
from django.db import OperationalError

from kant.celery import app
from scheduling.models import Cluster
from scheduling.services.scheduler import alive
from scheduling.services.scheduler import loop as module
from scheduling.services.scheduler.alarm import Alarm
from scheduling.services.scheduler.keeper import Keeper
from scheduling.services.scheduler.loop import Loop
from scheduling.tasks import tick

PERIOD_S = 0.1
WITHIN_S = 30.0


class Scheduler:
    """A scheduler that records its cycles."""

    def __init__(self):
        self.alarm, self.ran, self.own_clock = Alarm(), [], False
        self.keeper = SimpleNamespace(held={})

    def run(self, cluster_id):
        self.ran.append(cluster_id)

    def stop(self):
        pass


@pytest.fixture
def scheduler(transactional_db, settings):
    settings.KANT_CYCLE_SECONDS = PERIOD_S
    for name in ("one", "two"):
        Cluster.objects.create(name=name)
    return Scheduler()


@pytest.fixture
def loop(scheduler):
    made = Loop(scheduler)
    yield made
    made.stop()


def until(holds):
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "not reached"
        time.sleep(0.01)


def test_ticks_alone_run_a_cycle_of_every_cluster(loop, scheduler, monkeypatch):
    monkeypatch.setattr(module, "MISSED_TICKS", 10**6)  # its own clock stands still
    loop.start()
    both = sorted(Cluster.objects.values_list("pk", flat=True))
    until(lambda: sorted(scheduler.ran) == both)  # at the start
    for _ in range(3):
        scheduler.ran.clear()
        time.sleep(5 * PERIOD_S)
        assert scheduler.ran == []
        loop.tick()
        until(lambda: sorted(scheduler.ran) == both)


def test_the_own_clock_goes_on_where_ticks_stay_away_and_it_is_told_once(
    loop, scheduler, monkeypatch, caplog
):
    caplog.set_level(logging.WARNING, "scheduling.services.scheduler.loop")
    loop.start()
    until(lambda: scheduler.own_clock)
    scheduler.ran.clear()
    until(lambda: len(scheduler.ran) >= 6)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("Celery beat does not serve (no tick for ")
    loop.tick()
    until(lambda: not scheduler.own_clock)
    assert [text[:25] for text in caplog.messages[1:]] == ["Celery beat serves again,"]


def test_while_ticks_come_the_own_clock_is_silent(loop, scheduler, settings):
    """This also holds for late ticks: the own clock would double each of them."""
    settings.KANT_CYCLE_SECONDS = 0.6
    loop.start()
    until(lambda: len(scheduler.ran) >= 2)
    scheduler.ran.clear()
    for _ in range(4):
        loop.tick()
        time.sleep(0.7)
    # One more on a machine that slept for longer than the allowed number of missed ticks.
    assert len(scheduler.ran) <= 2 * (4 + 1), "each tick is one round"
    assert not scheduler.own_clock


def test_the_schedule_has_the_tick_and_it_is_broadcast_and_expires(settings):
    entry = app.conf.beat_schedule["cycle"]
    assert entry["task"] == tick.name
    assert entry["schedule"] == entry["options"]["expires"] == settings.KANT_CYCLE_SECONDS
    route = app.amqp.router.route({}, tick.name)
    assert (route["queue"].exchange.name, route["queue"].exchange.type) == ("sched", "fanout")


@pytest.fixture
def looked_at(settings, tmp_path):
    """Return the exit status of a probe of the file; 0 = the process works."""
    settings.KANT_ALIVE_FILE = str(tmp_path / "alive")
    return lambda within: alive.main(settings.KANT_ALIVE_FILE, str(within))


def test_a_loop_lives_also_where_it_can_decide_nothing(loop, scheduler, looked_at, monkeypatch):
    def fails(cluster_id):
        scheduler.ran.append(cluster_id)
        raise OperationalError("the database does not answer")

    monkeypatch.setattr(scheduler, "run", fails)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    assert looked_at(60) == 1  # it has not begun
    loop.start()
    until(lambda: len(scheduler.ran) > 3)
    assert looked_at(60) == 0


def test_a_step_that_hangs_is_found_and_a_chain_of_steps_is_not(
    loop, scheduler, looked_at, settings
):
    keeper, hangs = Keeper(), threading.Event()

    def run(cluster_id):
        with keeper.at_work():
            scheduler.ran.append(cluster_id)
            hangs.wait(WITHIN_S)

    scheduler.run = run
    loop.start()
    until(lambda: scheduler.ran)
    old = time.time() - 700
    os.utime(settings.KANT_ALIVE_FILE, (old, old))
    time.sleep(3 * PERIOD_S)
    assert looked_at(660) == 1
    keeper.next_step()
    assert looked_at(660) == 0
    hangs.set()
