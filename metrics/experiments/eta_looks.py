"""Looks at waiting jobs in a simulated run: what the forecaster and its alternatives predict for
them, and when they then started."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from metrics import definitions
from metrics.experiments.runs import Figures, Watching
from scheduling.engine.decisions import CycleResult
from scheduling.engine.deltas import (
    Delta,
    JobHistory,
    JobRestored,
    JobSubmitted,
    NodeChanged,
    PolicyChanged,
    TenantsChanged,
)
from scheduling.engine.types import QuotaSpec, TenantSpec
from scheduling.simulator.forecast.bands import Band, Draws, bands_of
from scheduling.simulator.forecast.calibration import Calibration, ToldBand
from scheduling.simulator.forecast.coming import Coming
from scheduling.simulator.forecast.ground import ground_of
from scheduling.simulator.forecast.likeness import Traits, size_of, traits_of
from scheduling.simulator.forecast.run_times import Basis, Likely, RunTimes
from scheduling.simulator.forecast.scene import scene_of
from scheduling.simulator.model import Arrival
from scheduling.simulator.run import Run

WARM = 500  # jobs that have ended before the first look
NEAR = 0.2  # of the remaining wait
MEMORY = 0.1  # weight of the newest wait in the average


class ToldLook(NamedTuple):
    """The predictions for a job at `at`; None = none.

    `calibrated`: also if it is too wide to be shown. `oracle`: with the true distributions.
    `earliest`: from when on it may start, if no band was given.
    """

    job: str
    at: float
    calibrated: ToldBand | None
    band: Band | None
    earliest: float | None
    oracle: ToldBand | None
    average: float | None
    slurm: float | None


@dataclass(frozen=True, slots=True)
class LookPlan:
    """Looks after every `every` submissions, each with `runs` simulated runs. A job that
    declares a run time uses the share `used` of it; others run as long as any job of their size
    (`by_size`)."""

    every: int
    runs: int
    seed: int
    used: float
    by_size: Mapping[int, Likely] = field(hash=False)
    tenants: tuple[TenantSpec, ...] = ()
    quotas: tuple[QuotaSpec, ...] = ()


class TrueTimes(RunTimes):
    """Knows the distribution from which each job's run time is drawn."""

    def __init__(self, plan: LookPlan) -> None:
        super().__init__()
        self._plan = plan

    def of(self, job: Traits) -> Likely:
        if job.declared_s is not None:
            return certain(job.declared_s * self._plan.used)
        return self._plan.by_size[size_of(job.gpu_milli)]


class DeclaredLimits(RunTimes):
    """Assumes that each job runs to its declared limit; one beyond it ends at once."""

    def of(self, job: Traits) -> Likely:
        return certain(job.declared_s or 0.0)


def certain(seconds: float) -> Likely:
    """Return a known run time."""
    one = np.ones(1)
    return Likely(one, one, 0.0, max(seconds, 1e-3), Basis.DECLARED, "known")


def spread(seconds: Sequence[float]) -> Likely:
    """Return a uniform distribution over these; the tail for jobs that outlived them all."""
    values = np.sort(np.array(seconds, dtype=np.float64))
    return Likely(
        values, np.cumsum(np.full(len(values), 1 / len(values))), 1e-9, 1.0, Basis.RUNS, "known"
    )


