"""Widen or narrow bands by how far earlier bands missed the starts (conformal bands).

What the runs ahead do not know (other jobs that come, faults, people) makes their bands too narrow,
narrow ones most. On recorded traces, bands whose ends differ by less than a factor of e held one of
two starts; those whose ends differ by more than e squared held three of four. A fixed amount for
what is unknown is therefore added to the width of each band from the beginning (`ROUGH`). How far
starts were from the middle, in units of such half-widths, tells by how much to widen or narrow the
bands on each side. Jobs that still wait count as late by at least what they have waited already
(product limit). Otherwise early starts, which are known first, would make the bands seem too late.
Jobs that were told at one instant are early or late together, so bands change little while the
outcomes are from few instants.

That would suffice if misses came evenly. But they come in bursts and drift, so that what was
learned before does not fit. The calibration therefore also counts how many starts were before and
after the bands as told. If more than a tenth was missed on a side, new bands leave out less there;
if less was missed, they leave out more (adaptive conformal inference).
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from scheduling.simulator.forecast.bands import LOW, Band, Bands, earliest, useful
from scheduling.simulator.forecast.run_times import Basis

KEPT = 1500  # newest outcomes per basis
ENOUGH = 40
TRUST = 10.0  # how many instants count as much as the runs ahead themselves
LEAST_LEFT_OUT = 0.005  # of the misses on a side
SHORTEST_S = 1.0
CLOSE_S = 1e-6  # a start this close to the end of a band is in it
# What the runs ahead do not know, in logarithms of the wait, by what they know of run times.
ROUGH = {Basis.DECLARED: 0.02, Basis.SHARE: 0.02, Basis.RUNS: 0.7, Basis.PRIOR: 0.7}


class ToldBand(NamedTuple):
    """A band at an instant: as the `runs` ahead had it, and the ends that were told."""

    runs: Band
    p10: float
    p90: float
    as_of: float


class Side(Enum):
    """Where a start was, relative to the band that was told."""

    BEFORE = "before"
    WITHIN = "within"
    AFTER = "after"


class Miss(NamedTuple):
    """How far a start was from the middle of a band told at `as_of`.

    `off`: in half-widths of that side; negative = early. `still`: the start is yet to come, so it
    is off by more. `side`: None while that is open.
    """

    off: float
    still: bool
    as_of: float
    side: Side | None


class Ends(NamedTuple):
    """Where a band has to end, in half-widths from its middle."""

    low: float
    high: float


NOTHING_LEARNED = Ends(-1.0, 1.0)


class Calibration:
    """Outcomes by basis: what was told, and how long the job then waited."""

    def __init__(self) -> None:
        self._known: dict[Basis, deque[Miss]] = {}
        self._still: dict[Basis, list[Miss]] = {}
        self._ends: dict[Basis, Ends] = {}

    def started(self, told: ToldBand, started_at: float) -> None:
        """Note that a job that was told this has started."""
        basis = told.runs.basis
        misses = self._known.setdefault(basis, deque(maxlen=KEPT))
        misses.append(_miss(told, started_at, still=False))
        self._ends.pop(basis, None)

    def waiting(self, told: Iterable[ToldBand], now: float) -> None:
        """Replace what was told of jobs that still wait."""
        self._still.clear()
        self._ends.clear()
        for one in told:
            miss = _miss(one, now, still=True)
            self._still.setdefault(one.runs.basis, []).append(miss)

    def told(self, found: Bands, job_id: str) -> tuple[Band | None, float | None]:
        """Return what to tell of a waiting job: a band, or the earliest start, or neither."""
        raw = found.bands.get(job_id)
        known = raw or found.vague.get(job_id)
        if known is None:
            return None, None
        band = self.fitted(known, found.now)
        if raw is not None and useful(band, found.now):
            return band, None
        return None, earliest(band, found.now)

    def as_told(self, runs: Band, as_of: float) -> ToldBand:
        """Return the band of the runs ahead with the ends that are told."""
        band = self.fitted(runs, as_of)
        return ToldBand(runs, band.p10, band.p90, as_of)

    def fitted(self, band: Band, as_of: float) -> Band:
        """Return the band, widened or narrowed on each side by what was learned."""
        ends = self._ends.get(band.basis)
        if ends is None:
            ends = self._ends[band.basis] = self._of(band.basis)
        middle, below, above = _halves(band, as_of)
        low, high = (middle + off * (below if off < 0 else above) for off in ends)
        return replace(
            band,
            p10=as_of + math.exp(low),
            p50=as_of + math.exp(min(max(middle, low), high)),
            p90=as_of + math.exp(high),
        )

    def _of(self, basis: Basis) -> Ends:
        known = self._known.get(basis, ())
        if len(known) < ENOUGH:
            return NOTHING_LEARNED
        misses = [*known, *self._still.get(basis, ())[-KEPT:]]
        instants = len({miss.as_of for miss in misses})
        share = instants / (instants + TRUST)
        low, high = quantiles(misses, asked(misses))
        return Ends(share - 1 + share * low, 1 - share + share * high)


def asked(misses: Iterable[Miss]) -> tuple[float, float]:
    """Return the quantiles of the misses that a band has to reach.

    On a side where more than a tenth of the told bands was missed, the band leaves out less than a
    tenth, by the same amount; where less was missed, more. While that is known of few instants
    only, it leaves out about a tenth.
    """
    settled = [miss for miss in misses if miss.side is not None]
    instants = len({miss.as_of for miss in settled})
    trust = instants / (instants + TRUST)

    def left_out(side: Side) -> float:
        missed = sum(miss.side is side for miss in settled) / max(1, len(settled))
        return max(LEAST_LEFT_OUT, LOW + trust * (LOW - missed))

    return left_out(Side.BEFORE), 1 - left_out(Side.AFTER)


def quantiles(misses: Iterable[Miss], shares: Iterable[float]) -> list[float]:
    """Return the values below which these shares of all misses are, by the product limit.

    If misses that are still open leave that unknown, the value is the largest miss known.
    """
    ordered = sorted(misses, key=lambda miss: (miss.off, miss.still))
    found: list[float] = []
    for share in shares:
        alive, at_risk, last = 1.0, len(ordered), ordered[0].off
        for miss in ordered:
            last = miss.off
            if not miss.still:
                alive -= alive / at_risk
                if alive <= 1 - share:
                    break
            at_risk -= 1
        found.append(last)
    return found


def _miss(told: ToldBand, at: float, *, still: bool) -> Miss:
    side: Side | None = Side.WITHIN
    if at > told.p90 + CLOSE_S:
        side = Side.AFTER
    elif at < told.p10 - CLOSE_S:
        side = None if still else Side.BEFORE
    return Miss(_off(told.runs, told.as_of, at), still, told.as_of, side)


def _off(told: Band, as_of: float, at: float) -> float:
    middle, below, above = _halves(told, as_of)
    off = math.log(max(at - as_of, SHORTEST_S)) - middle
    return off / (below if off < 0 else above)


def _halves(band: Band, as_of: float) -> tuple[float, float, float]:
    """Return the middle of the wait and the distances of its ends, with the unknown added.

    All are logarithms of seconds.
    """
    low, middle, high = (
        math.log(max(at - as_of, SHORTEST_S)) for at in (band.p10, band.p50, band.p90)
    )
    rough = ROUGH[band.basis]
    return middle, math.hypot(middle - low, rough), math.hypot(high - middle, rough)
