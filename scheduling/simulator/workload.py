"""The calibrated training workload: arrivals with the published shape of large GPU clusters.

Sizes, durations and shares are those of docs/workload.md: more than nine in ten jobs ask for fewer
than 8 GPUs and use under a tenth of the GPU time; jobs of 256 and more GPUs use over half. A seed
gives the same arrivals every time.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar, Final

from numpy.random import PCG64, Generator

from scheduling.engine.native import copied_by_fields
from scheduling.engine.states import JobState
from scheduling.engine.types import JobKind, JobRequest, PodSetSpec, QuotaSpec, Sharing, TenantSpec
from scheduling.simulator.model import Arrival

HOUR: Final = 3600.0
DAY: Final = 86400.0
REFERENCE_GPUS, REFERENCE_LOAD, REFERENCE_JOBS_A_DAY = 8000, 0.92, 4400.0
SHORTEST_S: Final = 10.0
SMALL: Final = 8
LARGE: Final = 256  # small jobs have fewer than SMALL GPUs, large jobs LARGE or more


@dataclass(frozen=True, slots=True)
class SizeClass:
    """One row of the table: `weight` is its share of jobs in %; durations are lognormal, capped."""

    gpus: int
    weight: float
    mu: float
    sigma: float
    cap_h: float

    def mean_s(self) -> float:
        """Return the mean of the clipped lognormal, in closed form."""
        low, high = math.log(SHORTEST_S), math.log(self.cap_h * HOUR)

        def below(x: float) -> float:
            return 0.5 * (1 + math.erf((x - self.mu) / self.sigma / math.sqrt(2)))

        def partial(x: float) -> float:
            shifted = (x - self.mu - self.sigma**2) / self.sigma
            return 0.5 * (1 + math.erf(shifted / math.sqrt(2)))

        inside = math.exp(self.mu + self.sigma**2 / 2) * (partial(high) - partial(low))
        return SHORTEST_S * below(low) + inside + self.cap_h * HOUR * (1 - below(high))


TABLE = (
    SizeClass(1, 61.0, 6.50, 2.0, 168),
    SizeClass(2, 14.0, 7.02, 2.0, 168),
    SizeClass(4, 15.5, 6.98, 2.0, 168),
    SizeClass(6, 1.5, 6.52, 2.0, 168),
    SizeClass(8, 4.4, 8.39, 2.3, 168),
    SizeClass(16, 1.1, 8.23, 2.3, 168),
    SizeClass(32, 0.8, 7.75, 2.3, 168),
    SizeClass(64, 0.6, 8.12, 2.3, 168),
    SizeClass(128, 0.45, 8.12, 2.3, 168),
    SizeClass(256, 0.35, 8.00, 2.3, 168),
    SizeClass(512, 0.18, 7.99, 2.3, 120),
    SizeClass(1024, 0.09, 7.98, 2.3, 96),
    SizeClass(2048, 0.03, 8.31, 2.0, 48),
)
ODD_SIZES = {64: 96, 256: 296, 512: 496, 1024: 1016}
ODDER_SIZES = {256: 320, 512: 504}


def _normalised(curve: tuple[float, ...]) -> tuple[float, ...]:
    mean = sum(curve) / len(curve)
    return tuple(c / mean for c in curve)


HOUR_OF_DAY = _normalised(
    (26, 19, 17, 11, 8, 6, 5, 6, 11, 23, 37, 42, 34, 37, 45, 48, 50, 50, 37, 38, 39, 39, 33, 30)
)
DAY_OF_WEEK = _normalised((29, 32, 37, 35, 27, 20, 22))
TENANT_SHARES = (32, 20, 12, 11, 10, 9, 8, 8, 6, 5, 4, 4, 3, 2, 1)
OWNERS_OF_LARGE = 3
DECLARED_HOURS = (1, 2, 4, 8, 24, 72, 168)
# Quantiles of the share of its declared time that a job uses (p10, p50 and p90 are published).
USE_SHARES, USE_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0), (0.002, 0.014, 0.345, 1.0, 1.0)
SESSION_MEAN, BURST_SHARE, BURST_SIZES = 4.0, 0.01, (100, 300)
SUCCEED: Final = 0.50
FAIL: Final = 0.43
RETRY_SHARE, RETRY_AFTER_S = 0.6, (60.0, 600.0)
HIGH: Final = 100
NORMAL: Final = 0
LOW: Final = -100


@dataclass(frozen=True, slots=True)
class Variant:
    """How a workload departs from the calibrated one, which is the default.

    `load`: offered GPU time / capacity. `jobs_a_day`: fixes the number of jobs instead of the load.
    `declared`: jobs declare their run times.
    """

    load: float = REFERENCE_LOAD
    jobs_a_day: float | None = None
    eights: bool = False
    heavy_tail: bool = False
    odd_sizes: bool = False
    declared: bool = True

    def table(self, largest: int) -> tuple[SizeClass, ...]:
        """Return the size classes of the variant that a fleet of `largest` GPUs can hold."""
        rows = list(TABLE)
        if self.eights:  # 28 % of jobs have 8 GPUs; the others keep their proportions
            rest = 100 - next(r.weight for r in rows if r.gpus == 8)
            rows = [
                replace(r, weight=28.0 if r.gpus == 8 else r.weight * 72.0 / rest) for r in rows
            ]
        if self.heavy_tail:
            rows = [replace(r, sigma=2.7) if r.gpus >= LARGE else r for r in rows]
        if self.odd_sizes:
            rows = [
                part
                for r in rows
                for part in (
                    _split(r, (ODD_SIZES.get(r.gpus), ODDER_SIZES.get(r.gpus)))
                    if r.gpus in ODD_SIZES
                    else (r,)
                )
            ]
        return tuple(r for r in rows if r.gpus <= largest)


copied_by_fields(SizeClass, Variant)


def _split(row: SizeClass, odd: tuple[int | None, int | None]) -> tuple[SizeClass, ...]:
    """Split a class: half keeps its size, the other half takes the odd sizes."""
    sizes = [s for s in odd if s is not None]
    parts = [replace(row, weight=row.weight / 2)]
    return (*parts, *(replace(row, gpus=s, weight=row.weight / 2 / len(sizes)) for s in sizes))


VARIANTS = {
    "calibrated": Variant(),
    "load-0.80": Variant(load=0.80),
    "load-0.98": Variant(load=0.98),
    "load-1.05": Variant(load=1.05),
    "undeclared": Variant(declared=False),
    "eights": Variant(eights=True),
    "heavy-tail": Variant(heavy_tail=True),
    "odd-sizes": Variant(odd_sizes=True),
}


def tenants_of(gpus: int, gpu_model: str) -> tuple[tuple[TenantSpec, ...], tuple[QuotaSpec, ...]]:
    """Return the 15 tenants and their shared quotas of one GPU model, in published proportions.

    Together the quotas are the whole fleet, because a rest that is nobody's quota could never be
    borrowed.
    """
    names = [f"tenant-{i + 1:02}" for i in range(len(TENANT_SHARES))]
    ends = [gpus * 1000 * part // sum(TENANT_SHARES) for part in accumulate(TENANT_SHARES)]
    quotas = tuple(
        QuotaSpec(name, gpu_model, end - begin, Sharing.SHARED)
        for name, begin, end in zip(names, [0, *ends], ends, strict=False)
    )
    return tuple(TenantSpec(n) for n in names), quotas


def jobs_a_day(variant: Variant, gpus: int) -> float:
    """Return the arrivals per day that offer the variant's load to this many GPUs."""
    if variant.jobs_a_day is not None:
        return variant.jobs_a_day
    table = variant.table(gpus)
    weight = sum(r.weight for r in table)
    gpu_seconds = sum(r.weight / weight * r.gpus * r.mean_s() for r in table)
    # The table's own calibration, so that the base case is the published 4,400 jobs at 0.92.
    total = sum(r.weight for r in TABLE)
    reference = sum(r.weight / total * r.gpus * r.mean_s() for r in TABLE)
    scale = gpus / REFERENCE_GPUS * variant.load / REFERENCE_LOAD
    return REFERENCE_JOBS_A_DAY * scale * reference / gpu_seconds


