"""What the jobs submitted close to a job tell about its run time."""

import math

import numpy as np
import pytest
from numpy.random import PCG64, Generator

from scheduling.engine.deltas import JobEnded, JobSubmitted
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.order import order_key
from scheduling.simulator.forecast.learned import LearnedTimes
from scheduling.simulator.forecast.likeness import traits_of
from scheduling.simulator.forecast.neighbours import (
    NOTHING_KNOWN,
    WITHIN_S,
    Neighbour,
    known_by,
    nearest,
)
from scheduling.simulator.forecast.run_times import RunTimes
from scheduling.simulator.forecast.succession import Likeness
from tests.simulator.runs import arrival

HOUR = 3600.0
ALIKE = Likeness(0.8, HOUR, 0.5)
BURST = 20


def covariance(gaps):
    at = np.array([0.0, *gaps])
    found = ALIKE.part * np.exp(-np.abs(at[:, None] - at[None, :]) / ALIKE.lasts_s)
    np.fill_diagonal(found, 1.0)
    return found


def test_ended_neighbours_tell_what_a_normal_distribution_says():
    ended = [Neighbour(-60.0, 1.2), Neighbour(300.0, 0.3), Neighbour(-7200.0, -0.8)]
    together = covariance([one.gap_s for one in ended])
    weights = np.linalg.solve(together[1:, 1:], together[1:, 0])
    found = known_by(ALIKE, ended, [])
    assert found.mean == pytest.approx(float(weights @ [one.score for one in ended]))
    assert found.spread**2 == pytest.approx(1 - float(weights @ together[1:, 0]))


@pytest.mark.parametrize("least", [(-1.0, 0.5, 1.0), (1.5, 1.5, 1.5), (-4.0, -4.0, 0.0)])
def test_those_that_run_tell_that_they_go_on(least):
    gaps = (-30.0, 600.0, -3600.0)
    draws = Generator(PCG64(1)).multivariate_normal(np.zeros(4), covariance(gaps), 400_000)
    kept = draws[(draws[:, 1:] > least).all(axis=1), 0]
    going = [Neighbour(gap, score) for gap, score in zip(gaps, least, strict=True)]
    found = known_by(ALIKE, [], going)
    assert found.mean == pytest.approx(float(kept.mean()), abs=0.05)
    assert found.spread == pytest.approx(float(kept.std()), abs=0.05)


def test_who_runs_far_longer_than_all_others_breaks_nothing():
    found = known_by(ALIKE, [Neighbour(0.0, -4.0)], [Neighbour(0.0, 4.5)] * 6)
    assert math.isfinite(found.mean)
    assert 0 < found.spread <= 1


def test_nothing_is_known_of_who_has_no_neighbours_or_where_none_are_alike():
    assert known_by(ALIKE, [], []) == NOTHING_KNOWN
    assert known_by(Likeness(), [Neighbour(0.0, 2.0)], []) == NOTHING_KNOWN
    others = [(WITHIN_S + 1, "late"), (-WITHIN_S, "early"), (5.0, "near"), (-9.0, "next")]
    assert [who for _, who in nearest(others, 2)] == ["near", "next"]
    assert [who for _, who in nearest(others, 9)] == ["near", "next", "early"]


def bursts(last_s=None):
    """Return ended runs in bursts a day apart, short and long in turn; the last burst ran for
    `last_s`."""
    known = RunTimes()
    for burst in range(9):
        for number in range(BURST):
            runs_s = (10_000.0 if burst % 2 else 100.0) + number * 7 % BURST
            known.ended(traits_of(arrival("old", 0.0, 1.0).job), runs_s, 24 * HOUR * burst + number)
    if last_s is not None:
        for number in range(5):
            at = 24 * HOUR * 10 + number
            known.ended(traits_of(arrival("old", 0.0, 1.0).job), last_s, at)
    return known


def likely(learned, name, at, jobs=None, now=0.0, deltas=()):
    submitted = JobSubmitted(arrival(name, at, 1.0).job)
    told = learned.follow([submitted, *deltas], jobs or {}, now)
    return {job_id: times for delta in told for job_id, times in delta.of}


@pytest.mark.parametrize("last_s", [100.0, 10_000.0])
def test_a_job_is_told_the_times_of_its_burst_and_later_those_of_all(last_s):
    learned = LearnedTimes(bursts(last_s), learns=False)
    soon, later = (likely(learned, f"j{at}", 24 * HOUR * day + 60)[f"j{at}"]
                   for at, day in enumerate((10, 13)))  # fmt: skip
    of_all = LearnedTimes(bursts(last_s), learns=False)
    plain = likely(of_all, "plain", 24 * HOUR * 13 + 60)["plain"]
    assert later == plain
    assert (soon.middles[0] < 200) == (last_s < 200)
    assert later.middles[0] < 200 < later.most_s
    assert (soon.most_s < 200) == (last_s < 200)
    assert all(a < b for a, b in zip(soon.middles, soon.middles[1:], strict=False))


def record(name, at, started_at=None):
    job = arrival(name, at, 1.0).job
    found = JobRecord(job, order_key(job))
    found.started_at = started_at
    return found


def test_a_neighbour_that_ends_or_goes_on_changes_what_is_told():
    now = 24 * HOUR * 10
    jobs = {name: record(name, now, now) for name in ("a", "b")} | {"far": record("far", 0.0, now)}
    learned = LearnedTimes(bursts())
    first = likely(learned, "new", now + 5, jobs, now + 10)["new"]
    jobs["new"] = record("new", now + 5)
    told = likely(learned, "next", now + 6, jobs, now + 9000)["next"]
    assert told.middles[0] > 9000 > first.middles[0]
    ended = learned.follow([JobEnded("a")], jobs, now + 9000)
    assert {job_id for delta in ended for job_id, _ in delta.of} == {"b", "new", "next"}


def test_shares_of_a_distribution_are_those_that_are_as_short():
    known = bursts().of(traits_of(arrival("new", 0.0, 1.0).job))
    shares = [0.1, 0.3, 0.5, 0.7, 0.9, 0.999]
    times = known.at(shares)
    assert times == sorted(times)
    assert [known.shorter(time) for time in times] == pytest.approx(shares, abs=0.03)
    assert known.at([1 - 1e-12])[0] > times[-1]
