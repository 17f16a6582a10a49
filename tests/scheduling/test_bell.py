"""The bell of a led cluster: it rings for news, and when the time for a decision has come."""

import threading
import time

import pytest

from scheduling.services import cycle, doorbell


@pytest.fixture
def rings(monkeypatch):
    """When the doorbell of cluster 7 was rung."""
    heard = []

    def ring(cluster_id):
        assert cluster_id == 7
        heard.append(time.time())

    monkeypatch.setattr(doorbell, "ring", ring)
    return heard


@pytest.fixture
def bell(rings):
    found = cycle.Bell(7)
    yield found
    found.stop()
    found._thread.join(5)
    assert not found._thread.is_alive()


def wait_for(rings, count):
    deadline = time.monotonic() + 5
    while len(rings) < count and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(rings) == count


def test_it_rings_for_news_at_once(bell, rings):
    bell.ring()
    wait_for(rings, 1)


def test_it_rings_once_when_the_time_has_come_and_not_before(bell, rings):
    due = time.time() + 0.2
    bell.ring_at(due)
    bell.ring_at(due)
    wait_for(rings, 1)
    assert rings[0] >= due
    time.sleep(0.1)
    assert len(rings) == 1


def test_only_the_last_time_that_was_said_counts(bell, rings):
    bell.ring_at(time.time() + 0.1)
    bell.ring_at(None)
    time.sleep(0.3)
    assert not rings
    bell.ring_at(time.time() + 1e12)  # more than a thread can wait for
    bell.ring_at(time.time() - 5)
    wait_for(rings, 1)


def test_a_broker_that_is_away_does_not_end_it(monkeypatch, rings):
    failed = threading.Event()

    def ring(_):
        if not failed.is_set():
            failed.set()
            raise ConnectionError("no broker")
        rings.append(time.time())

    monkeypatch.setattr(doorbell, "ring", ring)
    found = cycle.Bell(7)
    found.ring()
    assert failed.wait(5)
    found.ring()
    wait_for(rings, 1)
    found.stop()
