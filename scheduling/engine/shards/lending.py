"""Decide which nodes the wide scope requests from its shards (docs/decisions/0003-shards.md).

The engine itself answers: what would start if the wide scope had the empty nodes of the shards? So
queueing, quota, order and placement are the same as for any other decision.
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

FIRST = 8  # how many nodes to try first besides the empty ones; each further step doubles it


class WideOutlook:
    """All nodes of a cluster, as the wide scope would see them if it owned them.

    Nodes are kept from one question to the next, and the engine is told only what changed. Jobs
    are passed with each question and forgotten at the next.
    """

    def __init__(self) -> None:
        self._state = SchedulerState()
        self._nodes: dict[str, tuple[Node, bool]] = {}  # the node, and whether it is closed
        self._others: set[str] = set()
        self._jobs: list[str] = []

    def what_if(
        self, known: Sequence[Delta], nodes: Mapping[str, Node], taken: Collection[str], now: float
    ) -> CycleResult:
        """Return the cycle that would run with all nodes, placing nothing more on those `taken`.

        `known`: tenants, policy, pods of others, and the running and waiting jobs of the wide
        scope. Reasons of jobs that do not start are those for the whole cluster. Starts of running
        gangs that would grow are left out: they only grow on the nodes of the wide scope.
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
        """Return nodes on which the job could start once they are empty; none if it never could.

        `taken`: GPU-milli that jobs of the shards hold, by node. The nodes with the least are tried
        first, because they are likely to be empty soonest and cost the shards least.
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
    """Return the node with scheduling disabled."""
    return replace(node, schedulable=False)
