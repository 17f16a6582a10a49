"""The engine state with which runs ahead begin, each on a copy of its own."""

from collections.abc import Iterable

from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import CycleResult
from scheduling.engine.deltas import Delta, NodeChanged, PolicyChanged
from scheduling.engine.rehearse import standing, to_run_ahead
from scheduling.simulator.forecast.scene import Scene


class Ground:
    """`state` knows what the scene tells, and has made the decisions of its instant.

    If these would change anything outside, it has made none: each run makes them, with its change.
    """

    def __init__(self, scene: Scene, state: SchedulerState) -> None:
        self.scene, self._state = scene, state

    def twin(self) -> SchedulerState:
        """Return a copy of the state for one run."""
        return to_run_ahead(self._state)


def ground_of(scene: Scene) -> Ground:
    """Make the ground from a scene; that takes seconds on a large fleet."""
    state = _made_of(scene)
    if jobs_in(run_cycle(state, [], scene.now)):
        state = _made_of(scene)
    return Ground(scene, state)


def jobs_in(result: CycleResult) -> set[str]:
    """Return the jobs about which something was decided that has to be carried out."""
    found = {part.job_id for part in result.started}
    found.update(job for victim in result.preempted for job in (victim.job_id, victim.by) if job)
    found.update(move.job_id for move in result.moved)
    found.update(pod[0] for pod in result.lost)
    found.update(limit.job_id for limit in result.run_limits if limit.exceeded)
    return found


def _made_of(scene: Scene) -> SchedulerState:
    facts: Iterable[Delta] = (
        PolicyChanged(scene.policy),
        *map(NodeChanged, scene.nodes),
        *scene.facts,
    )
    return standing(facts, scene.now, scene.levels)
