"""The bell of a led cluster: it rings for news, and when the time for a decision has come."""

import threading
import time
from types import SimpleNamespace

import pytest

from scheduling.services import cycle, doorbell


@pytest.fixture
def now(monkeypatch):
    """The seconds since the epoch as the bell reads them; they pass when a test says so."""
    clock = SimpleNamespace(at=1e9)
    read = SimpleNamespace(time=lambda: clock.at, sleep=time.sleep)
    monkeypatch.setattr(cycle, "time", read)
    return clock


@pytest.fixture
def rings(now, monkeypatch):
    """When the doorbell of cluster 7 was rung."""
    heard = []

    def ring(cluster_id):
        assert cluster_id == 7
        heard.append(now.at)

    monkeypatch.setattr(doorbell, "ring", ring)
    return heard


@pytest.fixture
def bell(rings):
    found = cycle.Bell(7)
    yield found
    found.stop()
    found._thread.join(60)
    assert not found._thread.is_alive()


def wait_for(rings, count):
    deadline = time.monotonic() + 60
    while len(rings) < count and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(rings) == count


def test_it_rings_for_news_at_once(bell, rings):
    bell.ring()
    wait_for(rings, 1)


def test_it_rings_once_when_the_time_has_come_and_not_before(bell, now, rings):
    due = now.at + 0.1
    bell.ring_at(due)
    bell.ring_at(due)
    time.sleep(0.3)
    assert not rings
    now.at = due
    wait_for(rings, 1)
    time.sleep(0.3)
    assert rings == [due]


def test_only_the_last_time_that_was_said_counts(bell, now, rings):
    bell.ring_at(now.at + 0.1)
    bell.ring_at(None)
    now.at += 1
    time.sleep(0.3)
    assert not rings
    bell.ring_at(now.at + 1e12)  # more than a thread can wait for
    bell.ring_at(now.at - 5)
    wait_for(rings, 1)


def test_a_broker_that_is_away_does_not_end_it(monkeypatch, rings):
    failed = threading.Event()

    def ring(_):
        if not failed.is_set():
            failed.set()
            raise ConnectionError("no broker")
        rings.append(7)

    monkeypatch.setattr(doorbell, "ring", ring)
    found = cycle.Bell(7)
    found.ring()
    assert failed.wait(60)
    found.ring()
    wait_for(rings, 1)
    found.stop()