def generate(
    variant: Variant, *, gpus: int, gpu_model: str, seed: int, hours: float, gpus_per_node: int = 8
) -> Iterator[Arrival]:
    """Yield arrivals in order of time over `hours`, starting on a Monday at 00:00 (time 0).

    Jobs of up to a node are one pod, larger ones gangs of whole nodes (with odd sizes the last pod
    is smaller).
    """
    rng = Generator(PCG64(seed))
    maker = _Maker(rng, variant, gpus, gpu_model, gpus_per_node)
    hourly = jobs_a_day(variant, gpus) / 24
    pending: list[tuple[float, int, Arrival]] = []
    for hour in range(math.ceil(hours)):
        season = HOUR_OF_DAY[hour % 24] * DAY_OF_WEEK[hour // 24 % 7]
        rate = hourly * season * rng.gamma(3.0, 1 / 3.0)
        begin = hour * HOUR
        pending.extend(maker.hour(begin, rate))
        pending.sort()  # the numbers break ties of time
        # Sessions reach into later hours: what starts after this hour has to wait.
        ready = [a for at, _, a in pending if at < begin + HOUR]
        pending = pending[len(ready) :]
        yield from (a for a in ready if a.submitted_at < hours * HOUR)


class _Dice:
    """Uniform and normal draws of a generator, taken in blocks: single draws cost 20 x more."""

    BLOCK = 8192

    def __init__(self, rng: Generator) -> None:
        self.rng = rng
        self._uniform: list[float] = []
        self._normal: list[float] = []

    def uniform(self) -> float:
        if not self._uniform:
            self._uniform = self.rng.random(self.BLOCK).tolist()
        return self._uniform.pop()

    def normal(self) -> float:
        if not self._normal:
            self._normal = self.rng.standard_normal(self.BLOCK).tolist()
        return self._normal.pop()

    def pick(self, cumulative: Sequence[float]) -> int:
        """Return an index drawn by cumulative weights."""
        return bisect_right(cumulative, self.uniform() * cumulative[-1], 0, len(cumulative) - 1)


def _cumulative(weights: Sequence[float]) -> list[float]:
    return list(accumulate(weights))


class _Maker:
    """Draws jobs; holds what stays the same over a run."""

    def __init__(
        self, rng: Generator, variant: Variant, gpus: int, model: str, per_node: int
    ) -> None:
        self.rng, self.variant, self.model, self.per_node = rng, variant, model, per_node
        self.dice = _Dice(rng)
        self.count = 0
        self.pod_sets = {r.gpus: pod_sets_of(r.gpus, model, per_node) for r in variant.table(gpus)}
        table = variant.table(gpus)
        self.small = [r for r in table if r.gpus < SMALL]
        self.big = [r for r in table if r.gpus >= SMALL]
        weight = sum(r.weight for r in table)
        self.small_share = sum(r.weight for r in self.small) / weight
        # Large jobs that fail are submitted again, so fewer are new: the shares stay right.
        big = [r.weight / (1 + FAIL * RETRY_SHARE if r.gpus >= LARGE else 1) for r in self.big]
        self.big_rate = sum(big) / weight
        self.big_weights = _cumulative(big)
        burst = BURST_SHARE * sum(BURST_SIZES) / 2
        self.session_mean = (1 - BURST_SHARE) * SESSION_MEAN + burst
        # Bursts are jobs of one GPU; ordinary sessions have fewer of these, so the shares stay
        # right.
        total = sum(r.weight for r in self.small)
        small = [r.weight / total for r in self.small]
        small[0] = max(0.0, small[0] - burst / self.session_mean)
        self.small_weights = _cumulative(small)
        self.tenant_weights = _cumulative(TENANT_SHARES)
        self.owner_weights = _cumulative(TENANT_SHARES[:OWNERS_OF_LARGE])

    def hour(self, begin: float, rate: float) -> Iterator[tuple[float, int, Arrival]]:
        """Yield (time, number, arrival) of what begins within an hour at `rate` jobs an hour."""
        rng = self.rng
        for at in begin + HOUR * rng.random(rng.poisson(rate * self.big_rate)):
            row = self.big[self.dice.pick(self.big_weights)]
            yield self._job(float(at), row, self._tenant(row.gpus), JobKind.TRAINING)
        sessions = rng.poisson(rate * self.small_share / self.session_mean)
        for at in begin + HOUR * rng.random(sessions):
            yield from self._session(float(at))

    def _session(self, at: float) -> Iterator[tuple[float, int, Arrival]]:
        dice, tenant, kind = self.dice, self._tenant(1), JobKind.TRAINING
        if dice.uniform() < BURST_SHARE:
            low, high = BURST_SIZES
            spacing = 2.0
            rows = [self.small[0]] * (low + int(dice.uniform() * (high - low)))
        else:
            spacing = 120.0
            size = int(self.rng.geometric(1 / SESSION_MEAN))
            rows = [self.small[dice.pick(self.small_weights)] for _ in range(size)]
            if dice.uniform() < 0.3:
                kind = JobKind.DEVELOPMENT
        for row in rows:
            yield self._job(at, row, tenant, kind)
            at -= spacing * math.log(1 - dice.uniform())

    def _tenant(self, gpus: int) -> str:
        weights = self.owner_weights if gpus >= LARGE else self.tenant_weights
        return f"tenant-{self.dice.pick(weights) + 1:02}"

    def _job(
        self, at: float, row: SizeClass, tenant: str, kind: JobKind
    ) -> tuple[float, int, Arrival]:
        dice = self.dice
        drawn = math.exp(row.mu + row.sigma * dice.normal())
        longest = row.cap_h * HOUR
        duration = SHORTEST_S if drawn < SHORTEST_S else longest if drawn > longest else drawn
        declared: float | None = declared_s(duration, dice.uniform())  # drawn even if not used
        fate = dice.uniform()
        ends = (
            JobState.SUCCEEDED
            if fate < SUCCEED
            else JobState.FAILED
            if fate < SUCCEED + FAIL
            else JobState.CANCELLED
        )
        again = None
        if ends is JobState.FAILED and row.gpus >= LARGE and dice.uniform() < RETRY_SHARE:
            again = RETRY_AFTER_S[0] + dice.uniform() * (RETRY_AFTER_S[1] - RETRY_AFTER_S[0])
        self.count += 1
        job = JobRequest(
            id=f"j{self.count:07}",
            tenant=tenant,
            submitted_at=at,
            pod_sets=self.pod_sets[row.gpus],
            priority=HIGH if row.gpus >= LARGE else LOW if kind is JobKind.DEVELOPMENT else NORMAL,
            kind=kind,
            declared_s=declared if self.variant.declared else None,
        )
        return at, self.count, Arrival(job, duration, ends, resubmit_after_s=again)


def declared_s(duration: float, draw: float) -> float:
    """Return the next usual limit above the guess; `draw` in 0..1 says which share is used."""
    i = bisect_right(USE_SHARES, draw) - 1
    part = (draw - USE_SHARES[i]) / (USE_SHARES[i + 1] - USE_SHARES[i])
    used = USE_QUANTILES[i] * (USE_QUANTILES[i + 1] / USE_QUANTILES[i]) ** part
    wanted = duration / used / HOUR
    i = bisect_left(DECLARED_HOURS, wanted, 0, len(DECLARED_HOURS) - 1)
    return DECLARED_HOURS[i] * HOUR


def pod_sets_of(gpus: int, model: str, per_node: int) -> tuple[PodSetSpec, ...]:
    """Return one pod up to a node; beyond, whole-node pods and a smaller last one for the rest."""
    if gpus <= per_node:
        return (PodSetSpec("main", 1, gpus, (model,)),)
    whole, rest = divmod(gpus, per_node)
    sets = (PodSetSpec("main", whole, per_node, (model,)),)
    return (*sets, PodSetSpec("rest", 1, rest, (model,))) if rest else sets


class StreamShares:
    """What a stream of arrivals was made of, to compare with the published shares."""

    # name -> (published value, one standard deviation over 30-day windows)
    PUBLISHED: ClassVar = {
        "small_jobs": (0.92, 0.005),
        "small_gpu_time": (0.071, 0.004),
        "large_gpu_time": (0.556, 0.027),
    }

    def __init__(self) -> None:
        self.jobs = self.small = 0
        self.milli_s = self.small_milli_s = self.large_milli_s = 0.0

    def watch(self, arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
        """Pass arrivals on and count them; a job submitted again counts its time twice."""
        for arrival in arrivals:
            milli = arrival.job.gpu_milli
            time = milli * arrival.duration_s * (2 if arrival.resubmit_after_s is not None else 1)
            self.jobs += 1
            self.milli_s += time
            if milli < SMALL * 1000:
                self.small += 1
                self.small_milli_s += time
            elif milli >= LARGE * 1000:
                self.large_milli_s += time
            yield arrival

    def figures(self, gpus: int, hours: float) -> dict[str, float]:
        """Return shares in 0..1 and the offered load on this many GPUs; {} without jobs."""
        if not self.jobs or not self.milli_s:
            return {}
        return {
            "jobs": self.jobs,
            "small_jobs": self.small / self.jobs,
            "small_gpu_time": self.small_milli_s / self.milli_s,
            "large_gpu_time": self.large_milli_s / self.milli_s,
            "load": self.milli_s / 1000 / (gpus * hours * HOUR),
        }
