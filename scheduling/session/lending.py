"""Nodes change hands: shards lend idle nodes to the wide scope, which gives them back."""

import time
from collections.abc import Iterable

from scheduling.engine.cycle import SchedulerState
from scheduling.engine.decisions import Blocked, CycleResult, Waiting
from scheduling.engine.deltas import (
    Delta,
    JobSubmitted,
    OtherScopesChanged,
    PastUse,
    PolicyChanged,
)
from scheduling.engine.queue.order import order_key
from scheduling.engine.shards.division import WIDE
from scheduling.engine.shards.lending import WideOutlook
from scheduling.engine.states import HOLDING, WAITING
from scheduling.engine.verdict import NO_ROOM, Verdict
from scheduling.session.changes import Changes
from scheduling.session.memory import divided
from scheduling.session.memory.live import Handover, LiveJob, WantedNodes
from scheduling.session.memory.nodes import Nodes

PLAN_S = 0.5  # how often the wide scope plans which nodes it needs
AT_MOST = 0.1  # the share of its time that planning may take


def give(nodes: Nodes, names: Iterable[str], to: str, changes: Changes) -> None:
    """Drop the nodes from the engine's state now; the row changes at the end of the pass."""
    chosen = frozenset(names)
    if chosen:
        nodes.leave(chosen)
        changes.life.out.writes.handovers.append(Handover(chosen, to))


class Lender:
    """A shard lends nodes that have no pod of Kant, and sends nodes home that belong elsewhere."""

    def __init__(self, changes: Changes, nodes: Nodes) -> None:
        self._changes = changes
        self._nodes = nodes

    def run(self, state: SchedulerState, _: float) -> None:
        if not self._changes.looked:
            return
        nodes = self._nodes
        wanted, empty = divided.wanted(self._changes.cluster_id)
        here = {name for name in wanted & nodes.mine if name in nodes.facts}
        strange = {name for name in nodes.strange - here if name in nodes.facts}
        idle = {name for name in here | strange if state.is_idle(name)}
        nodes.close((here if empty else set()) | strange)
        give(nodes, here & idle, WIDE, self._changes)
        by_home: dict[str, set[str]] = {}
        for name in strange & idle:
            by_home.setdefault(nodes.home(name), set()).add(name)
        for home, names in sorted(by_home.items()):
            give(nodes, names, home, self._changes)


