"""Jobs that may come: bursts on every scale, which neither last for ever nor average out."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from numpy.random import PCG64, Generator

from scheduling.simulator.forecast.bands import quantile
from scheduling.simulator.forecast.coming import PREFIX, Coming
from tests.simulator.runs import arrival

HOUR, DAY = 3600.0, 86400.0
LIKE = arrival("like", 0.0, 1.0).job


def known(times: Sequence[float]) -> Coming:
    coming = Coming()
    for number, at in enumerate(times):
        coming.came(replace(LIKE, id=f"{number}", submitted_at=at), f"name-{number}")
    return coming


def times_of(coming: Coming, now: float, until: float, seed: int) -> Iterator[float]:
    for job, _ in coming.after(now, Generator(PCG64(seed))):
        if job.submitted_at > until:
            return
        yield job.submitted_at


def counts(coming: Coming, now: float, within_s: float, draws: int = 30) -> list[float]:
    """Return how many jobs come within this many seconds in each draw, ascending."""
    found = (sum(1 for _ in times_of(coming, now, now + within_s, seed)) for seed in range(draws))
    return sorted(float(count) for count in found)


def busy_and_quiet(days: int, seed: int) -> list[float]:
    """Return days of 200 or of 20 jobs, equally likely; the jobs of a day are evenly spaced."""
    dice = Generator(PCG64(seed))
    found: list[float] = []
    for day in range(days):
        count = 200 if dice.random() < 0.5 else 20
        found += [day * DAY + (number + 1) * DAY / count for number in range(count)]
    return found


@pytest.mark.parametrize("lasts_s", [HOUR, DAY, 10 * DAY])
def test_a_burst_goes_on_for_a_while_and_not_for_ever(lasts_s):
    """Before the burst one job came in the time in which fifty come now."""
    quiet = [lasts_s / 8 * number for number in range(1, 1001)]
    times = quiet + [quiet[-1] + lasts_s / 400 * number for number in range(1, 401)]
    coming, now = known(times), times[-1]
    soon, late = counts(coming, now, lasts_s / 20), counts(coming, now, 4 * lasts_s)
    assert quantile(soon, 0.5) == pytest.approx(400 / 20, abs=2), "as in the burst"
    assert quantile(late, 0.1) < 400, "not four times as many as in the burst"


@pytest.mark.parametrize("seed", range(8))
def test_busy_and_quiet_days_do_not_average_out(seed):
    """The count of the next four days is as uncertain as it was in the past."""
    times = busy_and_quiet(18, seed)
    days = np.floor(np.array(times) / DAY - 1e-9).astype(int)
    before = np.convolve(np.bincount(days, minlength=18), np.ones(4), "valid")
    drawn = counts(known(times), times[-1], 4 * DAY)
    assert np.std(drawn) > 0.7 * np.std(before)


@pytest.mark.parametrize("count", [2, 3, 300])
def test_what_comes_is_what_came_at_times_to_come(count):
    times = [10.0 * number for number in range(count)]
    coming, now = known(times), 4000.0
    drawn = list(islice(coming.after(now, Generator(PCG64(1))), 5000))
    assert len(drawn) == 5000
    at = [job.submitted_at for job, _ in drawn]
    assert at == sorted(at)
    assert at[0] >= now
    assert [job.id for job, _ in drawn[:3]] == [f"{PREFIX}1", f"{PREFIX}2", f"{PREFIX}3"]
    assert {name for _, name in drawn} <= {f"name-{number}" for number in range(count)}


@pytest.mark.parametrize("times", [[], [5.0], [50.0, 60.0]])
def test_of_too_little_nothing_is_drawn(times):
    assert not list(known(times).after(50.0, Generator(PCG64(1))))
