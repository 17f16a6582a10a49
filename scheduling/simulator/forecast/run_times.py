"""How long a job is likely to run, judged by what ended runs of its like took.

For a job that declares a run time, the share of it that jobs like it used is drawn; for any other
job, the run time itself. Groups are mixed as in a back-off model: the runs of the group most alike
count by their number against a fixed weight for all wider groups, and so on down to a prior. A job
that has outlived all of them goes on by a heavy tail (Tsafrir, Etsion and Feitelson: a prediction
that is outlived is corrected, not kept).
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduling.simulator.forecast.likeness import (
    EVERYBODY,
    Kin,
    Traits,
    in_words,
    kin_of,
    size_kin,
)
from scheduling.simulator.forecast.neighbours import ENDED, Neighbour, nearest
from scheduling.simulator.forecast.succession import EDGE, Likeness, score_of
from scheduling.simulator.forecast.succession import LEAST as LEAST_ALIKE

KEPT = 300  # newest runs kept per group
WIDER = 8.0  # how many runs all wider groups together are worth
PRIOR = 1.0  # how many runs the prior is worth beside all runs
USUAL_S = 3600.0  # the median run time if nothing is known
LONGEST_S = 90 * 86400.0
RENEWED = 1.05  # costly findings are renewed when the ended runs have grown by this factor
OUTLIVED = 1e-3  # of the prior; a job that outlives even that goes on by the tail
ENOUGH = 5  # from this many runs on they are named as what an estimate is based on

Numbers = NDArray[np.float64]
NO_NUMBERS: Numbers = np.zeros(0)


class Basis(StrEnum):
    """What a run time is estimated by.

    `declared`: by the declaration alone; `share`: also by what jobs like it used of theirs; `runs`:
    by jobs like it; `prior`: nothing is known.
    """

    DECLARED = "declared"
    SHARE = "share"
    RUNS = "runs"
    PRIOR = "prior"


@dataclass(frozen=True, slots=True)
class Likely:
    """A distribution of run times.

    `values`: ascending, in units of `unit` seconds; `sums`: the cumulated weights. `tail`: the
    weight of an additional Lomax distribution of scale 1. `basis` and `words`: what it is based on.
    """

    values: Numbers
    sums: Numbers
    tail: float
    unit: float
    basis: Basis
    words: str

    def draw(self, age_s: float, chance: float, far: float) -> float:
        """Return a run time in seconds longer than `age_s`; both chances in 0..1 select it."""
        age = age_s / self.unit
        first = int(np.searchsorted(self.values, age, side="right"))
        passed = float(self.sums[first - 1]) if first else 0.0
        known = (float(self.sums[-1]) if len(self.sums) else 0.0) - passed
        beyond = self.tail / (1.0 + age)
        if known > 0.0 and chance * (known + beyond) < known:
            at = int(np.searchsorted(self.sums, passed + chance * (known + beyond), side="right"))
            drawn = float(self.values[min(at, len(self.values) - 1)])
        else:
            drawn = (1.0 + age) / max(1.0 - far, 1e-6) - 1.0
        longest = max(LONGEST_S, 2 * age_s)
        return min(max(drawn, age) * self.unit, longest)

    def shorter(self, seconds: float) -> float:
        """Return the share of run times, in 0..1, that are at most this long."""
        value = seconds / self.unit
        first = int(np.searchsorted(self.values, value, side="right"))
        passed = float(self.sums[first - 1]) if first else 0.0
        total = (float(self.sums[-1]) if len(self.sums) else 0.0) + self.tail
        return (passed + self.tail * value / (1.0 + value)) / total

    def at(self, shares: Sequence[float]) -> list[float]:
        """Return the run times in seconds at these ascending quantiles; ascending as well."""
        known = float(self.sums[-1]) if len(self.sums) else 0.0
        sought = np.array(shares, dtype=np.float64) * (known + self.tail)
        places = np.searchsorted(self.sums, sought, side="right").tolist()
        found: list[float] = []
        for place, chance in zip(places, sought.tolist(), strict=True):
            if place < len(self.values):
                value = float(self.values[place])
            else:
                beyond = max(known + self.tail - chance, self.tail * OUTLIVED)
                value = self.tail / beyond - 1.0
            value = min(value * self.unit, LONGEST_S)
            found.append(max(value, found[-1]) if found else value)
        return found

    def at_unit(self, seconds: float) -> "Likely":
        """Return the same distribution in another unit."""
        return Likely(self.values, self.sums, self.tail, seconds, self.basis, self.words)


class LateRun(NamedTuple):
    """When an ended run was submitted and what it took, in seconds."""

    traits: Traits
    submitted_at: float
    ran_s: float


class Foregone(NamedTuple):
    """Ended runs of a group in order of submission.

    `submitted`: when, in seconds; `scores`: see succession.py.
    """

    kin: Kin
    alike: Likeness
    submitted: tuple[float, ...]
    scores: tuple[float, ...]

    def in_common(self) -> float:
        """Return the mean correlation of two of them, in 0..1."""
        if not self.alike.part:
            return 0.0
        times = np.array(self.submitted, dtype=np.float64)
        gaps = np.abs(times[:, None] - times[None, :])
        return self.alike.part * float(np.exp(-gaps / self.alike.lasts_s).mean())


NOTHING_FOREGONE = Foregone(EVERYBODY, Likeness(), (), ())


class Doubt(NamedTuple):
    """How far scores of all jobs like this one may be wrong together, as a standard deviation.

    `kin`: the group that contributes most.
    """

    kin: Kin
    off: float


class RunTimes:
    """What ended runs took, group by group; deterministic, and bounded by `KEPT` per group."""

    def __init__(self) -> None:
        self._runs: dict[tuple[Kin, bool], deque[float]] = {}
        self._lately: dict[Kin, deque[LateRun]] = {}
        self._in_kin: dict[Kin, Foregone] = {}
        self._foregone: dict[Kin, Foregone] = {}
        self._going: dict[tuple[Kin, bool], list[float]] = {}
        self._likely: dict[tuple[Kin, bool], Likely] = {}
        self._nearly: dict[tuple[Kin, bool], Likely] = {}
        self._doubt: dict[tuple[Kin, bool], Doubt] = {}
        self._scores: dict[LateRun, float] = {}
        self._alike: dict[Kin, Likeness] = {}
        self._renewed_at = 0
        self.ended_runs = 0

    def ended(self, job: Traits, ran_s: float, submitted_at: float) -> None:
        """Take in a run that has ended after `ran_s` seconds."""
        self.ended_runs += 1
        self._forget()
        run = LateRun(job, submitted_at, ran_s)
        groups = kin_of(job)
        for by_share in (False, True):
            self._nearly.pop((groups[0], by_share), None)
        for kin in groups:
            self._lately.setdefault(kin, deque(maxlen=KEPT)).append(run)
            self._note(kin, ran_s / USUAL_S, by_share=False)
            if job.declared_s:
                self._note(kin, ran_s / job.declared_s, by_share=True)

    def going(self, runs: Iterable[tuple[Traits, float]]) -> None:
        """Replace the runs that go on now, each with its age in seconds."""
        self._going.clear()
        self._nearly.clear()
        self._forget()
        for job, age_s in runs:
            for kin in kin_of(job):
                self._going.setdefault((kin, False), []).append(age_s / USUAL_S)
                if job.declared_s:
                    self._going.setdefault((kin, True), []).append(age_s / job.declared_s)

    def _forget(self) -> None:
        self._likely.clear()
        self._doubt.clear()
        self._in_kin.clear()
        self._foregone.clear()

    def _note(self, kin: Kin, took: float, *, by_share: bool) -> None:
        runs = self._runs.get((kin, by_share))
        if runs is None:
            runs = self._runs[kin, by_share] = deque(maxlen=KEPT)
        runs.append(took)

    def succession(self, job: Traits) -> "Foregone":
        """Return the ended runs that tell most of a job submitted after them.

        They are those of the group in which successive runs are most alike, beyond chance.
        """
        groups = kin_of(job)
        found = self._foregone.get(groups[0])
        if found is None:
            best = max((self._alike_in(kin) for kin in groups), key=lambda one: one.alike.surely)
            found = self._foregone[groups[0]] = best if best.alike.part else NOTHING_FOREGONE
        return found

    def _alike_in(self, kin: Kin) -> "Foregone":
        found = self._in_kin.get(kin)
        if found is None:
            runs = sorted(self._lately.get(kin, ()), key=lambda run: run.submitted_at)
            enough = runs if len(runs) >= LEAST_ALIKE else []
            scores = tuple(_score_by(self.of(run.traits), run) for run in enough)
            times = tuple(run.submitted_at for run in runs[: len(scores)])
            found = self._in_kin[kin] = Foregone(kin, Likeness.of(scores, times), times, scores)
        return found

    def alike_in_size(self, job: Traits) -> Likeness:
        """Return how alike runs of its size class are to those submitted close to them.

        The answer may be slightly out of date.
        """
        self._renew()
        kin = size_kin(job)
        found = self._alike.get(kin)
        if found is None:
            found = self._alike[kin] = self._alike_in(kin).alike
        return found

    def ended_near(self, job: Traits, submitted_at: float) -> list[Neighbour]:
        """Return the ended runs of its size class that were submitted closest to that time."""
        self._renew()
        runs = self._lately.get(size_kin(job), ())
        found = nearest(((run.submitted_at - submitted_at, run) for run in runs), ENDED)
        return [Neighbour(gap, self._kept_score(run)) for gap, run in found]

    def _kept_score(self, run: LateRun) -> float:
        found = self._scores.get(run)
        if found is None:
            found = self._scores[run] = _score_by(self.nearly(run.traits), run)
        return found

    def _renew(self) -> None:
        """Drop scores and likenesses when the number of ended runs has grown by `RENEWED`."""
        if self.ended_runs >= self._renewed_at * RENEWED:
            self._renewed_at = max(self.ended_runs, 1)
            self._scores.clear()
            self._alike.clear()
            self._nearly.clear()

    def doubt(self, job: Traits) -> Doubt:
        """Return how well the distribution of the job is known, by the number of independent runs.

        These are few if the ended runs came in bursts.
        """
        groups, by_share = kin_of(job), bool(job.declared_s)
        found = self._doubt.get((groups[0], by_share))
        if found is None:
            found = self._doubt[groups[0], by_share] = self._doubt_of(groups, by_share)
        return found

    def _doubt_of(self, groups: tuple[Kin, ...], by_share: bool) -> Doubt:
        variance, most, told_by = 0.0, 0.0, EVERYBODY
        for kin, share in self._shares(groups, by_share):
            count = len(self._runs[kin, by_share])
            once = 1 + (count - 1) * self._alike_in(kin).in_common()
            variance += share * min(1.0, once / (1 + count))
            if share > most:
                most, told_by = share, kin
        return Doubt(told_by, math.sqrt(variance))

    def _shares(self, groups: tuple[Kin, ...], by_share: bool) -> Iterator[tuple[Kin, float]]:
        """Yield the weight of the runs of each group that has any."""
        left = 1.0
        for kin in groups:
            count = len(self._runs.get((kin, by_share), ()))
            if count:
                share = left * count / (count + (PRIOR if kin == groups[-1] else WIDER))
                left -= share
                yield kin, share

    def of(self, job: Traits) -> Likely:
        """Return how long the job is likely to run."""
        return self._kept_in(self._likely, job)

    def nearly(self, job: Traits) -> Likely:
        """Return the same as of a short while ago.

        It is for callers that ask about many jobs whenever one ends. The answer is new whenever a
        run of the group most alike has ended.
        """
        self._renew()
        return self._kept_in(self._nearly, job)

    def _kept_in(self, kept: dict[tuple[Kin, bool], Likely], job: Traits) -> Likely:
        by_share = bool(job.declared_s)
        groups = kin_of(job)
        known = kept.get((groups[0], by_share))
        if known is None:
            known = kept[groups[0], by_share] = self._mixed(groups, by_share)
        return known.at_unit(job.declared_s) if job.declared_s else known

    def _mixed(self, groups: tuple[Kin, ...], by_share: bool) -> Likely:
        parts: list[tuple[Numbers, Numbers]] = []
        left, words = 1.0, ""
        for kin, share in self._shares(groups, by_share):
            runs = self._runs[kin, by_share]
            took, chances = survival(list(runs), self._going.get((kin, by_share), []), by_share)
            parts.append((took, share * chances))
            left -= share
            if not words and len(runs) >= ENOUGH:
                words = in_words(kin, len(runs))
        if by_share:  # exactly what is declared, or with a small weight half as much again
            parts.append((np.array([1.0, 1.5]), np.array([0.9 * left, 0.1 * left])))
            left *= OUTLIVED
        values = np.concatenate([NO_NUMBERS, *(took for took, _ in parts)])
        weights = np.concatenate([NO_NUMBERS, *(chances for _, chances in parts)])
        order = np.argsort(values, kind="stable")
        return Likely(
            values=values[order],
            sums=np.cumsum(weights[order]),
            tail=left,
            unit=USUAL_S,
            basis=_basis(by_share, words),
            words=_words(by_share, words),
        )


def _score_by(likely: Likely, run: LateRun) -> float:
    """Return the score of a run among what was likely of it; of equal run times, the middle."""
    longer = likely.shorter(run.ran_s)
    return score_of((likely.shorter(run.ran_s * (1 - EDGE)) + longer) / 2)


def survival(
    took: Sequence[float], going: Sequence[float], by_share: bool
) -> tuple[Numbers, Numbers]:
    """Return run times and their chances, which add up to 1, by the product limit.

    `took`: run times of ended runs; `going`: ages of runs that go on. A run that has outlived all
    that ended is taken to be half through; if shares of declarations are counted, to end as
    declared unless it has outlived that as well.
    """
    at = np.array([*took, *going], dtype=np.float64)
    goes_on = np.arange(len(at)) >= len(took)
    order = np.lexsort((goes_on, at))
    at, goes_on = at[order], goes_on[order]
    outlives = goes_on & (at > max(took))
    ends = ~goes_on | outlives
    at_risk = np.arange(len(at), 0, -1)
    alive = np.cumprod(np.where(ends, 1.0 - 1.0 / at_risk, 1.0))
    chances = np.concatenate(([1.0], alive[:-1])) / at_risk
    longer = np.where(at < 1.0, 1.0, 2.0 * at) if by_share else 2.0 * at
    return np.where(outlives, longer, at)[ends], chances[ends]


def _basis(by_share: bool, words: str) -> Basis:
    if by_share:
        return Basis.SHARE if words else Basis.DECLARED
    return Basis.RUNS if words else Basis.PRIOR


def _words(by_share: bool, words: str) -> str:
    if by_share:
        return f"declared, and used like {words}" if words else "declared"
    return f"like {words}" if words else "nothing known; half of such runs take up to an hour"
