"""The strategy `fragmentation`: FragmentationGradient (fragmentation.py) on the pools of a cluster.

All pools with GPUs are judged together. So nodes can be compared across the models that a pod
accepts, and models are kept for the pods that cannot do without them.

The typical mix is what was requested lately (`ClusterState.asks`), or, if nobody counted that, the
pods that hold places. It is learned and priced when the strategy is first used, and again each time
the committed placements have doubled, at the latest every thousand placements
(`ClusterState.typical`); never while a statement is open. Copies of the cluster share what was
learned, so a what-if decides as the cluster would.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np

from scheduling.engine.cluster.cluster import Asked, ClusterState
from scheduling.engine.native import copied_by_fields
from scheduling.engine.placement.fit import share_milli
from scheduling.engine.placement.strategies.fragmentation import (
    Floats,
    FragmentationGradient,
    Ints,
    PodShape,
    Potential,
    Ranking,
    TypicalMix,
)
from scheduling.engine.placement.view import PoolView, numbers
from scheduling.engine.types import MILLI, NO_GPUS, PodSetSpec

# After skipping this many ranked nodes that are not allowed, look at all nodes instead.
LOOKED_AT: Final = 64
NOWHERE: Final = (-1, -np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What judges the nodes of these GPU models; positions in `models` are the model numbers."""

    potential: Potential
    models: tuple[str, ...]


copied_by_fields(Learned)


class ClusterGradient(FragmentationGradient):
    """The gradient over all nodes with GPUs.

    The rows of a pool begin at `low`. They follow the cluster's columns when `follow` is called.
    """

    def __init__(self, state: ClusterState, learned: Learned | None) -> None:
        """`learned` judges the nodes; None = learn now."""
        pools = state.index.pools
        self.models = tuple(model for model in pools if model != NO_GPUS)
        slots: list[int] = []
        numbered: list[int] = []
        self.low: dict[str, int] = {}
        for number, model in enumerate(self.models):
            self.low[model] = len(slots)
            slots += pools[model].layout.slots
            numbered += [number] * pools[model].layout.size
            # From now on the pool notes which of its nodes change.
            pools[model].gradient = self
            pools[model].touched.clear()
        width = _width(state, slots) if learned is None else learned.potential.width
        cpu = np.array([state.cpu[slot] for slot in slots], np.int64)
        free = np.array([_free_milli(state, slot, width) for slot in slots], np.int64)
        model_of = np.array(numbered, np.int64)
        capacity = sum(state.capacity_milli(model) for model in self.models)
        if learned is None:
            learned = _learn(state, self.models, (cpu, free, model_of), capacity)
        super().__init__(cpu, free, model_of, learned.potential)
        self.learned = learned

    def learn(self, state: ClusterState) -> None:
        """Learn the typical mix again and judge the nodes by it."""
        capacity = sum(state.capacity_milli(model) for model in self.models)
        self.learned = _learn(state, self.models, (self.cpu, self.free, self.model), capacity)
        self.judge_by(self.learned.potential)

    def follow(self, state: ClusterState) -> None:
        """Update the nodes that changed since the last call."""
        pools = state.index.pools
        for model, low in self.low.items():
            pool = pools[model]
            for number in sorted(pool.touched):
                slot, row = pool.layout.slots[number], low + number
                self.cpu[row] = state.cpu[slot]
                self.free[row] = _free_milli(state, slot, self.learned.potential.width)
                self.note(row)
            pool.touched.clear()


def pick(view: PoolView, left: int) -> tuple[int, int]:  # noqa: ARG001 - one signature for all
    """Return (node number or -1, pods to place there).

    It is the node whose potential to take typical pods falls least.
    """
    return best(view)[0], 1


def gain_of(state: ClusterState, pod_set: PodSetSpec) -> float:
    """Return the best change of potential for a pod of a set that names one GPU model.

    Minus infinity if the pod fits nowhere.
    """
    found = -np.inf
    pool = state.index.pools.get(pod_set.gpu_models[0]) if pod_set.gpu_models else None
    if pool is None or pool.layout.model == NO_GPUS:
        return found
    mask = state.index.admitted(state, pool, pod_set)
    for size, nodes in pool.layout.memory_sizes if pod_set.gpu_memory_mib else ((0, mask),):
        milli = share_milli(size, pod_set)
        if milli:
            found = max(found, best(PoolView(state, pool, pod_set, milli, mask & nodes))[1])
    return found


def best(view: PoolView, opened: bool = False) -> tuple[int, float]:
    """Return the node whose potential falls least (-1 if none fits), and the change.

    `opened`: consider only nodes that have a partly used GPU for the share.
    """
    if view.layout.model == NO_GPUS:
        number = view.fullest(0)
        return number, np.inf if number >= 0 else -np.inf
    gradient, model = gradient_of(view.state), view.layout.model
    shape = PodShape(view.pod_set.cpu_milli, view.gpus, view.milli if view.gpus else 0)
    low, scores = gradient.low[model], gradient.scores(shape)
    ranking = scores.ranked.get(gradient.models.index(model), [])
    passed: Ranking = []
    found = -1
    while ranking and len(passed) < LOOKED_AT:
        loss, row = ranking[0]
        if scores.gain[row] == -loss:
            if _is_open(view, row - low, opened) and view.fits(row - low):
                found = row
                break
            passed.append((loss, row))
        heappop(ranking)
    for entry in passed:
        heappush(ranking, entry)
    if found >= 0:
        return found - low, float(scores.gain[found])
    if not ranking:
        return NOWHERE
    return _best_of_all(view, scores.gain[low : low + view.layout.size], opened)


