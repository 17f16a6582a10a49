"""Faults of nodes: drawn by published figures, and what they leave of a node."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.random import PCG64, Generator

from scheduling.engine.types import Node
from scheduling.simulator.model import HardwareFault

DAY = 86400.0


def faults_of(
    nodes: Sequence[Node], *, per_1000_node_days: float, seed: int
) -> Iterator[HardwareFault]:
    """Yield faults of whole nodes in order of time, from 0 on and without end; none at a rate of 0.

    `per_1000_node_days` counts events (docs/workload.md, Faults). 2 % of the nodes fail ten times
    as often; 4 % of the events hit several nodes of one leaf; repair is lognormal with median 4 h
    and p95 48 h.
    """
    rate = per_1000_node_days * len(nodes) / 1000 / DAY
    if not rate:
        return
    rng = Generator(PCG64(seed))
    names = [n.name for n in nodes]
    leaf_of = {n.name: n.topology[0] or n.name for n in nodes}
    by_leaf: dict[str, list[str]] = {}
    for name in names:
        by_leaf.setdefault(leaf_of[name], []).append(name)
    weights = list(accumulate(np.where(rng.random(len(names)) < 0.02, 10.0, 1.0).tolist()))
    sigma = float(np.log(48 / 4) / 1.6449)
    at = 0.0
    while True:
        at += float(rng.exponential(1 / rate))
        chosen = bisect_right(weights, float(rng.random()) * weights[-1], 0, len(names) - 1)
        hit = [names[chosen]]
        if rng.random() < 0.04:
            mates = by_leaf[leaf_of[hit[0]]]
            hit += [m for m in mates if m != hit[0]][: int(rng.integers(1, 4))]
        for name in hit:
            repair = 4 * 3600 * float(np.exp(sigma * rng.standard_normal()))
            yield HardwareFault(at, name, repair)


class Outages:
    """The nodes of a run, as their facts and the faults not yet repaired make them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.facts = {n.name: n for n in nodes}
        self._down: dict[str, list[HardwareFault]] = {}

    def begin(self, fault: HardwareFault) -> Node:
        self._down.setdefault(fault.node, []).append(fault)
        return self._now(fault.node)

    def end(self, fault: HardwareFault) -> Node:
        self._down[fault.node].remove(fault)
        return self._now(fault.node)

    def changed(self, node: Node) -> Node:
        """Take in new facts of a node; return the node as it is now."""
        self.facts[node.name] = node
        return self._now(node.name)

    def _now(self, name: str) -> Node:
        node = self.facts[name]
        for fault in self._down.get(name, ()):
            node = broken(node, fault.device)
        return node


def broken(node: Node, device: int | None) -> Node:
    """Return the node with one GPU out of service; with all of them if `device` is None."""
    devices = tuple(
        replace(d, healthy=False) if device is None or d.index == device else d
        for d in node.devices
    )
    return replace(node, devices=devices, schedulable=node.schedulable and device is not None)
