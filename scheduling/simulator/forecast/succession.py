"""Run times of jobs that are submitted close together are alike: sweeps, retries, one project.

Drawn independently they would average out, and bands of starts behind many jobs would be far too
narrow. They are therefore drawn together. How long a job runs among its like is a score (standard
normal). The scores of jobs in order of submission consist of a level that changes slowly, and of a
part of the job's own. The level changes with time, not with the number of jobs in between: on
recorded traces scores of one size are correlated by 0.8 to 0.9 within a minute, 0.5 within an hour
and 0.2 within six, whether that is the next job or the thirtieth. Together that is an
Ornstein-Uhlenbeck process observed through noise.

The levels are drawn by forward filtering and backward sampling (Carter and Kohn 1994). Of a running
job it is only known that its score exceeds what its age tells. Such scores are drawn first, one by
one, each given everything submitted before it, by particles (Kong, Liu and Wong 1994; Gordon,
Salmond and Smith 1993). If they were drawn in turns with the levels, as by Gibbs sampling, runs
that are much alike would stay where they began.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

LEAST = 30  # ended runs needed to tell how alike they are
DOUBT = 2.0  # standard errors by which a correlation has to differ from none
TRUST = 20.0  # how many runs count as much as the assumption that they are not alike
APART = 30  # runs further apart in order are not compared
LASTS_S = tuple(4.0**n for n in range(1, 11))  # seconds to twelve days
MOST_PART = 0.98
PARTICLES = 24
EDGE = 1e-6

_NORMAL = NormalDist()

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike successive runs are.

    `part`: the share of the level in the variance of scores. `lasts_s`: the seconds after which 1/e
    of the level is left. `surely`: a lower bound of the correlation of a score with the next.
    """

    part: float = 0.0
    lasts_s: float = LASTS_S[0]
    surely: float = 0.0

    @classmethod
    def of(cls, scores: Sequence[float], submitted: Sequence[float]) -> "Likeness":
        """Fit scores of ended runs in order of submission; `submitted`: when, in seconds."""
        count = len(scores)
        if count < LEAST:
            return cls()
        values = np.array(scores, dtype=np.float64) - float(np.mean(scores))
        variance = float(values @ values) / count
        if variance <= EDGE:
            return cls()
        times = np.array(submitted, dtype=np.float64)
        lags = range(1, min(APART, count - 1) + 1)
        products = [values[:-lag] * values[lag:] / variance for lag in lags]
        surely = float(products[0].mean()) - DOUBT / math.sqrt(count)
        if surely <= 0.0:
            return cls()
        together = np.concatenate(products)
        gaps = np.concatenate([times[lag:] - times[:-lag] for lag in lags])
        lasts_s, part = _fitted(together, gaps)
        return cls(min(part, MOST_PART) * count / (count + TRUST), lasts_s, surely)

    def keeps(self, gap_s: float) -> float:
        """Return how much of the level is left after that time."""
        return math.exp(-gap_s / self.lasts_s)


def _fitted(products: Numbers, gaps: Numbers) -> tuple[float, float]:
    """Return how long the level lasts, and its part, by least squares over pairs of scores."""
    best, found = -math.inf, (LASTS_S[0], 0.0)
    for lasts_s in LASTS_S:
        left = np.exp(-gaps / lasts_s)
        common, square = float(products @ left), float(left @ left)
        # Too few pairs were submitted so close together to tell anything.
        if common > 0.0 and square >= LEAST and common * common / square > best:
            best, found = common * common / square, (lasts_s, common / square)
    return found


def score_of(share: float) -> float:
    """Return the score of a run that is longer than this share of its like."""
    return _NORMAL.inv_cdf(min(max(share, EDGE), 1 - EDGE))


def share_of(score: float) -> float:
    return _NORMAL.cdf(score)


