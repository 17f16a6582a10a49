"""A state of the engine that follows the rows: built once, then told what has changed.

It has decided all that a scheduler would decide at once, so that a question costs what it asks and
no more. What it decided by itself it takes back when it looks again: rows tell what became of it.
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

BASE_S = 10.0  # for which it is taken to go on as it was found to, while nothing changes


class KeptState:
    """`rows`: what it knows. `state`: to be asked on a copy, or in a process of its own, since who
    asks changes it. `decided`: what it decided by itself at the last look; None = nothing.
    `run_times`: of jobs that have ended. `base`: how it goes on, by what is known, as somebody who
    asked about a change has found out a moment ago; None = nobody has. `changes`: how often it was
    told or decided something."""

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
        """Take over what has changed in the rows, and decide what is to be decided at `now`, in
        seconds since the epoch."""
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
        """What the engine is to be told of run times, as its scheduler is."""
        if not self.rows.policy.plans_by_learned:
            self._learned = None
            return []
        if self._learned is None:
            self._learned = LearnedTimes(self.run_times, self._name_of, learns=False)
        return self._learned.follow(changes, self.state.jobs, at)

    def learned_of(self, asked: JobSubmitted, now: float) -> list[Delta]:
        """What the engine would be told of the run time of a job that is submitted at `now`."""
        return self._learn([asked], now)

    def _name_of(self, job_id: str) -> str:
        return self.rows.names.get(job_id, "")

    # --- for whoever asks, in a process of its own --------------------------------------------
    def ground(self, now: float) -> Ground:
        """What runs ahead begin with, at `now` in seconds since the epoch."""
        now = max(now, self.state.cluster.now)
        scene = scene_of(self.rows.facts(), now, self.rows.names)
        return Ground(scene, self.state) if self.decided is None else ground_of(scene)

    def undecided(self, now: float) -> SchedulerState:
        """A state that has been told all, and has started nobody who waits by the rows."""
        return self.state if self.decided is None else standing(self.rows.facts(), now)

    def told_anew(self, job_id: str) -> list[Delta]:
        """What lets the state forget what it knows of a job and decide about it again."""
        again = self._again({job_id})
        return [*map(JobEnded, sorted(again)), *self._facts_of(again)]

    # --- following the rows -------------------------------------------------------------------
    def _holds_what_is_gone(self) -> bool:
        """Whether a job holds places on a node that is gone, of which the engine remembers what it
        was, as one that is told all anew would not."""
        gone = self._nodes.keys() - self.rows.nodes.keys()
        jobs = self.rows.jobs.values()
        return bool(gone) and any(not gone.isdisjoint(_on(told)) for told in jobs)

    # --- what the engine is told --------------------------------------------------------------
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
        """The jobs of which the engine forgets what it knows, to be told it anew: those of which
        rows say something else, those that it decided about itself, those that hold places on
        these nodes, and those that wait for others."""
        rows = self.rows
        again = {job for job, told in rows.jobs.items() if self._jobs.get(job) is not told}
        again |= self._jobs.keys() - rows.jobs.keys()
        if self.decided is not None:
            again |= jobs_in(self.decided)
        if nodes:
            again.update(job for job, told in self._jobs.items() if not nodes.isdisjoint(_on(told)))
        return self._again(again)

    def _again(self, jobs: set[str]) -> set[str]:
        """With those that wait for others, if any."""
        if not jobs:
            return jobs
        rows = self.rows.jobs.items()
        return jobs.union(i for i, j in rows if j.request.after or j.request.after_ok)

    def _tenancy_changes(self) -> Iterator[Delta]:
        before = {type(fact): fact for fact in self._tenancy}
        for fact in self.rows.tenancy:
            if before.get(type(fact)) == fact:
                continue
            # What was held since it was told the state knows itself, and what may be lost.
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
    """The nodes on which a job holds places."""
    for fact in told.facts:
        if isinstance(fact, JobRestored):
            yield from (place.node for place in fact.placements)
