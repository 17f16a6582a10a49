"""Which nodes the wide scope asks its shards for (docs/decisions/0003-shards.md).

The engine itself is asked: what would start if the nodes that stand empty in the shards were
here? Queueing, quota, order and placement are then those of every other decision.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import CycleResult
from scheduling.engine.deltas import Delta, JobSubmitted, NodeChanged
from scheduling.engine.types import JobRequest, Node

FIRST = 8  # nodes that are tried first beside the empty ones, then twice as many, and so on


def what_if(
    known: Iterable[Delta], nodes: Mapping[str, Node], taken: Iterable[str], now: float
) -> CycleResult:
    """The cycle that would run with all nodes, where nothing more may be placed on `taken`.

    `known`: tenants, policy, what the wide scope runs and what waits in it. The reasons of jobs
    that do not start are those that hold for the whole cluster.
    """
    return run_cycle(SchedulerState(), [*known, *_nodes(nodes, taken)], now)


def nodes_to_empty(
    known: Iterable[Delta],
    job: JobRequest,
    nodes: Mapping[str, Node],
    taken: Mapping[str, int],
    now: float,
) -> frozenset[str]:
    """Nodes on which the job could start once they are empty; none when it never could.

    `taken`: GPU-milli by node that jobs of the shards hold. Those that hold least are tried
    first: they are likely to be empty soonest, and cost the shards least.
    """
    state = SchedulerState()
    deltas: Sequence[Delta] = [*known, *_nodes(nodes, taken), JobSubmitted(job)]
    by_load = sorted(taken, key=lambda name: (taken[name], name))
    begin, more = 0, FIRST
    while True:
        for start in run_cycle(state, deltas, now).started:
            return frozenset(p.node for p in start.placements)
        if begin >= len(by_load):
            return frozenset()
        tried = by_load[begin : begin + more]
        deltas = [NodeChanged(nodes[name]) for name in tried if name in nodes]
        begin, more = begin + more, 2 * more


def closed(node: Node) -> Node:
    """The node while nothing more may be placed on it."""
    return replace(node, schedulable=False)


def _nodes(nodes: Mapping[str, Node], taken: Iterable[str]) -> Iterable[Delta]:
    shut = frozenset(taken)
    return (
        NodeChanged(closed(node) if name in shut else node) for name, node in sorted(nodes.items())
    )
