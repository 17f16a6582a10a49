"""A scheduler's alarm rings for news, and when the time for a decision has come."""

import threading
import time
from types import SimpleNamespace

import pytest

from scheduling.services.scheduler import alarm as module
from scheduling.services.scheduler.alarm import Alarm

KEY = (7, "")


@pytest.fixture
def now(monkeypatch):
    """The seconds since the epoch as the alarm reads them; time passes only when a test says so."""
    clock = SimpleNamespace(at=1e9)
    read = SimpleNamespace(time=lambda: clock.at, monotonic=time.monotonic)
    monkeypatch.setattr(module, "time", read)
    return clock


def rung(alarm, within=0.0):
    return alarm.wait(time.monotonic() + within)


def later(act):
    timer = threading.Timer(0.1, act)
    timer.start()
    return timer


def test_it_rings_for_news_at_once_and_once_for_each_cluster():
    alarm = Alarm()
    for cluster_id in (7, 8, 7):
        alarm.ring(cluster_id)
    assert rung(alarm) == {7, 8}
    assert rung(alarm) == set()


def test_who_waits_is_woken_by_news_and_otherwise_at_the_tick():
    alarm = Alarm()
    timer = later(lambda: alarm.ring(7))
    assert rung(alarm, 60) == {7}
    timer.join()
    began = time.monotonic()
    assert rung(alarm, 0.2) == set()
    assert time.monotonic() - began >= 0.2
    timer = later(alarm.wake)
    assert rung(alarm, 60) == set()
    timer.join()


def test_it_rings_once_when_the_time_has_come_and_not_before(now):
    alarm, due = Alarm(), now.at + 0.1
    alarm.ring_at(KEY, due)
    alarm.ring_at(KEY, due)
    assert rung(alarm, 0.3) == set()
    now.at = due
    assert rung(alarm, 60) == {7}
    assert rung(alarm) == set()


def test_only_the_last_time_that_was_said_for_a_scope_counts(now):
    alarm = Alarm()
    alarm.ring_at(KEY, now.at + 0.1)
    alarm.ring_at((8, "east"), now.at + 0.1)
    alarm.ring_at(KEY, None)
    now.at += 1
    assert rung(alarm) == {8}
    alarm.ring_at(KEY, now.at + 1e12)  # longer than a thread can wait
    assert rung(alarm) == set()
    alarm.ring_at(KEY, now.at - 5)
    assert rung(alarm, 60) == {7}
