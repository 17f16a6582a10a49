"""The strategy `fragmentation`: FragmentationGradient (fragmentation.py) on the pools of a cluster.

The typical mix is what holds places in the pool. It is learned when the strategy is first used
and again after every doubling of the committed placements, at the latest every thousand
(`ClusterState.typical`), never while a statement is open, so that a what-if changes no decision.
"""

import numpy as np

from scheduling.engine.cluster import ClusterState
from scheduling.engine.index import PoolIndex
from scheduling.engine.placement.fragmentation import FragmentationGradient, Shape
from scheduling.engine.placement.view import View, numbers
from scheduling.engine.types import MILLI


class PoolGradient(FragmentationGradient):
    """The gradient over one pool; nodes by number, rows follow the columns when asked."""

    def __init__(self, state: ClusterState, pool: PoolIndex, mix: dict[Shape, int]) -> None:
        slots = pool.layout.slots
        width = max(1, *(_width(state, slot) for slot in slots))
        rows = [_free_milli(state, slot, width) for slot in slots]
        cpu, capacity = [state.cpu[slot] for slot in slots], state.capacity_milli(pool.layout.model)
        super().__init__(cpu, rows, [0] * len(slots), capacity)
        self._width = width
        for shape in sorted(mix):
            self._mix.arrived(shape, mix[shape])
        self._judge()

    def follow(self, state: ClusterState, pool: PoolIndex) -> None:
        """Take over the nodes that changed since the last call."""
        for number in sorted(pool.touched):
            slot = pool.layout.slots[number]
            self.cpu[number] = state.cpu[slot]
            self.free[number] = _free_milli(state, slot, self._width)
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
    model = pool.layout.model
    if not isinstance(pool.gradient, PoolGradient) or model not in state.typical:
        mix = state.typical.get(model)
        if mix is None:
            mix = state.typical[model] = _held_shapes(state, model)
        pool.gradient = PoolGradient(state, pool, mix)
        pool.touched.clear()
    pool.gradient.follow(state, pool)
    return pool.gradient


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


def _width(state: ClusterState, slot: int) -> int:
    node = state.facts[slot]
    return 0 if node is None else max((device.index for device in node.devices), default=-1) + 1


def _free_milli(state: ClusterState, slot: int, width: int) -> list[int]:
    """GPU-milli left on each device; 0 where it is bad or missing."""
    free, partial = state.free_mask[slot], state.partial[slot]
    return [MILLI if free >> i & 1 else partial.get(i, 0) for i in range(width)]
