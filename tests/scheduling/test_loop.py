"""Who rings for a cycle: ticks of beat, and where they stay away the scheduler's own clock."""

import logging
import time
from types import SimpleNamespace

import pytest

from kant.celery import app
from scheduling.models import Cluster
from scheduling.services.scheduler import loop as module
from scheduling.services.scheduler.alarm import Alarm
from scheduling.services.scheduler.loop import Loop
from scheduling.tasks import tick

PERIOD_S = 0.1
WITHIN_S = 30.0


class Scheduler:
    """Notes its cycles."""

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


def test_while_ticks_come_the_own_clock_is_silent(loop, scheduler):
    loop.start()
    until(lambda: len(scheduler.ran) >= 2)
    scheduler.ran.clear()
    for _ in range(10):
        loop.tick()
        time.sleep(PERIOD_S)
    assert len(scheduler.ran) <= 2 * 11, "each tick is one round"
    assert not scheduler.own_clock


def test_the_schedule_has_the_tick_and_it_is_broadcast_and_expires(settings):
    entry = app.conf.beat_schedule["cycle"]
    assert entry["task"] == tick.name
    assert entry["schedule"] == entry["options"]["expires"] == settings.KANT_CYCLE_SECONDS
    route = app.amqp.router.route({}, tick.name)
    assert (route["queue"].exchange.name, route["queue"].exchange.type) == ("sched", "fanout")
