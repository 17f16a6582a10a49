"""A defect of the engine that one job triggers does not stop the other jobs."""

import logging

import pytest

from scheduling.engine.cycle import run_cycle
from scheduling.engine.states import JobState as S
from scheduling.models import Job
from scheduling.services.scheduler import cycle as service
from scheduling.session import aside, session

pytestmark = pytest.mark.live
FATAL = 77  # the engine is made to fail on jobs of this priority


def with_defect(monkeypatch, provoked):
    """Make the engine raise if its state meets `provoked`; the cycle has changed the state by then.
    Rebuilt sessions are tried at once."""

    def stumble(state, deltas, now):
        result = run_cycle(state, deltas, now)
        if provoked(state):
            raise ZeroDivisionError("a defect")
        return result

    for module in (session, aside):
        monkeypatch.setattr(module, "run_cycle", stumble)
    monkeypatch.setattr(service, "RETRY_S", 0.0)


@pytest.fixture
def stumbling(monkeypatch):
    """A defect that one job triggers."""
    with_defect(
        monkeypatch, lambda state: any(r.job.priority == FATAL for r in state.jobs.values())
    )


@pytest.mark.usefixtures("stumbling")
def test_jobs_that_the_engine_stumbles_over_are_set_aside_and_the_others_run(world, caplog):
    caplog.set_level(logging.ERROR)
    first = world.submit("first")
    world.drive_to(first, S.RUNNING)
    bad = [world.submit(f"bad-{i}", priority=FATAL) for i in range(2)]
    good = [world.submit(f"good-{i}") for i in range(3)]
    for job in good:
        world.drive_to(job, S.RUNNING)
    assert world.state(first) == S.RUNNING
    for job in bad:
        row = Job.objects.get(pk=job.pk)
        assert (row.state, row.reason) == (S.FAILED, "InternalError")
        assert str(job.pk) in row.message
        (record,) = [r for r in caplog.records if f"job {job.pk} is set aside" in r.getMessage()]
        assert record.exc_info[0] is ZeroDivisionError


def test_an_error_that_no_single_job_provokes_is_not_blamed_on_one(world, monkeypatch):
    job = world.submit()
    with monkeypatch.context() as patch:
        with_defect(patch, lambda state: True)
        for _ in range(3):
            world.scheduler.run(world.cluster.pk, budget_s=0.2)
        assert world.state(job) == S.PENDING
    world.drive_to(job, S.RUNNING)
