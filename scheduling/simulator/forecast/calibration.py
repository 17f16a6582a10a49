"""Bands that hold what they say, by how far earlier bands missed the starts (conformal bands).

What the runs ahead do not know (jobs of another kind that come, faults, people, run times of one
owner that are long or short together) makes their bands too narrow. How far the starts were from
the middle, in half-widths of the band, tells by how much, on each side. Jobs that were told at one
instant are early or late together: so far as outcomes are of few instants, bands stay as they were.
"""

import math
from collections import deque
from dataclasses import replace

import numpy as np

from scheduling.simulator.forecast.bands import HIGH, LOW, Band
from scheduling.simulator.forecast.run_times import Basis

KEPT = 1500  # of the newest outcomes of a basis
ENOUGH = 40
TRUST = 10.0  # so many instants count as much as the runs ahead themselves
SHORTEST_S = 1.0
NARROWEST = 0.02  # of the logarithm of the wait


class Calibration:
    """Outcomes by basis: what was told, how long the job then waited."""

    def __init__(self) -> None:
        self._early: dict[Basis, deque[float]] = {}
        self._late: dict[Basis, deque[float]] = {}
        self._told: dict[Basis, deque[float]] = {}  # when

    def started(self, told: Band, as_of: float, started_at: float) -> None:
        """A job that was told `told`, as the runs ahead had it, has started then."""
        middle, below, above = _halves(told, as_of)
        off = math.log(max(started_at - as_of, SHORTEST_S)) - middle
        self._early.setdefault(told.basis, deque(maxlen=KEPT)).append(-off / below)
        self._late.setdefault(told.basis, deque(maxlen=KEPT)).append(off / above)
        self._told.setdefault(told.basis, deque(maxlen=KEPT)).append(as_of)

    def fitted(self, band: Band, as_of: float) -> Band:
        """The band as wide on each side as held so far."""
        early, late = self._early.get(band.basis), self._late.get(band.basis)
        if early is None or late is None or len(early) < ENOUGH:
            return band
        middle, below, above = _halves(band, as_of)
        instants = len(set(self._told[band.basis]))
        share = instants / (instants + TRUST)
        low = middle - below * (1 - share + share * float(np.quantile(early, 1 - LOW)))
        high = middle + above * (1 - share + share * float(np.quantile(late, HIGH)))
        low, high = min(low, high), max(low, high)
        return replace(
            band,
            p10=as_of + math.exp(low),
            p50=as_of + math.exp(min(max(middle, low), high)),
            p90=as_of + math.exp(high),
        )


def _halves(band: Band, as_of: float) -> tuple[float, float, float]:
    """The middle of the wait, and how far its ends are from it, in logarithms of seconds."""
    low, middle, high = (
        math.log(max(at - as_of, SHORTEST_S)) for at in (band.p10, band.p50, band.p90)
    )
    return middle, max(middle - low, NARROWEST), max(high - middle, NARROWEST)