class Looking(Watching):
    """A run with looks at its waiting jobs."""

    def __init__(self, *args: Any, plan: LookPlan, **options: Any) -> None:
        super().__init__(*args, tenants=plan.tenants, quotas=plan.quotas, **options)
        self._plan = plan
        self._run_times, self._coming = RunTimes(), Coming()
        self._calibration, self._of_oracle = Calibration(), Calibration()
        self._true_times = TrueTimes(plan)
        self._came = 0
        self._open: dict[str, list[ToldLook]] = {}
        self._average: dict[int, float] = {}
        self.looked: list[tuple[ToldLook, float]] = []  # with the start
        self.looks = self.asked = 0
        self.cpu_s = 0.0
        self.most_waiting = 0

    def _arrive(self, payload: Any) -> None:
        arrival: Arrival = payload[0] if isinstance(payload, tuple) else payload
        self._coming.came(arrival.job)
        self._came += 1
        super()._arrive(payload)

    def _leave(self, job_id: str, state: int) -> None:
        run = self.jobs.get(job_id)
        if run is not None and run.places:
            job = run.arrival.job
            self._run_times.ended(traits_of(job), self.now - run.since, job.submitted_at)
        super()._leave(job_id, state)

    def _carry_out(self, result: CycleResult, now: float) -> None:
        for part in result.started:
            self._started(part.job_id, now)
        super()._carry_out(result, now)
        if self._came >= self._plan.every and self._run_times.ended_runs >= WARM:
            self._came = 0
            self._look(now)

    def _started(self, job_id: str, now: float) -> None:
        job = self.jobs[job_id].arrival.job
        size, waited = size_of(job.gpu_milli), now - job.submitted_at
        before = self._average.get(size, waited)
        self._average[size] = before + MEMORY * (waited - before)
        for told in self._open.pop(job_id, ()):
            self.looked.append((told, now))
            if told.calibrated is not None:
                self._calibration.started(told.calibrated, now)
            if told.oracle is not None:
                self._of_oracle.started(told.oracle, now)

    def _look(self, now: float) -> None:
        scene = scene_of(self._facts(), now)
        ground = ground_of(scene)
        if not scene.waiting:
            return
        self.looks += 1
        self.most_waiting = max(self.most_waiting, len(scene.waiting))
        plan, seed = self._plan, self._plan.seed + self.looks
        cpu = time.process_time()
        found = bands_of(ground, self._run_times, self._coming, seed=seed, most=plan.runs)
        self.cpu_s += time.process_time() - cpu
        waiting = [told for of in self._open.values() for told in of]
        self._calibration.waiting([t.calibrated for t in waiting if t.calibrated], now)
        self._of_oracle.waiting([t.oracle for t in waiting if t.oracle], now)
        known = bands_of(ground, self._true_times, self._coming, seed=-seed % 2**31, most=plan.runs)
        slurm: dict[str, float] = {}
        if any(job.declared_s for job in scene.waiting):
            dice = np.random.Generator(np.random.PCG64(seed))
            slurm = Draws(ground, DeclaredLimits()).ahead(dice, Coming()).starts_all()
        for job in scene.waiting:
            raw, ideal = found.bands.get(job.id), known.bands.get(job.id)
            average = self._average.get(size_of(job.gpu_milli))
            if average is not None:
                average = max(now, job.submitted_at + average)
            told = ToldLook(
                job.id,
                now,
                None if raw is None else self._calibration.as_told(raw, now),
                *self._calibration.told(found, job.id),
                None if ideal is None else self._of_oracle.as_told(ideal, now),
                average,
                slurm.get(job.id),
            )
            self.asked += 1
            self._open.setdefault(job.id, []).append(told)

    def _facts(self) -> list[Delta]:
        """Return what a scheduler that starts now would be told."""
        facts: list[Delta] = [PolicyChanged(self.state.policy)]
        facts.append(TenantsChanged(self._plan.tenants, self._plan.quotas))
        facts += [NodeChanged(node) for node in self.nodes.values()]
        for job_id, run in self.jobs.items():
            record = self.state.jobs.get(job_id)
            if record is None:
                continue  # it ends at this very instant
            if run.places:
                facts.append(_restored(run))
                continue
            facts.append(JobSubmitted(run.arrival.job, record.not_before))
            if record.blocked_since is not None:
                facts.append(JobHistory(job_id, blocked_since=record.blocked_since))
        return facts

    # --- figures ------------------------------------------------------------------------------
    def figures(self) -> Figures:
        """Return shares in 0..1 and widths in seconds, of starts before the end of the run.

        `uncertain`: bands that the runs ahead do not have as a single instant. An instant holds
        every start that it tells rightly, so a share of all bands says little where most are such.
        """
        waiting = [t for of in self._open.values() for t in of]
        told = [t for t, _ in self.looked] + waiting
        after = [at >= t.earliest for t, at in self.looked if t.earliest is not None]
        after += [True for t in waiting if t.earliest is not None and t.earliest <= self.now]
        given = [(t, t.band, at) for t, at in self.looked if t.band is not None]
        held = [_holds(band, at) for _, band, at in given]
        wide = [t.calibrated is None or _is_wide(t.calibrated.runs) for t, _, _ in given]
        raw = [_holds(t.calibrated.runs, at) for t, at in self.looked if t.calibrated]
        widths = [(b.p90 - b.p10, t.oracle.p90 - t.oracle.p10) for t, b, _ in given if t.oracle]
        ours, known = (float(np.median(w)) if w else None for w in _columns(widths))
        return {
            "looks": len(told),
            "told": _share([t.band is not None or t.earliest is not None for t in told]),
            "earliest": _share([t.earliest is not None for t in told]),
            "earliest_held": _share(after),
            "near": _share([_near(b.p50, t.at, at) for t, b, at in given]),
            "held": _share(held),
            "held_raw": _share(raw),
            "early": _share([at < band.p10 - 1e-6 for _, band, at in given]),
            "uncertain": _share(wide),
            "held_uncertain": _share([h for h, is_wide in zip(held, wide, strict=True) if is_wide]),
            "oracle_held": _share([_holds(t.oracle, at) for t, at in self.looked if t.oracle]),
            "width_s": ours,
            "oracle_raw": _share(
                [t.oracle.runs.p10 <= at <= t.oracle.runs.p90 for t, at in self.looked if t.oracle]
            ),
            "oracle_width_s": known,
            "width_ratio": definitions.ratio(ours, known) if ours is not None and known else None,
            "near_average": _share(
                [_near(t.average, t.at, at) for t, at in self.looked if t.average is not None]
            ),
            "near_slurm": _share(
                [_near(t.slurm, t.at, at) for t, at in self.looked if t.slurm is not None]
            ),
            "cpu_per_look_s": self.cpu_s / self.looks if self.looks else None,
            "most_waiting": self.most_waiting,
        }


def _restored(run: Run) -> JobRestored:
    assert run.places is not None
    places = tuple(run.places.values())
    since = tuple(run.begun.get((p.pod_set, p.ordinal), run.since) for p in places)
    return JobRestored(run.arrival.job, places, run.since, placed_at=since)


def _holds(band: Band | ToldBand, at: float) -> bool:
    return band.p10 - 1e-6 <= at <= band.p90 + 1e-6


def _is_wide(band: Band) -> bool:
    return band.p10 < band.p90


def _near(told: float, at: float, started: float) -> bool:
    return abs(told - started) <= NEAR * (started - at) + 1e-6


def _share(of: Sequence[bool]) -> float | None:
    return sum(of) / len(of) if of else None


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [a for a, _ in pairs], [b for _, b in pairs]
