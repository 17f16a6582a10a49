"""The strategy `fragmentation`: FragmentationGradient (fragmentation.py) on the pools of a cluster.

The typical mix is what holds places in the pool. It is learned, and priced, when the strategy is
first used and again after every doubling of the committed placements, at the latest every thousand
(`ClusterState.typical`), not while a statement is open. Copies of the cluster share what was
learned, so that a what-if decides as the cluster would.
"""

from collections.abc import Sequence

import numpy as np

from scheduling.engine.cluster import ClusterState
from scheduling.engine.index import PoolIndex
from scheduling.engine.placement.fragmentation import (
    FragmentationGradient,
    Potential,
    Shape,
    TypicalMix,
)
from scheduling.engine.placement.view import View, numbers
from scheduling.engine.types import MILLI


class PoolGradient(FragmentationGradient):
    """The gradient over one pool; nodes by number, rows follow the columns when asked."""

    def __init__(self, state: ClusterState, pool: PoolIndex, learned: Potential | None) -> None:
        """`learned` judges the nodes; None = learn it from what holds places in the pool now."""
        slots, model = pool.layout.slots, pool.layout.model
        width = _width(state, slots) if learned is None else learned.width
        cpu = np.array([state.cpu[slot] for slot in slots], np.int64)
        free = np.array([_free_milli(state, slot, width) for slot in slots], np.int64)
        numbered = np.zeros(len(slots), np.int64)  # one model
        if learned is None:
            mix = TypicalMix()
            for shape, pods in sorted(_held_shapes(state, model).items()):
                mix.arrived(shape, pods)
            learned = Potential(mix, cpu, free, numbered, state.capacity_milli(model))
        super().__init__(cpu, free, numbered, learned)
        self.learned = learned

    def follow(self, state: ClusterState, pool: PoolIndex) -> None:
        """Take over the nodes that changed since the last call."""
        for number in sorted(pool.touched):
            slot = pool.layout.slots[number]
            self.cpu[number] = state.cpu[slot]
            self.free[number] = _free_milli(state, slot, self.learned.width)
            self._copies[number] = self._potential.copies(self.free[number : number + 1])[0]
            self._changed.append(number)
        pool.touched.clear()


def pick(view: View, left: int) -> tuple[int, int]:  # noqa: ARG001 - one signature for all
    """(node number or -1, pods to place there): the node whose potential to take the pool's
    typical pods falls least."""
    state, pool = view.state, view.pool
    gradient = _gradient(state, pool)
    shape = Shape(view.pod_set.cpu_milli, view.gpus, view.milli)
    usable = np.zeros(view.layout.size, np.bool_)
    usable[numbers(view.mask & _open_nodes(view), view.layout.size)] = True
    while True:
        choice = gradient.choose(shape, usable)
        if choice is None:
            return -1, 0
        if view.fits(choice.node):
            return choice.node, 1
        usable[choice.node] = False


def _open_nodes(view: View) -> int:
    """Usable nodes with GPUs enough, those that pods of others hold unseen not counted."""
    found = 0
    for free in range(view.gpus, len(view.pool.bits)):
        found |= view.pool.bits[free]
    if view.share:
        for key, nodes in view.pool.shares.items():
            if key >= view.milli:
                found |= nodes
    return found


def _gradient(state: ClusterState, pool: PoolIndex) -> PoolGradient:
    learned = state.typical.get(pool.layout.model)
    known = pool.gradient
    if not isinstance(known, PoolGradient) or known.learned is not learned:
        if learned is not None and learned.width < _width(state, pool.layout.slots):
            learned = None
        known = pool.gradient = PoolGradient(state, pool, learned)
        state.typical[pool.layout.model] = known.learned
        pool.touched.clear()
    known.follow(state, pool)
    return known


def _held_shapes(state: ClusterState, model: str) -> dict[Shape, int]:
    """Shapes of the pods that hold places in the pool, and how many."""
    mix: dict[Shape, int] = {}
    for node in state.facts:
        if node is None or node.gpu_model != model:
            continue
        for key in state.pods_on(node.name):
            booking = state.booking(key)
            if booking is not None and booking.placement.devices:
                p = booking.placement
                shape = Shape(booking.pod_set.cpu_milli, len(p.devices), p.milli)
                mix[shape] = mix.get(shape, 0) + 1
    return mix


def _width(state: ClusterState, slots: Sequence[int]) -> int:
    """GPUs of the largest node, at least 1."""
    nodes = [state.facts[slot] for slot in slots]
    devices = (device.index for node in nodes if node is not None for device in node.devices)
    return max(devices, default=0) + 1


def _free_milli(state: ClusterState, slot: int, width: int) -> list[int]:
    """GPU-milli left on each device; 0 where it is bad or missing."""
    free, partial = state.free_mask[slot], state.partial[slot]
    return [MILLI if free >> i & 1 else partial.get(i, 0) for i in range(width)]