class Succession:
    """Runs of a group in order of submission; each draw goes on from the one before.

    Ended runs have a score, others a lower bound of it.
    """

    def __init__(
        self, alike: Likeness, runs: Sequence[tuple[float, bool]], submitted: Sequence[float]
    ) -> None:
        """`runs`: (score, whether the run has ended with it); otherwise its score is higher.

        `submitted`: when each run was submitted, in seconds.
        """
        self._alike, self._part = alike, alike.part
        self._last = submitted[-1] if submitted else -math.inf
        gaps = [0.0, *(b - a for a, b in pairwise(submitted))]
        self._keeps = [alike.keeps(gap) for gap in gaps[: len(runs)]]
        self._runs = list(runs)
        self._level, self._newest = 0.0, self._last  # of the run submitted last

    def draw(self, dice: Generator) -> list[float]:
        """Draw a score for each run; each draw is independent of those before."""
        scores, means, spreads = self._imputed(dice)
        levels = self._levels(means, spreads, dice)
        weight, own = math.sqrt(self._part), math.sqrt(1 - self._part)
        chances = dice.standard_normal(len(levels)).tolist()
        self._level, self._newest = (levels[-1] if levels else 0.0), self._last
        return [
            weight * level + own * chance if least == -math.inf and not ended else score
            for (least, ended), score, level, chance in zip(
                self._runs, scores, levels, chances, strict=True
            )
        ]

    def next(self, dice: Generator, submitted_at: float) -> float:
        """Draw the score of the next run, which is submitted at that time; may be repeated."""
        own, step = float(dice.standard_normal()), float(dice.standard_normal())
        keeps = self._alike.keeps(max(0.0, submitted_at - self._newest))
        self._newest = submitted_at
        self._level = keeps * self._level + math.sqrt(1 - keeps * keeps) * step
        return math.sqrt(self._part) * self._level + math.sqrt(1 - self._part) * own

    def _imputed(self, dice: Generator) -> tuple[list[float], list[float], list[float]]:
        """Draw scores of all running and ended runs.

        With them return what is known of the level at each run from the runs up to it: mean and
        variance.
        """
        count = len(self._runs)
        many = PARTICLES if self._part else 1
        weight, noise = math.sqrt(self._part), 1 - self._part
        scores, middles = np.zeros((count, many)), np.zeros((count, many))
        spreads: list[float] = []
        mean, spread, chances = np.zeros(many), 1.0, np.full(many, 1 / many)
        for at, ((least, ended), keeps) in enumerate(zip(self._runs, self._keeps, strict=True)):
            mean, spread = keeps * mean, keeps * keeps * spread + 1 - keeps * keeps
            if ended or least > -math.inf:
                total = weight * weight * spread + noise
                wide = math.sqrt(total)
                if ended:
                    score = np.full(many, least)
                    chances = chances * np.exp(-((least - weight * mean) ** 2) / (2 * total))
                else:
                    score, more = _beyond(least, weight * mean, wide, dice.random(many))
                    chances = chances * more
                gain = spread * weight / total
                mean = mean + gain * (score - weight * mean)
                spread *= 1 - gain * weight
                scores[at] = score
            middles[at] = mean
            spreads.append(spread)
            chances = _weighed(chances)
            if 1.0 / float(chances @ chances) < many / 2:
                kept = dice.choice(many, many, p=chances)
                mean, chances = mean[kept], np.full(many, 1 / many)
                scores[: at + 1] = scores[: at + 1, kept]
                middles[: at + 1] = middles[: at + 1, kept]
        one = int(dice.choice(many, p=chances))
        return scores[:, one].tolist(), middles[:, one].tolist(), spreads

    def _levels(
        self, means: Sequence[float], spreads: Sequence[float], dice: Generator
    ) -> list[float]:
        """Draw the level at each run, from the last back to the first."""
        draws = dice.standard_normal(len(means)).tolist()
        levels = [0.0] * len(means)
        later: float | None = None
        for at in range(len(means) - 1, -1, -1):
            mean, spread = means[at], spreads[at]
            if later is not None:
                keeps = self._keeps[at + 1]
                ahead = keeps * keeps * spread + 1 - keeps * keeps
                gain = spread * keeps / ahead if ahead > 0.0 else 0.0
                mean += gain * (later - keeps * mean)
                spread *= 1 - gain * keeps
            later = mean + math.sqrt(max(spread, 0.0)) * draws[at]
            levels[at] = later
        return levels


def _weighed(chances: Numbers) -> Numbers:
    """Normalise the weights so that they add up to 1; equal weights if all are 0."""
    total = float(chances.sum())
    if total <= 0.0:
        return np.full(len(chances), 1 / len(chances))
    found: Numbers = chances / total
    return found


def _beyond(
    least: float, means: Numbers, spread: float, chances: Numbers
) -> tuple[Numbers, Numbers]:
    """Draw a normal score above `least` about each mean; return also how likely that is."""
    scores: list[float] = []
    more: list[float] = []
    for mean, chance in zip(means.tolist(), chances.tolist(), strict=True):
        below = _NORMAL.cdf((least - mean) / spread)
        share = min(max(below + (1 - below) * chance, EDGE), 1 - EDGE)
        scores.append(max(mean + spread * _NORMAL.inv_cdf(share), least))
        more.append(1 - below)
    return np.array(scores), np.array(more)
