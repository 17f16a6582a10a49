"""What is asked of a kept state. Each is answered by a process of its own, on a state that is
thrown away: it may change what it likes, and uses no database."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scheduling.engine.deltas import Delta, JobSubmitted
from scheduling.engine.rehearse import Rehearsal, review, rise, submitted
from scheduling.queries.known import Surroundings, kept_away
from scheduling.queries.whatif.climbs import Climb, Climbed
from scheduling.queries.whatif.line import Away
from scheduling.queries.whatif.state import KeptState
from scheduling.simulator.forecast.effects import BaseRun, Change, RunEffects, base_of, effects_of
from scheduling.simulator.forecast.emptying import EmptyingPlan, Goal, plan_for
from scheduling.simulator.forecast.ground import Ground
from scheduling.simulator.forecast.run_times import RunTimes

# What changes, by what the scheduler of a scope is told. A noun, as it goes to another process.
ChangeTold = Callable[[Sequence[Delta]], Sequence[Change]]


@dataclass(frozen=True, slots=True)
class DryRun:
    """What would become of a job if it were submitted at `now`, in seconds since the epoch."""

    asked: JobSubmitted
    company: Surroundings
    now: float

    def answer(self, kept: KeptState) -> Rehearsal:
        job = kept_away(self.asked.job, self.company, kept.rows.keepers())
        now = max(self.now, kept.state.cluster.now)
        asked = replace(self.asked, job=job)
        return submitted(kept.state, asked, now, kept.learned_of(asked, now))


@dataclass(frozen=True, slots=True)
class Review:
    """The same of a job that waits; None where it waits no more."""

    job_id: str

    def answer(self, kept: KeptState) -> Rehearsal | None:
        if self.job_id not in kept.rows.jobs:
            raise Away
        now = kept.state.cluster.now
        state = kept.undecided(now)
        anew = kept.told_anew(self.job_id) if state is kept.state else ()
        return review(state, self.job_id, now, anew)


@dataclass(frozen=True, slots=True)
class StartableNow:
    """How far each of these climbs leads, of jobs that are submitted at `now`."""

    climbs: tuple[Climb, ...]
    now: float

    def answer(self, kept: KeptState) -> list[Climbed]:
        now = max(self.now, kept.state.cluster.now)
        return [
            climb.climbed(lambda jobs: (rise(kept.state, jobs, now), ""), now)
            for climb in self.climbs
        ]


LEAST_S = 0.5  # that is looked ahead for, however long it took until the state was there


@dataclass(frozen=True, slots=True)
class Preview:
    """What a change would do, found out within so many seconds from `asked_at` on, in seconds since
    the epoch: who asks waits while the question waits, too."""

    change: ChangeTold
    within_s: float
    asked_at: float

    @property
    def until(self) -> float:
        """Of the monotonic clock."""
        waited_s = max(0.0, time.time() - self.asked_at)
        return time.monotonic() + max(LEAST_S, self.within_s - waited_s)

    def answer(self, kept: KeptState) -> list[RunEffects]:
        """Of the one scope that there is."""
        until, ground = self.until, _ground(kept)
        if kept.base is None:
            kept.base = base_within(ground, kept.run_times, until)
        return [self.on(ground, kept.rows.facts(), kept.base, until)]

    def on(self, ground: Ground, facts: Sequence[Delta], base: BaseRun, until: float) -> RunEffects:
        """`facts`: what the ground was made of. `until`: of the monotonic clock."""
        change = self.change(facts)
        return effects_of(ground, change, base, enough=lambda: time.monotonic() > until)


def base_within(ground: Ground, run_times: RunTimes, until: float) -> BaseRun:
    """What a change is held against: a third of the time that there is, `until` an instant of the
    monotonic clock, is for this. The run with the change goes as far, and at its first instant it
    has to find out who gets what from whom."""
    now = time.monotonic()
    third = now + (until - now) / 3
    return base_of(ground, run_times, lambda: time.monotonic() > third)


@dataclass(frozen=True, slots=True)
class PlanWanted:
    """A plan for so many more whole nodes of a GPU model, or for a job that waits, found within so
    many seconds of a clock; with the GPU model of which nodes are emptied. None = there is no such
    job or GPU model."""

    gpu_model: str
    nodes: int
    job: str
    within_s: float

    def answer(self, kept: KeptState) -> tuple[EmptyingPlan, str] | None:
        if self.job and self.job not in kept.rows.jobs:
            raise Away
        return self.on(_ground(kept), time.monotonic() + self.within_s)

    def on(self, ground: Ground, until: float) -> tuple[EmptyingPlan, str] | None:
        """`until`: of the monotonic clock."""
        scene = ground.scene
        model = self._model_for_job(ground) if self.job else self.gpu_model
        if not model or all(node.gpu_model != model for node in scene.nodes):
            return None
        goal = Goal(model, self.nodes, self.job)
        return plan_for(ground, goal, lambda: time.monotonic() > until), model

    def _model_for_job(self, ground: Ground) -> str:
        """The first it accepts that is there; "" = it does not wait."""
        scene = ground.scene
        request = next((one for one in scene.waiting if one.id == self.job), None)
        if request is None:
            return ""
        there = list(dict.fromkeys(node.gpu_model for node in scene.nodes if node.gpu_model))
        wanted = [model for s in request.pod_sets if s.gpus for model in (s.gpu_models or there)]
        return next((model for model in wanted if model in there), "")


def _ground(kept: KeptState) -> Ground:
    if not kept.rows.nodes:
        raise Away  # rows say what is wrong
    return kept.ground(time.time())
