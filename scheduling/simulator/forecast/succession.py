"""Run times of jobs that are submitted one after another are alike: sweeps, retries, one project.

Drawn each by itself they would average out, and bands of starts behind many jobs would be far too
narrow. So they are drawn together. How long a job runs among its like is a score (standard normal);
scores of jobs in order of submission are a level that changes slowly, of lag-one correlation
`keeps`, and what is a job's own: together a first-order autoregression seen through noise. The
levels are drawn by forward filtering and backward sampling (Carter and Kohn 1994); what still runs
is known only to score more than its age does, and is drawn in turns with the levels (Gibbs).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.random import Generator

LEAST = 30  # ended runs from which is told how alike they are
DOUBT = 2.0  # standard errors of a correlation that is none
TRUST = 20.0  # so many runs count as much as that they are not alike at all
FAR = 8  # the second lag that is looked at
MOST_KEEPS, MOST_PART = 0.995, 0.98
SWEEPS = 4  # before the first draw
EDGE = 1e-6

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Likeness:
    """`part` of the variance of scores is the level's, which keeps `keeps` of itself from one job
    to the next. `surely`: so much at least one score is correlated to the next."""

    part: float = 0.0
    keeps: float = 0.0
    surely: float = 0.0

    @classmethod
    def of(cls, scores: Sequence[float]) -> "Likeness":
        """Of scores of ended runs in order of submission."""
        if len(scores) < LEAST:
            return cls()
        near, far = _correlation(scores, 1), _correlation(scores, FAR)
        surely = near - DOUBT / math.sqrt(len(scores))
        if surely <= 0.0:
            return cls()
        keeps = min(max(far, 0.0) / near, 1.0) ** (1 / (FAR - 1))
        keeps = min(max(keeps, near), MOST_KEEPS)
        part = min(near / keeps, MOST_PART) * len(scores) / (len(scores) + TRUST)
        return cls(part, keeps, surely)


def _correlation(scores: Sequence[float], lag: int) -> float:
    values = np.array(scores, dtype=np.float64) - float(np.mean(scores))
    spread = float(values @ values)
    if spread <= EDGE * len(scores) or len(scores) <= lag:
        return 0.0
    together = float(values[:-lag] @ values[lag:])
    return float(together / spread * len(scores) / (len(scores) - lag))


def score_of(share: float) -> float:
    """Of a run that is longer than this share of its like."""
    return _NORMAL.inv_cdf(min(max(share, EDGE), 1 - EDGE))


def share_of(score: float) -> float:
    return _NORMAL.cdf(score)


class Succession:
    """Runs of a group in order of submission: of ended ones the score, of others the least that it
    is. Each draw goes on from the one before."""

    def __init__(self, alike: Likeness, runs: Sequence[tuple[float, bool]]) -> None:
        """`runs`: scores, and whether the run has ended with it; else it scores more."""
        self._part, self._keeps = alike.part, alike.keeps
        self._runs = list(runs)
        self._scores: list[float] | None = None
        self._level = 0.0  # of whoever is submitted last

    def draw(self, dice: Generator) -> list[float]:
        """A score for each run."""
        if self._scores is None:
            self._scores = [
                score if ended else _beyond(score, 0.0, 1.0, float(dice.random()))
                for score, ended in self._runs
            ]
            for _ in range(SWEEPS if self._part else 0):
                self._sweep(dice)
        self._sweep(dice)
        return list(self._scores)

    def next(self, dice: Generator) -> float:
        """The score of whoever is submitted then, and so on."""
        own, step = float(dice.standard_normal()), float(dice.standard_normal())
        keeps = self._keeps
        self._level = keeps * self._level + math.sqrt(1 - keeps * keeps) * step
        return math.sqrt(self._part) * self._level + math.sqrt(1 - self._part) * own

    def _sweep(self, dice: Generator) -> None:
        assert self._scores is not None
        levels = self._levels(dice)
        weight, own = math.sqrt(self._part), math.sqrt(1 - self._part)
        chances = dice.random(len(self._runs)).tolist()
        self._scores = [
            score if ended else _beyond(score, weight * level, own, chance)
            for (score, ended), level, chance in zip(self._runs, levels, chances, strict=True)
        ]
        self._level = levels[-1] if levels else 0.0

    def _levels(self, dice: Generator) -> list[float]:
        """The level at each run, given what the scores are by now; of those that do not run yet
        nothing is known."""
        assert self._scores is not None
        weight, noise, keeps = math.sqrt(self._part), 1 - self._part, self._keeps
        step = 1 - keeps * keeps
        means: list[float] = []
        spreads: list[float] = []
        mean, spread = 0.0, 1.0
        for (least, ended), score in zip(self._runs, self._scores, strict=True):
            mean, spread = keeps * mean, keeps * keeps * spread + step
            if ended or least > -math.inf:
                gain = spread * weight / (weight * weight * spread + noise)
                mean += gain * (score - weight * mean)
                spread *= 1 - gain * weight
            means.append(mean)
            spreads.append(spread)
        draws = dice.standard_normal(len(means)).tolist()
        levels = [0.0] * len(means)
        later: float | None = None
        for at in range(len(means) - 1, -1, -1):
            mean, spread = means[at], spreads[at]
            if later is not None:
                ahead = keeps * keeps * spread + step
                gain = spread * keeps / ahead if ahead > 0.0 else 0.0
                mean += gain * (later - keeps * mean)
                spread *= 1 - gain * keeps
            later = mean + math.sqrt(max(spread, 0.0)) * draws[at]
            levels[at] = later
        return levels


def _beyond(least: float, mean: float, spread: float, chance: float) -> float:
    """A normal score above `least`."""
    below = _NORMAL.cdf((least - mean) / spread) if least > -math.inf else 0.0
    share = min(max(below + (1 - below) * chance, EDGE), 1 - EDGE)
    return max(mean + spread * _NORMAL.inv_cdf(share), least)