def _is_open(view: PoolView, number: int, opened: bool) -> bool:
    """Whether a node is allowed, usable, and has enough GPUs.

    The free counts used here leave out the unknown devices that pods of others hold.
    """
    if not view.mask >> number & 1:
        return False
    pool = view.pool
    if not opened and pool.free_at[number] >= view.gpus:
        return True
    return bool(view.share and pool.share_at[number] >= view.milli and view.holds_share(number))


def _best_of_all(view: PoolView, gain: Floats, opened: bool) -> tuple[int, float]:
    """Do what `best` does by looking at all nodes, if most of the best ones are not allowed."""
    at = numbers(view.mask & _open_nodes(view, opened), view.layout.size)
    while len(at):
        first = int(gain[at].argmax())
        number, value = int(at[first]), float(gain[at[first]])
        if value == -np.inf:
            break
        if view.fits(number) and _is_open(view, number, opened):
            return number, value
        at = np.delete(at, first)
    return NOWHERE


def _open_nodes(view: PoolView, opened: bool) -> int:
    """Return the usable nodes with enough GPUs, counted as in `_is_open`."""
    found = 0
    for free in range(view.gpus, len(view.pool.bits)) if not opened else ():
        found |= view.pool.bits[free]
    if view.share:
        for key, nodes in view.pool.shares.items():
            if key >= view.milli:
                found |= nodes
    return found


def gradient_of(state: ClusterState) -> ClusterGradient:
    """Return the gradient of a cluster, up to date."""
    index = state.index
    learned: Learned | None = state.typical.get("")
    known = index.gradient
    if isinstance(known, ClusterGradient):
        known.follow(state)
        if learned is None:
            known.learn(state)
            state.typical[""] = known.learned
        if learned is known.learned or learned is None:
            return known
    if learned is not None and not _still_fits(state, learned):
        learned = None
    known = index.gradient = ClusterGradient(state, learned)
    state.typical[""] = known.learned
    return known


def _learn(
    state: ClusterState, models: tuple[str, ...], nodes: tuple[Ints, Ints, Ints], capacity: int
) -> Learned:
    """Learn the typical mix and price the nodes by it.

    `nodes`: for each node, free CPU, free GPU-milli by device, and model number.
    """
    mix = TypicalMix()
    for shape, pods in sorted(_asked_shapes(state, models).items()):
        mix.arrived(shape, pods)
    return Learned(Potential(mix, *nodes, capacity), models)


def _still_fits(state: ClusterState, learned: Learned) -> bool:
    """Whether what was learned can judge the nodes that exist now."""
    pools = state.index.pools
    if learned.models != tuple(model for model in pools if model != NO_GPUS):
        return False
    slots = [slot for pool in pools.values() for slot in pool.layout.slots]
    return learned.potential.width >= _width(state, slots)


def _asked_shapes(state: ClusterState, models: Sequence[str]) -> dict[PodShape, float]:
    """Return shapes and counts of the pods requested lately, or else of those that hold places."""
    mix: dict[PodShape, float] = {}
    for (cpu, gpus, milli, memory, wanted), pods in (state.asked or _held(state)).items():
        if not gpus:
            continue
        here = [i for i, model in enumerate(models) if not wanted or model in wanted]
        for share, mask in _by_share(state, models, here, milli, memory):
            shape = PodShape(cpu, gpus, share, mask if len(here) < len(models) or memory else -1)
            mix[shape] = mix.get(shape, 0.0) + pods * mask.bit_count() / max(len(here), 1)
    return mix


def _by_share(
    state: ClusterState, models: Sequence[str], here: Sequence[int], milli: int, memory: int
) -> Iterable[tuple[int, int]]:
    """Return (GPU-milli, models as a bit mask) of a pod; shares by memory differ between models."""
    if not memory:
        return [(milli, sum(1 << i for i in here))]
    found: dict[int, int] = {}
    for i in here:
        sizes = state.index.pools[models[i]].layout.memory_sizes
        share = share_milli(sizes[0][0], PodSetSpec("", 1, 1, gpu_memory_mib=memory))
        if share:
            found[share] = found.get(share, 0) | 1 << i
    return found.items()


def _held(state: ClusterState) -> dict[Asked, float]:
    """Return requests and counts of the pods that hold places, each as accepting any model."""
    mix: dict[Asked, float] = {}
    for node in state.facts:
        if node is None:
            continue
        for key in state.pods_on(node.name):
            booking = state.booking(key)
            if booking is not None and booking.placement.devices:
                p = booking.placement
                asked = (booking.pod_set.cpu_milli, len(p.devices), p.milli, 0, ())
                mix[asked] = mix.get(asked, 0.0) + 1
    return mix


def _width(state: ClusterState, slots: Sequence[int]) -> int:
    """Return the number of device positions needed for any of these nodes, at least 1."""
    nodes = [state.facts[slot] for slot in slots]
    devices = (device.index for node in nodes if node is not None for device in node.devices)
    return max(devices, default=0) + 1


def _free_milli(state: ClusterState, slot: int, width: int) -> list[int]:
    """Return the GPU-milli left on each device; 0 if it is faulty or missing."""
    free, partial = state.free_mask[slot], state.partial[slot]
    return [MILLI if free >> i & 1 else partial.get(i, 0) for i in range(width)]
