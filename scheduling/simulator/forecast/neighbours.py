"""How long a job is likely to run, judged by jobs submitted shortly before and after it.

Runs that are submitted close together are alike (`succession.py`). The score of a job among its
like is therefore normally distributed, given its neighbours: the scores of those that have ended,
and that the score of each running one exceeds what its age tells. The latter are taken in one by
one, each time approximated by the normal distribution of the same mean and variance (assumed
density filtering).
"""

import math
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import NamedTuple, TypeVar

from scheduling.simulator.forecast.succession import EDGE, Likeness

WITHIN_S = 6 * 3600.0  # jobs submitted further apart are no neighbours
ENDED, RUNNING = 8, 6  # how many of the nearest count
_FAR = 6.0  # standard deviations; a bound further out is taken to be here


One = TypeVar("One")


class Neighbour(NamedTuple):
    """A run that was submitted `gap_s` seconds after the job in question.

    `score`: of an ended run its score; of a running one the least that it can be.
    """

    gap_s: float
    score: float


class Normal(NamedTuple):
    """What is known of a score: its mean and standard deviation."""

    mean: float = 0.0
    spread: float = 1.0

    @property
    def tells(self) -> bool:
        """Whether more is known than for any run."""
        return self != NOTHING_KNOWN


NOTHING_KNOWN = Normal()


def nearest(others: Iterable[tuple[float, One]], most: int) -> list[tuple[float, One]]:
    """Return the neighbours among others, each given with its gap: the closest, at most `most`."""
    near = [other for other in others if -WITHIN_S <= other[0] <= WITHIN_S]
    return nsmallest(most, near, key=_distance)


def _distance(other: tuple[float, object]) -> float:
    return abs(other[0])


def known_by(alike: Likeness, ended: Sequence[Neighbour], going: Sequence[Neighbour]) -> Normal:
    """Return what is known of the score of a job with these neighbours."""
    if not alike.part or not (ended or going):
        return NOTHING_KNOWN
    at = [0.0, *(one.gap_s for one in going), *(one.gap_s for one in ended)]
    means = [0.0] * len(at)
    together = _together(alike, at)
    last = 1 + len(going)
    for which in range(len(at) - 1, last - 1, -1):  # each is taken in and then left out
        _learn(means, together, which, ended[which - last].score, which)
    for which in range(last - 1, 0, -1):
        _learn_least(means, together, which, going[which - 1].score)
    return Normal(means[0], math.sqrt(max(together[0][0], EDGE)))


def _together(alike: Likeness, at: Sequence[float]) -> list[list[float]]:
    """Return the covariances of scores of jobs submitted at these times."""
    found = [[1.0] * len(at) for _ in at]
    for i, one in enumerate(at):
        for j in range(i):
            common = alike.part * alike.keeps(abs(one - at[j]))
            found[i][j] = found[j][i] = common
    return found


def _learn(
    means: list[float], together: list[list[float]], which: int, score: float, count: int
) -> None:
    """Condition the first `count` scores on the score of `which`."""
    own = together[which]
    if own[which] <= EDGE:
        return
    news = (score - means[which]) / own[which]
    for i in range(count):
        means[i] += own[i] * news
        row, share = together[i], own[i] / own[which]
        for j in range(count):
            row[j] -= share * own[j]


def _learn_least(means: list[float], together: list[list[float]], which: int, least: float) -> None:
    """Condition the scores before `which` on its score exceeding `least`."""
    own = together[which]
    if own[which] <= EDGE:
        return
    wide = math.sqrt(own[which])
    beyond = min((least - means[which]) / wide, _FAR)
    above = math.erfc(beyond / math.sqrt(2)) / 2
    more = math.exp(-beyond * beyond / 2) / math.sqrt(2 * math.pi) / above
    less = more * (more - beyond)  # of the variance
    for i in range(which):
        means[i] += own[i] * more / wide
        row, share = together[i], own[i] / own[which]
        for j in range(which):
            row[j] -= share * own[j] * less
