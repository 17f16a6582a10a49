"""Start bands of the jobs that wait: many runs ahead, each with other run times and arrivals."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.random import PCG64, Generator

from scheduling.engine.types import JobRequest
from scheduling.simulator.forecast.ahead import RunAhead
from scheduling.simulator.forecast.coming import Coming
from scheduling.simulator.forecast.likeness import traits_of
from scheduling.simulator.forecast.run_times import Basis, Likely, RunTimes
from scheduling.simulator.forecast.scene import Scene
from scheduling.simulator.model import Arrival

RUNS = 20  # ahead, where time allows
LEAST_RUNS = 5  # fewer say nothing of a tenth
AHEAD_S = 14 * 86400.0
ARRIVALS = 100  # in a run, and for each job that is open now so many more
ARRIVALS_PER_JOB = 4
CYCLES, CYCLES_PER_JOB = 1000, 20  # likewise: more of them come from a policy that turns in circles
LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9
WIDEST_S = 7 * 86400.0  # a wider band is of no use

HELD = "It is held, and starts some time after it is released."
TOO_LATE = "In the runs that were tried it starts too late, or not at all, to tell when."
TOO_WIDE = "Its start may be more than a week sooner or later."
NO_TIME = "There was no time to work it out yet."


@dataclass(frozen=True, slots=True)
class Band:
    """When a job starts, in seconds since the epoch: one in ten runs has it start before `p10`,
    half before `p50`, one in ten after `p90`. `basis`: the least that is known of the run times
    that it depends on, `words`: of its own."""

    p10: float
    p50: float
    p90: float
    basis: Basis
    words: str


@dataclass(frozen=True, slots=True)
class Bands:
    """`bands` by job, `none`: why there is none, by `runs` runs as of `now`."""

    now: float
    runs: int
    bands: dict[str, Band]
    none: dict[str, str]


def bands_of(
    scene: Scene,
    run_times: RunTimes,
    coming: Coming,
    *,
    seed: int,
    most: int = RUNS,
    enough: Callable[[], bool] = lambda: False,
) -> Bands:
    """Run ahead at most so many times, and until there was `enough` after the least number."""
    outlook = Draws(scene, run_times)
    starts: list[dict[str, float]] = []
    never: dict[str, str] = {}
    while len(starts) < most and not (len(starts) >= LEAST_RUNS and enough()):
        if not scene.waiting:
            break
        dice = Generator(PCG64([seed, len(starts)]))
        ahead = outlook.ahead(dice, coming)
        starts.append(ahead.starts_all())
        never.update(ahead.never)
    return outlook.told(starts, never)


class Draws:
    """A scene and what is likely of each job in it."""

    def __init__(self, scene: Scene, run_times: RunTimes) -> None:
        self.scene = scene
        self._run_times = run_times
        run_times.going(
            (traits_of(fact.job, scene.name_of(fact.job)), self._age(fact.started_at))
            for fact in scene.running
        )
        jobs = [*scene.waiting, *scene.held]
        self._open: list[tuple[str, float, Likely]] = [
            (fact.job.id, self._age(fact.started_at), self._likely(fact.job))
            for fact in scene.running
        ]
        self._open += [(job.id, 0.0, self._likely(job)) for job in jobs]
        self._words = {name: likely for name, _, likely in self._open}
        self._basis = _least_known([likely.basis for _, _, likely in self._open])
        self._arriving = ARRIVALS + ARRIVALS_PER_JOB * len(self._open)
        self._cycles = CYCLES + CYCLES_PER_JOB * len(self._open)

    def ahead(self, dice: Generator, coming: Coming) -> RunAhead:
        """One run with run times and arrivals of its own."""
        chances = dice.random((len(self._open), 2)).tolist()
        lasting = {
            name: likely.draw(age, chance, far)
            for (name, age, likely), (chance, far) in zip(self._open, chances, strict=True)
        }
        return RunAhead(
            self.scene,
            lasting,
            self._arrivals(coming, dice),
            until=self.scene.now + AHEAD_S,
            most_cycles=self._cycles,
        )

    def _age(self, since: float) -> float:
        return max(0.0, self.scene.now - since)

    def _likely(self, job: JobRequest) -> Likely:
        return self._run_times.of(traits_of(job, self.scene.name_of(job)))

    def _arrivals(self, coming: Coming, dice: Generator) -> Iterator[Arrival]:
        for job, name in islice(coming.after(self.scene.now, dice), self._arriving):
            chance, far = dice.random(2).tolist()
            yield Arrival(job, self._run_times.of(traits_of(job, name)).draw(0.0, chance, far))

    def told(self, starts: list[dict[str, float]], never: dict[str, str]) -> Bands:
        """The bands of so many runs."""
        found = Bands(self.scene.now, len(starts), {}, {job.id: HELD for job in self.scene.held})
        for job in self.scene.waiting:
            if job.id in never:
                found.none[job.id] = never[job.id]
                continue
            if len(starts) < LEAST_RUNS:
                found.none[job.id] = NO_TIME
                continue
            drawn = sorted(run.get(job.id, math.inf) for run in starts)
            low, middle, high = (quantile(drawn, share) for share in (LOW, MIDDLE, HIGH))
            if high == math.inf:
                found.none[job.id] = TOO_LATE
            elif high - low > WIDEST_S:
                found.none[job.id] = TOO_WIDE
            else:
                words = self._words[job.id].words
                found.bands[job.id] = Band(low, middle, high, self._basis, words)
        return found


def quantile(drawn: list[float], share: float) -> float:
    """Of ascending draws the value below which this share of all further draws is expected."""
    place = share * (len(drawn) + 1) - 1.0
    low = min(max(math.floor(place), 0), len(drawn) - 1)
    high = min(low + 1, len(drawn) - 1)
    part = min(max(place - low, 0.0), 1.0)
    if part == 0.0 or drawn[high] == math.inf:
        return drawn[high] if part else drawn[low]
    return drawn[low] + part * (drawn[high] - drawn[low])


def _least_known(of: list[Basis]) -> Basis:
    """The basis of most of these run times."""
    if not of:
        return Basis.PRIOR
    counts = np.bincount([list(Basis).index(one) for one in of], minlength=len(Basis))
    return list(Basis)[int(np.argmax(counts))]
