"""How long a job is likely to run, by what was submitted shortly before and after it.

Runs that are submitted close together are alike (`succession.py`). So the score of a job among its
like is normal, with what is known of its neighbours: the scores of those that have ended, and that
those which run score more than their ages do. The latter are taken in one by one, each time by the
normal distribution of the same mean and variance (assumed density filtering).
"""

import math
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import NamedTuple, TypeVar

from scheduling.simulator.forecast.succession import EDGE, Likeness

WITHIN_S = 6 * 3600.0  # who was submitted further away is no neighbour
ENDED, RUNNING = 8, 6  # of the nearest so many count
_FAR = 6.0  # standard deviations: who is known to be beyond them is taken to be just there


One = TypeVar("One")


class Neighbour(NamedTuple):
    """`gap_s`: when it was submitted, from the submission of the job that is asked about on.
    `score`: of an ended run; of one that goes on it is the least."""

    gap_s: float
    score: float


class Normal(NamedTuple):
    """What is known of a score."""

    mean: float = 0.0
    spread: float = 1.0

    @property
    def tells(self) -> bool:
        """Whether it is known better than that of any other run."""
        return self != NOTHING_KNOWN


NOTHING_KNOWN = Normal()


def nearest(others: Iterable[tuple[float, One]], most: int) -> list[tuple[float, One]]:
    """Of others, each with its gap, the neighbours that were submitted the closest."""
    near = [other for other in others if -WITHIN_S <= other[0] <= WITHIN_S]
    return nsmallest(most, near, key=_distance)


def _distance(other: tuple[float, object]) -> float:
    return abs(other[0])


def known_by(alike: Likeness, ended: Sequence[Neighbour], going: Sequence[Neighbour]) -> Normal:
    """The score of a job that has these neighbours."""
    if not alike.part or not (ended or going):
        return NOTHING_KNOWN
    at = [0.0, *(one.gap_s for one in going), *(one.gap_s for one in ended)]
    means = [0.0] * len(at)
    together = _together(alike, at)
    last = 1 + len(going)
    for which in range(len(at) - 1, last - 1, -1):  # what is settled is not looked at any more
        _learn(means, together, which, ended[which - last].score, which)
    for which in range(last - 1, 0, -1):
        _learn_least(means, together, which, going[which - 1].score)
    return Normal(means[0], math.sqrt(max(together[0][0], EDGE)))


def _together(alike: Likeness, at: Sequence[float]) -> list[list[float]]:
    """What scores of those that were submitted then have in common."""
    found = [[1.0] * len(at) for _ in at]
    for i, one in enumerate(at):
        for j in range(i):
            common = alike.part * alike.keeps(abs(one - at[j]))
            found[i][j] = found[j][i] = common
    return found


def _learn(
    means: list[float], together: list[list[float]], which: int, score: float, count: int
) -> None:
    """The score of `which`, for the first `count`."""
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
    """That the score of `which` is above `least`, for all before it."""
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