class Borrower:
    """The wide scope asks for the nodes on which its waiting jobs would start.

    It asks for idle nodes as long as they are idle. For a job that has been blocked longer than the
    policy's `backfill_after_s`, the shards keep nodes free until the wide scope has all of them.
    """

    def __init__(self, changes: Changes, nodes: Nodes) -> None:
        self._changes = changes
        self._nodes = nodes
        self._outlook = WideOutlook()
        self._wanted: WantedNodes | None = None  # as last written
        self._needed: frozenset[str] = frozenset()
        self._emptied_for = ""  # the job for which nodes are kept free
        self._told: dict[str, Verdict] = {}
        self._plan_at = 0.0

    def run(self, state: SchedulerState, now: float) -> None:
        clock = time.monotonic()
        if clock < self._plan_at:
            return
        self._plan(state, now)
        self._ask()
        self._give_back(state)
        self._plan_at = clock + max(PLAN_S, (time.monotonic() - clock) / AT_MOST)

    def _plan(self, state: SchedulerState, now: float) -> None:
        waiting = self._waiting()
        self._told = {i: verdict for i, verdict in self._told.items() if i in waiting}
        if not waiting:
            self._emptied_for, self._needed = "", frozenset()
            return
        nodes = {name: facts.node for name, facts in self._nodes.facts.items()}
        busy = divided.busy_nodes(self._changes.cluster_id)
        taken = {name: milli for name, milli in busy.items() if name not in self._nodes.mine}
        known = self._known(state)
        wishes = [JobSubmitted(j.request, j.not_before, j.is_held) for j in waiting.values()]
        if self._emptied_for:
            others = nodes.keys() - self._needed - self._nodes.mine
            found = self._outlook.what_if([*known, *wishes], nodes, others, now)
            if any(start.job_id == self._emptied_for for start in found.started):
                if self._all_here(state):
                    self._emptied_for = ""  # all of them open together
                return
        found = self._outlook.what_if([*known, *wishes], nodes, taken, now)
        self._tell(found, waiting, now)
        self._emptied_for = ""
        self._needed = frozenset(p.node for start in found.started for p in start.placements)
        head = self._overdue(found, waiting, now)
        if head is not None:
            empty = self._outlook.nodes_to_empty(known, head.request, nodes, taken, now)
            if empty:
                self._emptied_for, self._needed = head.id, empty

    def _waiting(self) -> dict[str, LiveJob]:
        jobs = self._changes.life.jobs
        for job in jobs.values():
            if job.state in HOLDING and job.blocked_since is not None:
                self._note_blocked(job, None)
        return {i: job for i, job in jobs.items() if job.state in WAITING and not job.pods}

    def _note_blocked(self, job: LiveJob, since: float | None) -> None:
        job.blocked_since = since
        self._changes.life.out.writes.blocked.append(Blocked(job.id, since))

    def _known(self, state: SchedulerState) -> list[Delta]:
        """Return what the outlook has to know, such as tenants, past use and running jobs."""
        life = self._changes.life
        known: list[Delta] = [
            PolicyChanged(life.scope.policy),
            self._changes.tenancy,
            self._changes.queues,
        ]
        # The outlook counts all nodes as this scope's own, so only `held` is told.
        known += (OtherScopesChanged(self._changes.others.held), PastUse(state.usage.past))
        known += life.foreign.not_of_kant()
        for job in life.jobs.values():
            restored = job.restored()
            if restored.placements:
                known.append(restored)
        return known

    def _all_here(self, state: SchedulerState) -> bool:
        mine = self._nodes.mine
        return all(name in mine and state.is_idle(name) for name in self._needed)

    def _overdue(
        self, found: CycleResult, waiting: dict[str, LiveJob], now: float
    ) -> LiveJob | None:
        """Return the first job that lacks only nodes, once it has been blocked too long."""
        reasons = {w.job_id: w.verdict.reason for w in found.waiting}
        started = {s.job_id for s in found.started}
        lacking = [
            job
            for job_id, job in waiting.items()
            if reasons.get(job_id) in NO_ROOM and job_id not in started
        ]
        head = min(
            lacking,
            key=lambda j: order_key(j.request, front=j.front, stands_at=j.stands_at),
            default=None,
        )
        if head is None:
            return None
        if head.blocked_since is None:
            self._note_blocked(head, now)
        since = now if head.blocked_since is None else head.blocked_since
        return head if now - since >= self._changes.life.scope.policy.backfill_after_s else None

    def _tell(self, found: CycleResult, waiting: dict[str, LiveJob], now: float) -> None:
        """Report reasons that hold for the whole cluster, if they changed or the job has none."""
        for news in found.waiting:
            job = waiting.get(news.job_id)
            if job is not None and (not job.reason or self._told.get(job.id) != news.verdict):
                self._told[job.id] = news.verdict
                self._changes.life.waiting(Waiting(news.job_id, news.verdict), now)

    def _ask(self) -> None:
        wanted = WantedNodes(self._needed - self._nodes.mine, bool(self._emptied_for))
        if wanted != self._wanted:
            self._wanted = self._changes.life.out.writes.wanted = wanted

    def _give_back(self, state: SchedulerState) -> None:
        nodes = self._nodes
        nodes.close(self._needed if self._emptied_for else ())
        by_home: dict[str, set[str]] = {}
        for name in nodes.mine - self._needed:
            if name in nodes.facts and state.is_idle(name):
                by_home.setdefault(nodes.home(name), set()).add(name)
        for home, names in sorted(by_home.items()):
            give(nodes, names, home, self._changes)
