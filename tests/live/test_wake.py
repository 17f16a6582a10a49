"""A decision that becomes due by time alone is taken then, not at the next tick."""

from datetime import UTC, datetime, timedelta

import pytest

from scheduling.engine.shards.division import WHOLE
from scheduling.services.scheduler.alarm import Alarm
from scheduling.session import session

pytestmark = pytest.mark.live


@pytest.fixture
def later(world):
    """A job that may start in an hour, and that the scheduler knows."""
    job = world.submit("later", start_not_before=datetime.now(UTC) + timedelta(hours=1))

    def awaited():
        led = world.scheduler.led.get((world.cluster.pk, WHOLE))
        return led is not None and led.session.next_at == job.start_not_before.timestamp()

    world.drive(awaited)
    assert world.state(job) == "PENDING"
    return job


def test_the_alarm_is_told_when_a_job_may_start(world, monkeypatch):
    told = []
    monkeypatch.setattr(Alarm, "ring_at", lambda alarm, key, due: told.append(due))
    job = world.submit("later", start_not_before=datetime.now(UTC) + timedelta(hours=1))
    world.drive(lambda: job.start_not_before.timestamp() in told)
    assert world.state(job) == "PENDING"


def test_what_is_due_is_decided_as_of_then(world, later, clock):
    due = later.start_not_before
    clock.at = due.timestamp() + 0.9 * session.LATE_S  # its process was held up
    world.drive_to(later, "RUNNING")
    (placed,) = world.placements(later)
    assert placed.intended_at == due


def test_what_was_due_long_ago_is_decided_as_of_now(world, later, clock):
    now = later.start_not_before + timedelta(seconds=2 * session.LATE_S)
    clock.at = now.timestamp()  # its process was held up
    world.drive_to(later, "RUNNING")
    (placed,) = world.placements(later)
    assert placed.intended_at == now
