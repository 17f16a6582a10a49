"""What a change does: the engine run ahead without it and with it, on the same run times.

In both runs every job runs for the median of its likely run times and no further job comes, so that
any difference comes from the change alone.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduling.engine.decisions import CycleResult, Started
from scheduling.engine.deltas import (
    JobChanged,
    JobEnded,
    JobSubmitted,
    NodeChanged,
    NodeRemoved,
    PastUse,
    PolicyChanged,
    QueuesChanged,
    TenantsChanged,
)
from scheduling.engine.types import MILLI, JobRequest
from scheduling.simulator.forecast.ahead import RunAhead, beyond_count
from scheduling.simulator.forecast.bands import CYCLES, CYCLES_PER_JOB
from scheduling.simulator.forecast.ground import Ground
from scheduling.simulator.forecast.likeness import traits_of
from scheduling.simulator.forecast.run_times import RunTimes
from scheduling.simulator.forecast.scene import Scene
from scheduling.simulator.model import TimedChange

AHEAD_S = 14 * 86400.0  # others will have changed what comes later
SOON_S = 900.0  # a job that stops later has other reasons as well
MIDDLE = 0.5
OfJob = JobChanged | JobEnded | JobSubmitted
# A change that is no TimedChange is made at the scene's instant.
OfTenants = TenantsChanged | QueuesChanged | PolicyChanged | PastUse
Change = NodeChanged | NodeRemoved | OfTenants | OfJob | TimedChange


class Holder(NamedTuple):
    """Whose quota of a GPU model is held; `fixed`: by non-preemptible jobs."""

    tenant: str
    gpu_model: str
    fixed: bool


@dataclass(slots=True)
class JobStop:
    """A running job loses `pods` pods at `at`. Times in seconds since the epoch.

    `whole`: it loses all and waits again until `again` (None = not before the run ahead ends).
    `by`: the job that preempts it; "" = its node is gone. `lost_gpu_s`: GPU-seconds of work.
    """

    at: float
    pods: int
    whole: bool
    by: str
    lost_gpu_s: float
    again: float | None = None


@dataclass(frozen=True, slots=True)
class Shift:
    """When a waiting job starts without the change and with it, in seconds since the epoch.

    None = not within the runs ahead.
    """

    before: float | None
    after: float | None


@dataclass(slots=True)
class ResizeEffect:
    """What becomes of a placed job whose number of pods is changed.

    `leave` pods give their places back. Of `more` new pods, `at_once` get places at once, and all
    have them at `all_at`, in seconds since the epoch (None = not within the run ahead). `why`: why
    they never get any; "" = they may.
    """

    leave: int = 0
    more: int = 0
    at_once: int = 0
    all_at: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class RunEffects:
    """The effects of a change.

    - `starts`: jobs that start at once, and would not without the change; `delayed`: the reverse.
    - `stops`: by job, within `SOON_S` of the last change.
    - `impossible`: why jobs can never start any more; `possible`: jobs that can now.
    - `shifts`: of all jobs that wait with the change.
    - `held_before`, `held_after`: milli-GPU after the decisions of `now`.
    - `until`: how far both runs went.
    - `resizes`: of placed jobs that the change gives another number of pods.
    """

    now: float
    until: float
    starts: tuple[str, ...]
    delayed: tuple[str, ...]
    stops: Mapping[str, JobStop]
    impossible: Mapping[str, str]
    possible: tuple[str, ...]
    shifts: Mapping[str, Shift]
    held_before: Mapping[Holder, int]
    held_after: Mapping[Holder, int]
    resizes: Mapping[str, ResizeEffect]


class Course(RunAhead):
    """A run ahead that notes which jobs stop, and what is held after the first instant."""

    def __init__(
        self,
        ground: Ground,
        lasting: Mapping[str, float],
        change: Sequence[Change],
        *,
        until: float,
        most_cycles: int,
        enough: Callable[[], bool],
    ) -> None:
        super().__init__(
            ground, lasting, iter(()), until=until, most_cycles=most_cycles, change=change
        )
        self.stops: dict[str, JobStop] = {}
        self.held: Counter[Holder] = Counter()
        self.resizes: dict[str, ResizeEffect] = {}
        self._wanted: dict[str, int] = {}  # job that gets more pods -> those without a place
        scene = self._scene = ground.scene
        self._ran = {fact.job.id for fact in scene.running}
        self._enough = enough
        self.soon = soon_of(scene, change)
        self.stopped_early = False

    def _asks_for(self, delta: JobChanged) -> None:
        run = self.jobs[delta.job.id]
        more, places = delta.job.pods - run.arrival.job.pods, tuple(run.places or ())
        super()._asks_for(delta)
        if more and places:
            leave = len(beyond_count(delta.job, places))
            self.resizes[delta.job.id] = ResizeEffect(leave, max(0, more))
            if more > 0:
                self._wanted[delta.job.id] = more

    def _grows(self, part: Started, now: float) -> None:
        """Note that new pods of a job got places."""
        resize, wanted = self.resizes[part.job_id], self._wanted[part.job_id]
        got = min(wanted, len(part.placements))
        if now == self._scene.now:
            resize.at_once += got
        if got < wanted:
            self._wanted[part.job_id] = wanted - got
        else:
            resize.all_at = now
            del self._wanted[part.job_id]

    def _never_runs(self, job_id: str, why: str) -> None:
        super()._never_runs(job_id, why)
        if self._wanted.pop(job_id, 0):
            self.resizes[job_id].why = why

    def _leave(self, job_id: str, state: int) -> None:
        self._wanted.pop(job_id, None)
        super()._leave(job_id, state)

    def _carry_out(self, result: CycleResult, now: float) -> None:
        for victim in result.preempted:
            self._stops(victim.job_id, len(victim.pods), victim.whole, victim.by, victim.cost_gpu_s)
        for job_id in dict.fromkeys(lost[0] for lost in result.lost):
            pods = [(s, n) for of, s, n in result.lost if of == job_id]
            self._is_lost(job_id, pods, now)
        for part in result.started:
            if part.job_id in self._wanted:
                self._grows(part, now)
            stop = self.stops.get(part.job_id)
            if stop is not None and stop.again is None:
                stop.again = now
        try:
            super()._carry_out(result, now)
        finally:  # this may have ended the run
            if now == self._scene.now:
                self.held = self._holdings()

    def _stops(self, job_id: str, pods: int, whole: bool, by: str, lost: float) -> None:
        if job_id not in self._ran:
            return
        stop = self.stops.get(job_id)
        if stop is None:
            self.stops[job_id] = JobStop(self.now, pods, whole, by, lost)
        elif stop.at == self.now:
            stop.pods, stop.whole = stop.pods + pods, stop.whole or whole
            stop.lost_gpu_s += lost
        if whole:
            self._awaited.add(job_id)

    def _is_lost(self, job_id: str, pods: list[tuple[int, int]], now: float) -> None:
        run = self.jobs.get(job_id)
        if run is None or not run.places:
            return
        job = run.arrival.job
        gone = job.go_together(pods)
        whole = not job.goes_on_with(run.places.keys() - gone)
        if whole:
            gone = set(run.places)
        milli = sum(job.pod_sets[pod_set].milli_per_pod for pod_set, _ in gone)
        self._stops(job_id, len(gone), whole, "", milli / MILLI * (now - run.since))

    def _is_over(self) -> bool:
        if not self.cycles:  # what happens at once is always reported
            return False
        if self._enough() or self.cycles >= self._most_cycles:
            self.stopped_early = True
            return True
        return super()._is_over() and self.now > self.soon and not self._wanted

    def _holdings(self) -> Counter[Holder]:
        """Return what is booked: of pods that leave, to whom their places are promised."""
        held: Counter[Holder] = Counter()
        for booking in self.state.book.bookings.values():
            for model, milli in booking.held.items():
                held[Holder(booking.tenant, model, booking.non_preemptible)] += milli
        return held


def soon_of(scene: Scene, change: Sequence[Change]) -> float:
    """Return until when stops are attributed to the change, in seconds since the epoch."""
    made = (one.at for one in change if isinstance(one, TimedChange))
    return max(scene.now, *made, scene.now) + SOON_S


@dataclass(frozen=True, slots=True)
class BaseRun:
    """The course from `now` to `until` without a change, if each job runs for `lasting` seconds.

    The other fields are as in `Course`. All changes of one state are compared with the same base.
    """

    now: float
    until: float
    lasting: Mapping[str, float]
    starts: Mapping[str, float]
    never: Mapping[str, str]
    stops: Mapping[str, JobStop]
    held: Mapping[Holder, int]


def base_of(
    ground: Ground, run_times: RunTimes, enough: Callable[[], bool] = lambda: False
) -> BaseRun:
    """Run ahead without a change; stop early when it is `enough`."""
    lasting, far = _lasting(ground.scene, run_times), ground.scene.now + AHEAD_S
    run = Course(ground, lasting, (), until=far, most_cycles=_cycles(lasting), enough=enough)
    run.starts_all()
    until = run.now if run.stopped_early else far
    return BaseRun(ground.scene.now, until, lasting, run.starts, run.never, run.stops, run.held)


def effects_of(
    ground: Ground,
    change: Sequence[Change],
    base: BaseRun,
    *,
    enough: Callable[[], bool] = lambda: False,
) -> RunEffects:
    """Return what these changes do, compared with `base`.

    `base`: of the same state, at this instant or just before. The run ahead goes as far as that, or
    until it is `enough`; what happens at once is reported in any case.
    """
    cycles, far = _cycles(base.lasting), max(base.until, ground.scene.now)
    after = Course(ground, base.lasting, change, until=far, most_cycles=cycles, enough=enough)
    after.starts_all()
    until = min(far, after.now) if after.stopped_early else far
    return _compared(ground.scene, base, after, until, _waiting(ground.scene, change))


def _cycles(lasting: Mapping[str, float]) -> int:
    return CYCLES + CYCLES_PER_JOB * len(lasting)


def _waiting(scene: Scene, change: Sequence[Change]) -> set[str]:
    """Return the jobs that wait with the change: those it ends or holds do not."""
    found = {job.id for job in scene.waiting}
    for one in change:
        if isinstance(one, JobEnded):
            found.discard(one.job_id)
        elif isinstance(one, JobSubmitted):
            (found.discard if one.held else found.add)(one.job.id)
    return found


def _compared(
    scene: Scene, before: BaseRun, after: Course, until: float, waiting: set[str]
) -> RunEffects:
    now = scene.now
    shifts = {
        job.id: Shift(_by(until, before.starts, job), _by(until, after.starts, job))
        for job in (*scene.waiting, *scene.held)
        if job.id in waiting
    }
    at_once = [j for j, s in shifts.items() if s.after == now and not _by_now(s.before, now)]
    delayed = [j for j, s in shifts.items() if _by_now(s.before, now) and s.after != now]
    return RunEffects(
        now,
        until,
        tuple(at_once),
        tuple(delayed),
        {
            job: stop
            for job, stop in after.stops.items()
            if stop.at <= after.soon and not _stops_anyway(before.stops.get(job), stop)
        },
        {
            job: why
            for job, why in after.never.items()
            if job not in before.never and job not in after.resizes
        },
        tuple(job for job in before.never if job not in after.never and job in waiting),
        shifts,
        before.held,
        after.held,
        after.resizes,
    )


def _by_now(at: float | None, now: float) -> bool:
    return at is not None and at <= now


def _stops_anyway(before: JobStop | None, after: JobStop) -> bool:
    return before is not None and before.at <= after.at and before.pods >= after.pods


def _by(until: float, starts: Mapping[str, float], job: JobRequest) -> float | None:
    at = starts.get(job.id, math.inf)
    return at if at <= until else None


def _lasting(scene: Scene, run_times: RunTimes) -> dict[str, float]:
    """Return by job the median of its likely run times; of running jobs, given their age."""
    ages = [(fact.job, max(0.0, scene.now - fact.started_at)) for fact in scene.running]
    run_times.going((traits_of(job, scene.name_of(job)), age) for job, age in ages)
    ages += [(job, 0.0) for job in (*scene.waiting, *scene.held)]
    return {
        job.id: run_times.of(traits_of(job, scene.name_of(job))).draw(age, MIDDLE, MIDDLE)
        for job, age in ages
    }
