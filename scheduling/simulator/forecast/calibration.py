"""Bands that hold what they say, by how far earlier bands missed the starts (conformal bands).

What the runs ahead do not know (jobs of another kind that come, faults, people) makes their bands
too narrow, narrow ones most: on recorded traces those whose ends differ by less than e held one of
two starts, those that differ by more than e squared three of four. So what is not known is taken to
be there from the first, beside the width of each band (`ROUGH`). How far the starts were from the
middle, in such half-widths, tells by how much more bands are to be widened, or to be narrowed, on
each side. Who still waits counts as late by at least what it waits already (product limit): else
those who start early, which are known first, would make the bands seem too late. Jobs that were
told at one instant are early or late together: so far as outcomes are of few instants, bands stay
as they were.

That would do if misses came evenly. They come in bursts, and drift: what was learned until then
does not fit. So it is also counted how many starts were before and after the bands, as they were
told. Where more than a tenth was missed on a side a band leaves out less there, and where less was,
more (adaptive conformal inference).
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from scheduling.simulator.forecast.bands import LOW, Band, Bands, earliest, useful
from scheduling.simulator.forecast.run_times import Basis

KEPT = 1500  # of the newest outcomes of a basis
ENOUGH = 40
TRUST = 10.0  # so many instants count as much as the runs ahead themselves
LEAST_LEFT_OUT = 0.005  # of the misses on a side
SHORTEST_S = 1.0
CLOSE_S = 1e-6  # from the end of a band is in it
# Of the logarithm of the wait: what the runs ahead do not know, by what they know of run times.
ROUGH = {Basis.DECLARED: 0.02, Basis.SHARE: 0.02, Basis.RUNS: 0.7, Basis.PRIOR: 0.7}


class ToldBand(NamedTuple):
    """A band as of an instant: as the `runs` ahead had it, and the ends that were told."""

    runs: Band
    p10: float
    p90: float
    as_of: float


class Side(Enum):
    """Where a start was, of the band that was told."""

    BEFORE = "before"
    WITHIN = "within"
    AFTER = "after"


class Miss(NamedTuple):
    """How far a start was from the middle of a band told at `as_of`, in half-widths of that side;
    below 0 it was early. Where it is `still` to come, it is by more. `side`: None as long as that
    is open."""

    off: float
    still: bool
    as_of: float
    side: Side | None


class Ends(NamedTuple):
    """Where a band is to end, in half-widths from its middle."""

    low: float
    high: float


NOTHING_LEARNED = Ends(-1.0, 1.0)


class Calibration:
    """Outcomes by basis: what was told, how long the job then waited."""

    def __init__(self) -> None:
        self._known: dict[Basis, deque[Miss]] = {}
        self._still: dict[Basis, list[Miss]] = {}
        self._ends: dict[Basis, Ends] = {}

    def started(self, told: ToldBand, started_at: float) -> None:
        """A job that was told this has started then."""
        basis = told.runs.basis
        misses = self._known.setdefault(basis, deque(maxlen=KEPT))
        misses.append(_miss(told, started_at, still=False))
        self._ends.pop(basis, None)

    def waiting(self, told: Iterable[ToldBand], now: float) -> None:
        """These were told of jobs that still wait; replaces those of before."""
        self._still.clear()
        self._ends.clear()
        for one in told:
            miss = _miss(one, now, still=True)
            self._still.setdefault(one.runs.basis, []).append(miss)

    def told(self, found: Bands, job_id: str) -> tuple[Band | None, float | None]:
        """What somebody is told of a waiting job: a band, else from when on it may start, else
        neither."""
        raw = found.bands.get(job_id)
        known = raw or found.vague.get(job_id)
        if known is None:
            return None, None
        band = self.fitted(known, found.now)
        if raw is not None and useful(band, found.now):
            return band, None
        return None, earliest(band, found.now)

    def as_told(self, runs: Band, as_of: float) -> ToldBand:
        """The band of the runs ahead with the ends that are told."""
        band = self.fitted(runs, as_of)
        return ToldBand(runs, band.p10, band.p90, as_of)

    def fitted(self, band: Band, as_of: float) -> Band:
        """The band as wide on each side as held so far."""
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
    """Which quantiles of the misses a band is to reach: it leaves out less than a tenth of a side,
    by as much as more than a tenth of the bands that were told was missed there, and more by as
    much as less was. So far as that is known of few instants, a tenth."""
    settled = [miss for miss in misses if miss.side is not None]
    instants = len({miss.as_of for miss in settled})
    trust = instants / (instants + TRUST)

    def left_out(side: Side) -> float:
        missed = sum(miss.side is side for miss in settled) / max(1, len(settled))
        return max(LEAST_LEFT_OUT, LOW + trust * (LOW - missed))

    return left_out(Side.BEFORE), 1 - left_out(Side.AFTER)


def quantiles(misses: Iterable[Miss], shares: Iterable[float]) -> list[float]:
    """Below which so much of all misses is, by the product limit; the largest of all that are known
    where those that are still to come do not tell."""
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
    """The middle of the wait, and how far its ends are from it with what is not known, in
    logarithms of seconds."""
    low, middle, high = (
        math.log(max(at - as_of, SHORTEST_S)) for at in (band.p10, band.p50, band.p90)
    )
    rough = ROUGH[band.basis]
    return middle, math.hypot(middle - low, rough), math.hypot(high - middle, rough)
