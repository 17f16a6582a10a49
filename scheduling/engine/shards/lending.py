"""Which nodes the wide scope asks its shards for (docs/decisions/0003-shards.md).

The engine itself is asked: what would start if the nodes that stand empty in the shards were
here? Queueing, quota, order and placement are then those of every other decision.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import CycleResult
from scheduling.engine.deltas import (
    Delta,
    JobEnded,
    JobRestored,
    JobSubmitted,
    NodeChanged,
    NodeRemoved,
    OtherPodChanged,
    OtherPodRemoved,
)
from scheduling.engine.types import JobRequest, Node

FIRST = 8  # nodes that are tried first beside the empty ones, then twice as many, and so on


class WideOutlook:
    """All nodes of a cluster, as the wide scope would see them if they were its own.

    Nodes are kept from one question to the next, and only what changed of them is told to the
    engine; jobs are given with each question and forgotten after it.
    """

    def __init__(self) -> None:
        self._state = SchedulerState()
        self._nodes: dict[str, tuple[Node, bool]] = {}  # with whether it is closed
        self._others: set[str] = set()
        self._jobs: list[str] = []

    def what_if(
        self, known: Sequence[Delta], nodes: Mapping[str, Node], taken: Collection[str], now: float
    ) -> CycleResult:
        """The cycle that would run with all nodes, where nothing more may be placed on `taken`.

        `known`: tenants, policy, pods of others, what the wide scope runs and what waits in it.
        The reasons of jobs that do not start are those that hold for the whole cluster. Gangs that
        run and would grow are left out: they grow on what the wide scope has.
        """
        deltas: list[Delta] = [JobEnded(job_id) for job_id in self._jobs]
        deltas += self._forget_pods({d.uid for d in known if isinstance(d, OtherPodChanged)})
        deltas += self._changed_nodes(nodes, frozenset(taken))
        self._jobs = [d.job.id for d in known if isinstance(d, JobRestored | JobSubmitted)]
        running = {d.job.id for d in known if isinstance(d, JobRestored) and d.job.gang}
        found = run_cycle(self._state, [*deltas, *known], now)
        return found._replace(started=tuple(s for s in found.started if s.job_id not in running))

    def nodes_to_empty(
        self,
        known: Sequence[Delta],
        job: JobRequest,
        nodes: Mapping[str, Node],
        taken: Mapping[str, int],
        now: float,
    ) -> frozenset[str]:
        """Nodes on which the job could start once they are empty; none when it never could.

        `taken`: GPU-milli by node that jobs of the shards hold. Those that hold least are tried
        first: they are likely to be empty soonest, and cost the shards least.
        """
        by_load = sorted(taken, key=lambda name: (taken[name], name))
        opened, more = 0, FIRST
        while True:
            found = self.what_if([*known, JobSubmitted(job)], nodes, by_load[opened:], now)
            for start in found.started:
                if start.job_id == job.id:
                    return frozenset(p.node for p in start.placements)
            if opened >= len(by_load):
                return frozenset()
            opened, more = opened + more, 2 * more

    def _forget_pods(self, others: set[str]) -> Iterable[Delta]:
        gone, self._others = self._others - others, others
        return (OtherPodRemoved(uid) for uid in sorted(gone))

    def _changed_nodes(self, nodes: Mapping[str, Node], taken: Set[str]) -> Iterable[Delta]:
        self._state.cleared.open({name: node for name, node in nodes.items() if name in taken})
        for name in sorted(self._nodes.keys() - nodes.keys()):
            del self._nodes[name]
            yield NodeRemoved(name)
        for name, node in nodes.items():
            now = node, name in taken
            if self._nodes.get(name) != now:
                self._nodes[name] = now
                yield NodeChanged(closed(node) if name in taken else node)


def closed(node: Node) -> Node:
    """The node while nothing more may be placed on it."""
    return replace(node, schedulable=False)
