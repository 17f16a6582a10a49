"""Run times of jobs submitted in succession: they are as alike as those of earlier ones were."""

import math

import numpy as np
import pytest
from numpy.random import PCG64, Generator

from scheduling.engine.deltas import JobRestored, JobSubmitted
from scheduling.simulator.forecast.likeness import EVERYBODY, Traits
from scheduling.simulator.forecast.run_times import RunTimes
from scheduling.simulator.forecast.succession import LEAST, Likeness, Succession, score_of, share_of
from tests.simulator.test_forecast import NOW, bands, job, on, scene

HOUR = 3600.0


def series(count, part, lasts_s, seed=1, every_s=60.0):
    """Return the scores of such a succession, and when each job was submitted."""
    times = [every_s * number for number in range(count)]
    known = Succession(Likeness(part, lasts_s, part), [], [])
    dice = Generator(PCG64(seed))
    return [known.next(dice, at) for at in times], times


def test_what_is_alike_is_found_in_what_has_ended():
    alike = Likeness.of(*series(8000, 0.7, HOUR))
    assert alike.part == pytest.approx(0.7, abs=0.1)
    assert HOUR / 4 <= alike.lasts_s <= 2 * HOUR
    assert 0.5 < alike.surely < 0.7


def test_what_is_alike_by_time_is_not_by_number():
    """Bursts of fifty, days apart: jobs of one burst are alike, the first of the next is not."""
    dice = Generator(PCG64(4))
    levels = np.repeat(dice.standard_normal(20), 50)
    scores = math.sqrt(0.8) * levels + math.sqrt(0.2) * dice.standard_normal(1000)
    times = [86400.0 * 3 * (n // 50) + n % 50 for n in range(1000)]
    alike = Likeness.of(scores.tolist(), times)
    assert alike.part == pytest.approx(0.8, abs=0.15)
    assert alike.keeps(50.0) > 0.9
    assert alike.keeps(86400.0) < 0.3


@pytest.mark.parametrize(
    ("scores", "times"),
    [([], []), ([1.0] * 500, [0.0] * 500), series(LEAST - 1, 0.9, HOUR)],
)
def test_of_few_runs_or_of_runs_all_the_same_nothing_is_said(scores, times):
    assert Likeness.of(scores, times) == Likeness()


@pytest.mark.parametrize("every_s", [0.0, 1e-9, 1.0, 1e4, 1e6, 1e8, 1e9, 1e12])
@pytest.mark.parametrize("seed", range(5))
def test_however_far_apart_runs_are_something_is_said_or_nothing(every_s, seed):
    dice = Generator(PCG64(seed))
    times = np.cumsum(every_s * dice.exponential(size=200)).tolist()
    scores, _ = series(200, 0.9, HOUR / 2, seed)
    alike = Likeness.of(scores, times)
    assert alike.surely > 0.0
    assert 0.0 <= alike.part <= 1.0
    assert alike.part == 0.0 or every_s < 1e8, "who was submitted years before says nothing"
    drawn = Succession(alike, [(score, True) for score in scores], times)
    assert all(map(math.isfinite, drawn.draw(dice)))


def test_runs_that_are_independent_are_rarely_taken_to_be_alike():
    found = [Likeness.of(*series(300, 0.0, HOUR, seed)).part > 0 for seed in range(60)]
    assert sum(found) <= 4


def test_who_comes_after_long_runs_runs_long_and_less_surely_so_the_later():
    alike = Likeness(0.8, 600.0, 0.5)
    runs = [(1.5, True)] * 20 + [(-math.inf, False)] * 40
    known, dice = Succession(alike, runs, [60.0 * n for n in range(60)]), Generator(PCG64(1))
    drawn = np.array([known.draw(dice)[20:] for _ in range(200)])
    means, spreads = drawn.mean(axis=0), drawn.std(axis=0)
    assert means[0] > 1.0
    assert abs(means[-1]) < 0.4
    assert spreads[0] < 0.8 < 0.9 < spreads[-1] < 1.1
    assert np.corrcoef(drawn[:, 30], drawn[:, 31])[0, 1] > 0.5


def test_what_still_runs_scores_more_than_it_has_run_and_lifts_whom_it_is_followed_by():
    runs, times = [(1.0, False)] * 10 + [(-math.inf, False)], [60.0 * n for n in range(11)]
    known, dice = Succession(Likeness(0.8, 600.0, 0.5), runs, times), Generator(PCG64(2))
    drawn = np.array([known.draw(dice) for _ in range(200)])
    assert drawn[:, :10].min() >= 1.0
    assert drawn[:, 10].mean() > 0.7
    alone = Succession(Likeness(), runs, times)
    assert abs(np.mean([alone.draw(dice)[10] for _ in range(400)])) < 0.2


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize("part", [0.5, 0.95])
def test_how_long_runs_that_still_go_on_together_may_last_is_as_uncertain_as_it_is(count, part):
    """All runs of one burst still go on; compared with the exact distribution of their level."""
    runs = [(-0.5, False)] * count + [(-math.inf, False)]
    known = Succession(Likeness(part, HOUR, part), runs, [0.0] * (count + 1))
    dice = Generator(PCG64(7))
    drawn = np.array([known.draw(dice)[-1] for _ in range(400)])
    levels = np.linspace(-5.0, 6.0, 2001)
    more = [1 - share_of((-0.5 - math.sqrt(part) * at) / math.sqrt(1 - part)) for at in levels]
    chances = np.exp(-(levels**2) / 2) * np.array(more) ** count
    chances /= chances.sum()
    middle = chances @ levels
    spread = math.sqrt(part * (chances @ (levels - middle) ** 2) + 1 - part)
    assert drawn.mean() == pytest.approx(math.sqrt(part) * middle, abs=0.15)
    assert drawn.std() == pytest.approx(spread, rel=0.15)


def test_scores_and_shares_are_each_others_inverse():
    assert [share_of(score_of(share)) for share in (0.1, 0.5, 0.99)] == pytest.approx(
        [0.1, 0.5, 0.99]
    )


def known_of(times, users=("",)):
    """Return run times of jobs that were submitted one a second and ended in that order."""
    known = RunTimes()
    for number, seconds in enumerate(times):
        user = users[number % len(users)]
        known.ended(Traits("a", user, "", 8000, None), seconds, NOW - 900.0 + number)
    return known


def test_the_group_is_that_whose_runs_are_most_alike():
    """Each user keeps to its own run lengths for a while; mixed, they are less alike."""
    dice = Generator(PCG64(3))
    times = np.exp(np.repeat(dice.normal(7.0, 1.5, 30), 4).reshape(-1, 2, 4)
                   .transpose(0, 2, 1).ravel()) * dice.uniform(0.9, 1.1, 120)  # fmt: skip
    known = known_of([*times], users=("7", "8"))
    found = known.succession(Traits("a", "7", "", 8000, None))
    assert found.kin.user == "7"
    assert found.alike.part > 0.3
    mixed = known_of(list(dice.exponential(3600.0, 200)))
    assert mixed.succession(Traits("a", "", "", 8000, None)).kin == EVERYBODY


def test_behind_jobs_that_are_alike_the_band_is_wider_than_behind_others():
    """The sum over twenty jobs in a row averages out only if their lengths are independent."""
    logs = np.repeat(Generator(PCG64(5)).normal(7.0, 1.0, 20), 10)
    alike = known_of([*np.exp(logs)])
    apart = known_of([*np.exp(Generator(PCG64(6)).permutation(logs))])
    waiting = [JobSubmitted(job(f"w{n:02}", 900.0 + n)) for n in range(20)]
    at = scene(JobRestored(job("runs"), (on(0),), NOW - 5.0), *waiting)
    wide, narrow = (bands(at, known, most=16).bands["w19"] for known in (alike, apart))
    assert (wide.p90 / wide.p10) > 1.3 * (narrow.p90 / narrow.p10)
