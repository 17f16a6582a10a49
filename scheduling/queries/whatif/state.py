"""A state of the engine that follows the rows: built once, then told what has changed.

It has already made all decisions that a scheduler would make at once, so that a question costs only
what it asks. At the next look it takes its own decisions back: rows say what became of them.
"""

from collections.abc import Iterable, Iterator

from django.utils import timezone

from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import CycleResult
from scheduling.engine.deltas import (
    Delta,
    JobEnded,
    JobRestored,
    JobSubmitted,
    MovesBefore,
    NodeRemoved,
    OtherPodChanged,
    OtherPodRemoved,
    PastUse,
    PolicyChanged,
)
from scheduling.engine.rehearse import standing
from scheduling.models import Cluster
from scheduling.queries.known import JobFacts
from scheduling.queries.whatif.rows import KeptNode, KeptRows
from scheduling.session.memory.ended_runs import LEARNED_FROM, learn_runs
from scheduling.session.memory.past import half_life_of
from scheduling.simulator.forecast.effects import BaseRun
from scheduling.simulator.forecast.ground import Ground, ground_of, jobs_in
from scheduling.simulator.forecast.learned import LearnedTimes
from scheduling.simulator.forecast.run_times import RunTimes
from scheduling.simulator.forecast.scene import scene_of

BASE_S = 10.0  # how long it is assumed to continue as found, while nothing changes


