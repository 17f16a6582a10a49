"""Start bands of waiting jobs: many runs ahead, each with other run times and arrivals."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.random import PCG64, Generator

from scheduling.engine.types import JobRequest
from scheduling.simulator.forecast.ahead import RunAhead
from scheduling.simulator.forecast.coming import Coming
from scheduling.simulator.forecast.ground import Ground
from scheduling.simulator.forecast.learned import LearnedTimes
from scheduling.simulator.forecast.likeness import Kin, traits_of
from scheduling.simulator.forecast.run_times import Basis, Doubt, Foregone, Likely, RunTimes
from scheduling.simulator.forecast.succession import EDGE, Succession, score_of, share_of
from scheduling.simulator.model import Arrival

RUNS = 20  # how many runs ahead, if time allows
LEAST_RUNS = 5  # fewer say nothing about a tenth
AHEAD_S = 60 * 86400.0
ARRIVALS = 100  # in a run, plus ARRIVALS_PER_JOB for each job that is open now
ARRIVALS_PER_JOB = 4
CYCLES, CYCLES_PER_JOB = 1000, 20  # likewise; only a policy that loops makes more
LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9
WIDEST_S = 7 * 86400.0  # a wider band is of no use unless the start is far off
FURTHEST = 12.0  # then it may end at most this many times as far off as it begins
EARLIEST_S = 86400.0  # without a band, an earliest start is told if it is further off than this

HELD = "It is on hold, and starts some time after it is released."
TOO_LATE = "In the simulated runs it starts too late, or not at all, so there is no estimate."
TOO_WIDE = "It may start soon, or only after more than a week."
NO_TIME = "There has been no time to work it out yet."


@dataclass(frozen=True, slots=True)
class Band:
    """When a job starts, in seconds since the epoch.

    In one of ten runs the job starts before `p10`, in half of them before `p50`, in one of ten
    after `p90`. `basis`: how most of the run times behind the band are known. `words`: how its own
    is.
    """

    p10: float
    p50: float
    p90: float
    basis: Basis
    words: str


@dataclass(frozen=True, slots=True)
class Bands:
    """The result of `runs` runs ahead as of `now`.

    `bands`: by job; `none`: why a job has no band. `vague`: for some of the latter that started in
    some runs, bands too wide to be told; if too few runs reached a start, they end with the last
    instant that was looked at.
    """

    now: float
    runs: int
    bands: dict[str, Band]
    none: dict[str, str]
    vague: dict[str, Band] = field(default_factory=dict)


def bands_of(
    ground: Ground,
    run_times: RunTimes,
    coming: Coming,
    *,
    seed: int,
    most: int = RUNS,
    enough: Callable[[], bool] = lambda: False,
    left: Callable[[], float] = lambda: math.inf,
) -> Bands:
    """Run ahead at most `most` times, or until it is `enough` after the least number of runs.

    `left`: returns how much time is left, by any clock. The runs share that time: each goes as far
    as its part lasts, so that near starts are told even if there is no time for the others.
    """
    outlook = Draws(ground, run_times)
    starts: list[dict[str, float]] = []
    never: dict[str, str] = {}
    cut = False
    while len(starts) < most and not (len(starts) >= LEAST_RUNS and enough()):
        if not ground.scene.waiting:
            break
        dice = Generator(PCG64([seed, len(starts)]))
        time = left()
        until = time - time / max(1, LEAST_RUNS - len(starts)) if time < math.inf else -math.inf
        ahead = outlook.ahead(dice, coming, partial(_is_less, left, until))
        starts.append(ahead.starts_all())
        never.update(ahead.never)
        cut = cut or ahead.cut
    return outlook.told(starts, never, cut=cut)


def _is_less(left: Callable[[], float], until: float) -> bool:
    return left() <= until


class _OpenJob(NamedTuple):
    """A job whose run time is drawn, which has run for `age` seconds."""

    id: str
    submitted_at: float
    age: float
    likely: Likely
    foregone: Foregone
    doubt: Doubt


class _Group:
    """The open jobs of a group, whose run times are drawn together."""

    def __init__(self, jobs: Sequence[_OpenJob]) -> None:
        self._jobs = jobs
        foregone = jobs[0].foregone
        ended = len(foregone.scores)
        submitted = [*foregone.submitted, *(one.submitted_at for one in jobs)]
        runs = [(score, True) for score in foregone.scores]
        runs += [(_least(one), False) for one in jobs]
        order = sorted(range(len(runs)), key=lambda at: submitted[at])
        self._places = [at - ended for at in order]
        self._succession = Succession(
            foregone.alike, [runs[at] for at in order], [submitted[at] for at in order]
        )

    def chances(self, dice: Generator) -> Iterator[tuple[_OpenJob, float]]:
        """Yield for each job which of its run times longer than its age is drawn, in 0..1."""
        for place, score in zip(self._places, self._succession.draw(dice), strict=True):
            if place >= 0:
                one = self._jobs[place]
                shorter = one.likely.shorter(one.age)
                yield one, max(0.0, (share_of(score) - shorter) / max(1 - shorter, EDGE))

    def next(self, dice: Generator, submitted_at: float) -> float:
        """Return the same for the next job, which is submitted at that time."""
        return share_of(self._succession.next(dice, submitted_at))


class _Errors:
    """How far what is known of run times is wrong in one run ahead.

    All jobs that are like each other share the error, so that it does not average out over many.
    """

    def __init__(self, dice: Generator) -> None:
        self._dice = dice
        self._of: dict[Kin, float] = {}

    def shifted(self, chance: float, doubt: Doubt) -> float:
        """Return which of the run times is drawn then, in 0..1."""
        if not doubt.off:
            return chance
        error = self._of.get(doubt.kin)
        if error is None:
            error = self._of[doubt.kin] = float(self._dice.standard_normal())
        return share_of((score_of(chance) + doubt.off * error) / math.sqrt(1 + doubt.off**2))


def _least(one: _OpenJob) -> float:
    shorter = one.likely.shorter(one.age)
    return score_of(shorter) if shorter > EDGE else -math.inf


class Draws:
    """A scene, and what is likely of each job in it."""

    def __init__(self, ground: Ground, run_times: RunTimes) -> None:
        self._ground = ground
        scene = self.scene = ground.scene
        self._run_times = run_times
        run_times.going(
            (traits_of(fact.job, scene.name_of(fact.job)), self._age(fact.started_at))
            for fact in scene.running
        )
        jobs = [*scene.waiting, *scene.held]
        self._open = [
            self._open_job(fact.job, self._age(fact.started_at)) for fact in scene.running
        ]
        self._open += [self._open_job(job, 0.0) for job in jobs]
        self._words = {one.id: one.likely for one in self._open}
        self._basis = _least_known([one.likely.basis for one in self._open])
        alike: dict[Kin, list[_OpenJob]] = {}
        for one in self._open:
            alike.setdefault(one.foregone.kin, []).append(one)
        self._groups = {kin: _Group(jobs) for kin, jobs in alike.items()}
        self._arriving = ARRIVALS + ARRIVALS_PER_JOB * len(self._open)
        self._cycles = CYCLES + CYCLES_PER_JOB * len(self._open)

    def ahead(
        self, dice: Generator, coming: Coming, late: Callable[[], bool] = lambda: False
    ) -> RunAhead:
        """Return a run with its own run times and arrivals, which stops when it is `late`."""
        far = dict(zip(self._words, dice.random(len(self._open)).tolist(), strict=True))
        errors = _Errors(dice)
        lasting = {
            one.id: one.likely.draw(one.age, errors.shifted(chance, one.doubt), far[one.id])
            for group in self._groups.values()
            for one, chance in group.chances(dice)
        }
        return RunAhead(
            self._ground,
            lasting,
            self._arrivals(coming, dice, errors),
            until=self.scene.now + AHEAD_S,
            most_cycles=self._cycles,
            learned=LearnedTimes(
                self._run_times, self.scene.name_by_id, learns=False, settled=True
            ),
            late=late,
        )

    def _age(self, since: float) -> float:
        return max(0.0, self.scene.now - since)

    def _open_job(self, job: JobRequest, age: float) -> "_OpenJob":
        traits = traits_of(job, self.scene.name_of(job))
        known = self._run_times
        return _OpenJob(
            job.id,
            job.submitted_at,
            age,
            known.of(traits),
            known.succession(traits),
            known.doubt(traits),
        )

    def _arrivals(self, coming: Coming, dice: Generator, errors: "_Errors") -> Iterator[Arrival]:
        for job, name in islice(coming.after(self.scene.now, dice), self._arriving):
            traits = traits_of(job, name)
            chance, far = dice.random(2).tolist()
            group = self._groups.get(self._run_times.succession(traits).kin)
            if group is not None:
                chance = group.next(dice, job.submitted_at)
            chance = errors.shifted(chance, self._run_times.doubt(traits))
            yield Arrival(job, self._run_times.of(traits).draw(0.0, chance, far))

    def told(self, starts: list[dict[str, float]], never: dict[str, str], *, cut: bool) -> Bands:
        """Return the bands by these runs; `cut`: not all of them went on to their end."""
        found = Bands(self.scene.now, len(starts), {}, {job.id: HELD for job in self.scene.held})
        for job in self.scene.waiting:
            if job.id in never:
                found.none[job.id] = never[job.id]
                continue
            if len(starts) < LEAST_RUNS:
                found.none[job.id] = NO_TIME
                continue
            drawn = sorted(run.get(job.id, math.inf) for run in starts)
            ends = [quantile(drawn, share) for share in (LOW, MIDDLE, HIGH)]
            beyond = ends[-1] == math.inf
            if beyond and cut:
                found.none[job.id] = NO_TIME
                continue
            low, middle, high = (min(end, self.scene.now + AHEAD_S) for end in ends)
            band = Band(low, middle, high, self._basis, self._words[job.id].words)
            if not beyond and useful(band, self.scene.now):
                found.bands[job.id] = band
                continue
            found.none[job.id] = TOO_LATE if beyond else TOO_WIDE
            if ends[0] < math.inf:  # otherwise it may wait for somebody to act, who may do so soon
                found.vague[job.id] = band
        return found


def useful(band: Band, as_of: float) -> bool:
    """Return whether somebody can plan by the band.

    "In 5 to 20 days" says something; "in an hour or in ten days" does not.
    """
    return band.p90 - band.p10 <= WIDEST_S or band.p90 - as_of <= FURTHEST * (band.p10 - as_of)


def earliest(band: Band, as_of: float) -> float | None:
    """Return the earliest start of a job whose band is of no use; None if that is soon."""
    return band.p10 if band.p10 - as_of >= EARLIEST_S else None


def quantile(drawn: list[float], share: float) -> float:
    """Return the value of ascending draws below which this share of further draws is expected."""
    place = share * (len(drawn) + 1) - 1.0
    low = min(max(math.floor(place), 0), len(drawn) - 1)
    high = min(low + 1, len(drawn) - 1)
    part = min(max(place - low, 0.0), 1.0)
    if part == 0.0 or drawn[high] == math.inf:
        return drawn[high] if part else drawn[low]
    return drawn[low] + part * (drawn[high] - drawn[low])


def _least_known(of: list[Basis]) -> Basis:
    """Return the basis of most of these run times."""
    if not of:
        return Basis.PRIOR
    counts = np.bincount([list(Basis).index(one) for one in of], minlength=len(Basis))
    return list(Basis)[int(np.argmax(counts))]
