"""Confidence intervals of means and of paired differences (Student's t)."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, stdev
from typing import Any

LEVEL = 0.95


@lru_cache
def t_quantile(freedom: int) -> float:
    """Return the t for which P(|T| < t) = LEVEL with this many degrees of freedom."""
    low, high = 0.0, 1.0
    while _inside(high, freedom) < LEVEL:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if _inside(middle, freedom) < LEVEL:
            low = middle
        else:
            high = middle
    return high


def _inside(t: float, freedom: int) -> float:
    """Return P(|T| < t), by the finite sums in Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    term = total = cosine if freedom % 2 else 1.0
    for k in range(3 if freedom % 2 else 2, freedom, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if freedom % 2 == 0:
        return math.sin(angle) * total
    rest = math.sin(angle) * total if freedom > 1 else 0.0
    return 2 / math.pi * (angle + rest)


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    return t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def paired(variant: Sequence[float], baseline: Sequence[float]) -> dict[str, Any]:
    """Return the mean difference variant - baseline over equal seeds, its 95 % interval, and the
    ratio.

    `low` and `high` are None for a single pair; `ratio` is None if the baseline's mean is 0.
    """
    differences = [v - b for v, b in zip(variant, baseline, strict=True)]
    mean, half, base = fmean(differences), half_width(differences), fmean(baseline)
    return {
        "mean": mean,
        "low": None if half is None else mean - half,
        "high": None if half is None else mean + half,
        "ratio": fmean(variant) / base if base else None,
        "pairs": len(differences),
    }
