"""Replicas that move to another node while their service continues."""

from scheduling.engine.types import (
    JobKind,
    Policy,
)
from scheduling.simulator.model import Settings
from tests.simulator.runs import arrival, rows, simulation


def _moving(**settings):
    """A replica alone on n001 fits into the gap that `end` leaves on n000 at 100 s."""
    jobs = [
        arrival("hold", 0, 1000, gpus=7),
        arrival("end", 0, 100, gpus=1),
        arrival("other", 1, 300, gpus=1, gang=False, pods=2, kind=JobKind.INFERENCE),
    ]
    policy = Policy(consolidation=True, min_runtime_s=0)
    return simulation(jobs, policy=policy, settings=Settings(**settings))


def test_a_replica_that_moves_ends_when_it_would_have_and_loses_nothing():
    run = _moving(evict_s=5, restart_s=30)
    outcome = run.run()
    jobs = outcome.observer.jobs
    assert list(jobs.moves) == [0, 0, 1]
    assert sum(jobs.preemptions) == 0
    assert sum(jobs.lost_milli_s) == 0
    assert rows(outcome)["other"] == (1, 301, "SUCCEEDED")
    assert outcome.pools["H100"].milli_s == 1000 * (7 * 1000 + 100 + 600)


def test_a_replica_whose_time_is_over_while_it_moves_ends_in_its_new_place():
    outcome = _moving(evict_s=250).run()
    assert rows(outcome)["other"] == (1, 120 + 250, "SUCCEEDED")  # looks once a minute
    assert list(outcome.observer.jobs.moves) == [0, 0, 1]


def _price(loss=1.0, **settings):
    """A job alone on n002 fits into the gap that `end` leaves on n001 at 100 s; it is 99 s old."""
    jobs = [
        arrival("full", 0, 1000, gpus=8),
        arrival("hold", 0, 1000, gpus=7),
        arrival("end", 0, 100, gpus=1),
        arrival("other", 1, 300, gpus=1),
    ]
    policy = Policy(defrag_loss=loss, min_runtime_s=0)
    return simulation(jobs, policy=policy, settings=Settings(**settings), nodes=3).run()


def test_a_job_that_moves_starts_anew_and_loses_what_it_had_not_saved():
    outcome = _price(evict_s=5, restart_s=30)
    jobs = outcome.observer.jobs
    assert (list(jobs.moves), sum(jobs.preemptions)) == ([0, 0, 0, 1], 0)
    # Moves are considered once a minute: at 120 s the job is 119 s old; it restarts 5 s later.
    assert sum(jobs.lost_milli_s) == 1000 * (119 + 5 + 30)
    assert rows(outcome)["other"] == (125, 125 + 30 + 300, "SUCCEEDED")


def test_a_job_that_moves_goes_on_from_its_last_checkpoint():
    outcome = _price(checkpoint_s=100)
    assert sum(outcome.observer.jobs.lost_milli_s) == 1000 * 19
    assert rows(outcome)["other"] == (120, 120 + 200, "SUCCEEDED")


def test_a_job_that_has_saved_its_work_moves_for_what_it_has_not_saved():
    """Two fewer nodes are partly used: half of the loss must be within a sixteenth of the remaining
    work, which is 202 at 120 s."""
    assert list(_price(0.1).observer.jobs.moves) == [0, 0, 0, 0]
    outcome = _price(0.1, checkpoint_s=100)
    assert list(outcome.observer.jobs.moves) == [0, 0, 0, 1]
    assert sum(outcome.observer.jobs.lost_milli_s) == 1000 * 19


def test_a_service_that_is_cancelled_while_a_replica_moves_is_gone():
    jobs = [
        arrival("hold", 0, 1000, gpus=7),
        arrival("end", 0, 100, gpus=1),
        arrival("other", 1, 300, gpus=1, gang=False, kind=JobKind.INFERENCE, cancel_after_s=150),
    ]
    policy = Policy(consolidation=True, min_runtime_s=0)
    outcome = simulation(jobs, policy=policy, settings=Settings(evict_s=100)).run()
    assert rows(outcome)["other"] == (1, 151, "CANCELLED")
    assert outcome.pools["H100"].allocated == 0
