"""What is due by the passing of time alone is decided then, not at the next tick."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from scheduling.services import doorbell
from scheduling.session import session

pytestmark = pytest.mark.live


def test_the_doorbell_rings_when_a_job_may_start(world, monkeypatch):
    rings = []
    due = datetime.now(UTC) + timedelta(seconds=3)
    job = world.submit("later", start_not_before=due)
    world.drive(lambda: world.state(job) == "PENDING" and world.scheduler.led)
    monkeypatch.setattr(doorbell, "ring", lambda _: rings.append(time.time()))
    while not [at for at in rings if at >= due.timestamp()] and time.time() < due.timestamp() + 2:
        time.sleep(0.01)
    assert world.state(job) == "PENDING"
    # Nodes and pods ring for what they report; nothing of it would come just now.
    assert any(0 <= at - due.timestamp() < 0.5 for at in rings)
    world.drive_to(job, "RUNNING")


def test_what_is_due_is_decided_as_of_then(world, monkeypatch):
    monkeypatch.setattr(session, "LATE_S", 30.0)  # however busy the machine is
    due = datetime.now(UTC) + timedelta(seconds=3)
    job = world.submit("later", start_not_before=due)
    world.drive(lambda: world.state(job) == "PENDING" and world.scheduler.led)
    time.sleep(max(0.0, due.timestamp() - time.time()) + 0.3)  # its process was held up
    world.drive_to(job, "RUNNING")
    (placed,) = world.placements(job)
    assert placed.intended_at == due


def test_what_was_due_long_ago_is_decided_as_of_now(world):
    due = datetime.now(UTC) + timedelta(seconds=1)
    job = world.submit("later", start_not_before=due)
    world.drive(lambda: world.state(job) == "PENDING" and world.scheduler.led)
    time.sleep(3)  # its process was held up
    world.drive_to(job, "RUNNING")
    (placed,) = world.placements(job)
    assert placed.intended_at - due > timedelta(seconds=1.5)