class KeptState:
    """A kept state of one cluster.

    - `rows`: what it knows.
    - `state`: ask on a copy or in a process of its own, since a question changes it.
    - `decided`: what it decided by itself at the last look; None = nothing.
    - `run_times`: of jobs that have ended.
    - `base`: how the state continues, as worked out for a recent question about a change; None =
      not worked out.
    - `changes`: how often it was told or decided something.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.rows = KeptRows(cluster)
        self.run_times = RunTimes()
        self.changes = 0
        self._ended = timezone.now() - LEARNED_FROM
        self._begin()

    def _begin(self) -> None:
        self.state = SchedulerState(told_of_runs=True)
        self.decided: CycleResult | None = None
        self.base: BaseRun | None = None
        self._learned: LearnedTimes | None = None
        self._tenancy: tuple[Delta, ...] = ()
        self._nodes: dict[str, KeptNode] = {}
        self._jobs: dict[str, JobFacts] = {}

    def refresh(self, now: float) -> None:
        """Take over what has changed in the rows, and decide what is due at `now`.

        `now`: in seconds since the epoch.
        """
        self.rows.refresh(now)
        if self._jobs is not self.rows.jobs:
            self._ended = learn_runs(self.run_times, self.rows.cluster_id, self._ended)
        if self._holds_what_is_gone():
            self._begin()
        at, changes = max(now, self.state.cluster.now), list(self._changes())
        result = run_cycle(self.state, changes + self._learn(changes, at), at)
        self.decided = result if jobs_in(result) else None
        self.changes += bool(changes) or self.decided is not None
        if changes or self.decided or (self.base and now > self.base.now + BASE_S):
            self.base = None

    def _learn(self, changes: list[Delta], at: float) -> list[Delta]:
        """Return the run times to tell the engine, as its scheduler does."""
        if not self.rows.policy.plans_by_learned:
            self._learned = None
            return []
        if self._learned is None:
            self._learned = LearnedTimes(self.run_times, self._name_of, learns=False)
        return self._learned.follow(changes, self.state.jobs, at)

    def learned_of(self, asked: JobSubmitted, now: float) -> list[Delta]:
        """Return what the engine would be told of the run time of a job submitted at `now`."""
        return self._learn([asked], now)

    def _name_of(self, job_id: str) -> str:
        return self.rows.names.get(job_id, "")

    # --- for questions, in a process of their own ---------------------------------------------
    def ground(self, now: float) -> Ground:
        """Return the ground for runs ahead from `now`, in seconds since the epoch."""
        now = max(now, self.state.cluster.now)
        scene = scene_of(self.rows.facts(), now, self.rows.names, self.rows.notices())
        return Ground(scene, self.state) if self.decided is None else ground_of(scene)

    def undecided(self, now: float) -> SchedulerState:
        """Return a state that knows everything and has started no job that waits by the rows."""
        return self.state if self.decided is None else standing(self.rows.facts(), now)

    def told_anew(self, job_id: str) -> list[Delta]:
        """Return the facts that make the state forget a job and decide about it again."""
        again = self._again({job_id})
        return [*map(JobEnded, sorted(again)), *self._facts_of(again)]

    # --- following the rows -------------------------------------------------------------------
    def _holds_what_is_gone(self) -> bool:
        """Whether a job holds places on a node that is gone.

        The engine remembers such a node; a new engine would not.
        """
        gone = self._nodes.keys() - self.rows.nodes.keys()
        jobs = self.rows.jobs.values()
        return bool(gone) and any(not gone.isdisjoint(_on(told)) for told in jobs)

    # --- facts for the engine -----------------------------------------------------------------
    def _changes(self) -> Iterator[Delta]:
        rows = self.rows
        nodes = {name for name, told in rows.nodes.items() if self._nodes.get(name) is not told}
        nodes |= self._nodes.keys() - rows.nodes.keys()
        again = self._told_again(nodes)
        for job in again:
            if job in self.state.jobs:
                yield JobEnded(job)
        yield from self._tenancy_changes()
        for name in sorted(nodes):
            yield from _node_changes(self._nodes.get(name), rows.nodes.get(name), name)
        yield from self._facts_of(again)
        self._tenancy, self._nodes, self._jobs = rows.tenancy, rows.nodes, rows.jobs

    def _facts_of(self, jobs: Iterable[str]) -> Iterator[Delta]:
        rows = self.rows
        told = sorted((rows.jobs[job] for job in jobs if job in rows.jobs), key=lambda j: j.order)
        for one in told:
            yield from one.facts
        for one in told:
            if one.history is not None:
                yield one.history

    def _told_again(self, nodes: set[str]) -> set[str]:
        """Return the jobs that the engine forgets and is told again.

        These are the jobs whose rows changed, that it decided about itself, that hold places on
        these nodes, or that wait for others.
        """
        rows = self.rows
        again = {job for job, told in rows.jobs.items() if self._jobs.get(job) is not told}
        again |= self._jobs.keys() - rows.jobs.keys()
        if self.decided is not None:
            again |= jobs_in(self.decided)
        if nodes:
            again.update(job for job, told in self._jobs.items() if not nodes.isdisjoint(_on(told)))
        return self._again(again)

    def _again(self, jobs: set[str]) -> set[str]:
        """Return the jobs with those that wait for others, if there are any."""
        if not jobs:
            return jobs
        rows = self.rows.jobs.items()
        return jobs.union(i for i, j in rows if j.request.after or j.request.after_ok)

    def _tenancy_changes(self) -> Iterator[Delta]:
        before = {type(fact): fact for fact in self._tenancy}
        for fact in self.rows.tenancy:
            if before.get(type(fact)) == fact:
                continue
            # The state itself knows what was held since, and what moves may lose.
            if isinstance(fact, PastUse):
                anew = self._counts_anew(before)
            else:
                anew = not isinstance(fact, MovesBefore) or not before
            if anew:
                yield fact

    def _counts_anew(self, before: dict[type, Delta]) -> bool:
        told = before.get(PolicyChanged)
        policy = self.rows.policy
        return not isinstance(told, PolicyChanged) or (
            half_life_of(told.policy), told.policy.fair_users
        ) != (half_life_of(policy), policy.fair_users)  # fmt: skip


def _node_changes(before: KeptNode | None, after: KeptNode | None, name: str) -> Iterator[Delta]:
    old = {fact.uid: fact for fact in _others(before)}
    new = {fact.uid: fact for fact in _others(after)}
    for uid in old:
        if uid not in new:
            yield OtherPodRemoved(uid)
    if after is None:
        yield NodeRemoved(name)
        return
    for fact in after.facts:
        if not (isinstance(fact, OtherPodChanged) and old.get(fact.uid) == fact):
            yield fact


def _others(node: KeptNode | None) -> Iterable[OtherPodChanged]:
    facts = node.facts if node is not None else ()
    return [fact for fact in facts if isinstance(fact, OtherPodChanged)]


def _on(told: JobFacts) -> Iterator[str]:
    """Yield the nodes on which a job holds places."""
    for fact in told.facts:
        if isinstance(fact, JobRestored):
            yield from (place.node for place in fact.placements)
