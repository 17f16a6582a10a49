"""Questions to a kept state.

Each is answered in a process of its own, on a state that is thrown away afterwards: it may change
anything, and uses no database.
"""

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

# Returns what changes, given what a scope's scheduler was told. A type that can be sent to another
# process.
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
    """The same for a waiting job; None = it no longer waits."""

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
    """How far each of these climbs leads, for jobs submitted at `now`."""

    climbs: tuple[Climb, ...]
    now: float

    def answer(self, kept: KeptState) -> list[Climbed]:
        now = max(self.now, kept.state.cluster.now)
        return [
            climb.climbed(lambda jobs: (rise(kept.state, jobs, now), ""), now)
            for climb in self.climbs
        ]


LEAST_S = 0.5  # look ahead at least this long, however long it took to get the state


@dataclass(frozen=True, slots=True)
class Preview:
    """What a change would do, found within `within_s` seconds from `asked_at` (since the epoch).

    The asker waits while the question waits, too.
    """

    change: ChangeTold
    within_s: float
    asked_at: float

    @property
    def until(self) -> float:
        """The deadline, by the monotonic clock."""
        waited_s = max(0.0, time.time() - self.asked_at)
        return time.monotonic() + max(LEAST_S, self.within_s - waited_s)

    def answer(self, kept: KeptState) -> list[RunEffects]:
        """Return the effects in the only scope."""
        until, ground = self.until, _ground(kept)
        if kept.base is None:
            kept.base = base_within(ground, kept.run_times, until)
        return [self.on(ground, kept.rows.facts(), kept.base, until)]

    def on(self, ground: Ground, facts: Sequence[Delta], base: BaseRun, until: float) -> RunEffects:
        """Return the effects. `facts`: what the ground is made from; `until`: monotonic clock."""
        change = self.change(facts)
        return effects_of(ground, change, base, enough=lambda: time.monotonic() > until)


def base_within(ground: Ground, run_times: RunTimes, until: float) -> BaseRun:
    """Return the run with which a change is compared, within a third of the time left.

    `until`: by the monotonic clock. The run with the change goes as far, and also has to find out
    at its first instant who gets what from whom.
    """
    now = time.monotonic()
    third = now + (until - now) / 3
    return base_of(ground, run_times, lambda: time.monotonic() > third)


@dataclass(frozen=True, slots=True)
class PlanWanted:
    """A plan for this many more whole nodes of a GPU model, or for a waiting job.

    It is found within `within_s` seconds. The answer has the plan and the GPU model of the nodes to
    empty; None = there is no such job or GPU model.
    """

    gpu_model: str
    nodes: int
    job: str
    within_s: float

    def answer(self, kept: KeptState) -> tuple[EmptyingPlan, str] | None:
        if self.job and self.job not in kept.rows.jobs:
            raise Away
        return self.on(_ground(kept), time.monotonic() + self.within_s)

    def on(self, ground: Ground, until: float) -> tuple[EmptyingPlan, str] | None:
        """Return the plan. `until`: by the monotonic clock."""
        scene = ground.scene
        model = self._model_for_job(ground) if self.job else self.gpu_model
        if not model or all(node.gpu_model != model for node in scene.nodes):
            return None
        goal = Goal(model, self.nodes, self.job)
        return plan_for(ground, goal, lambda: time.monotonic() > until), model

    def _model_for_job(self, ground: Ground) -> str:
        """Return the first existing model that the job accepts; "" = it does not wait."""
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
