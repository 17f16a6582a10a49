"""Fragmentation gradient: place where the potential of a node to take typical pods falls least.

For pools with fractional GPUs. The potential of a node, in GPU-milli, judged by the typical mix
of the pods that have arrived so far:

    potential = 0.1 * room - blocked - 10 * leftover

- room: what the typical pods could still get on the node, each shape weighed by its popularity
  and by how scarce its room has become in the whole cluster, so that GPUs, CPU and models that
  few nodes have are kept for those that need them (the gradient of Σ popularity × ln room);
- blocked: free GPU-milli that a typical pod cannot get because the CPU is used up;
- leftover: what the free parts of the partly used GPUs will be wasted in the end (leftover.py).

The idea of going down a gradient of expected fragmentation: Q. Weng et al., "Beware of
Fragmentation", USENIX ATC 2023. All sums are over integers in float64, hence exact: equal states
give equal choices on every machine. Ties go to the first node, then to the first GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduling.engine.placement.leftover import leftover_table
from scheduling.engine.types import MILLI

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROOM_WEIGHT, BLOCKED_WEIGHT, LEFTOVER_WEIGHT = 0.1, 1.0, 10.0
COVER = 0.98  # of the arrived pods are described by the typical shapes
SCARCE = 0.01  # of the cluster: with less room than this a shape gets no dearer
REFRESH_EVERY = 1000  # arrivals; the first refreshes follow the powers of two
REMEMBER = 20_000  # arrivals; then older ones count half, so that the mix follows the load
_SCALE = 1024.0  # of a score per GPU-milli: integers that stay far below 2**53


class Shape(NamedTuple):
    """What a pod asks of a node: whole GPUs (`gpus`, `gpu_milli` 1000) or a share of one GPU.

    `models`: bit mask of the acceptable GPU models by number, -1 = any. `gpus` 0: only CPU.
    """

    cpu_milli: int
    gpus: int
    gpu_milli: int
    models: int = -1

    @property
    def milli(self) -> int:
        return self.gpus * self.gpu_milli

    @property
    def is_share(self) -> bool:
        return self.gpus == 1 and self.gpu_milli < MILLI


class Choice(NamedTuple):
    """The node by number, and the GPUs of it: one for a share, the lowest free ones otherwise."""

    node: int
    devices: tuple[int, ...]


@dataclass(slots=True)
class _Scores:
    """Scores of all nodes for one shape, as of entry `seen` of the log of changed nodes."""

    gain: Floats
    device: Ints
    seen: int


class FragmentationGradient:
    """Nodes with what is free on them, the pods that arrived, and the choice for the next one.

    A score depends on one shape and one node only, so scores are kept per shape and only nodes
    that changed since are scored again.
    """

    def __init__(
        self, cpu_milli: Sequence[int], free_milli: Sequence[Sequence[int]], model: Sequence[int]
    ) -> None:
        """Per node: free CPU, free milli of each GPU (0 for one that is not there), model."""
        self.cpu = np.array(cpu_milli, np.int64)
        self.free = np.array(free_milli, np.int64)
        self.model = np.array(model, np.int64)
        self._capacity = max(float(self.free.sum()), 1.0)
        self._arrived: dict[Shape, float] = {}
        self._arrivals = 0
        self._refresh_at = 1
        self._changed: list[int] = []
        self._scores: dict[Shape, _Scores] = {}
        self._mix = _Mix({}, self.cpu, self.free, self.model, self._capacity)

    def arrived(self, shape: Shape) -> None:
        """Count a pod into the typical mix, placed or not."""
        self._arrived[shape] = self._arrived.get(shape, 0.0) + 1.0
        self._arrivals += 1
        if self._arrivals % REMEMBER == 0:
            self._arrived = {s: n / 2 for s, n in self._arrived.items()}
        if self._arrivals >= self._refresh_at:
            self._refresh_at += min(self._refresh_at, REFRESH_EVERY)
            self._mix = _Mix(self._arrived, self.cpu, self.free, self.model, self._capacity)
            self._scores.clear()
            self._changed.clear()

    def choose(self, shape: Shape, usable: NDArray[np.bool_] | None = None) -> Choice | None:
        """Where the pod goes; None when it fits nowhere.

        `usable`: nodes that may be taken, for whatever is not modelled here (memory, taints).
        """
        scores = self._scores_of(shape)
        gain = scores.gain if usable is None else np.where(usable, scores.gain, -np.inf)
        node = int(gain.argmax())
        if gain[node] == -np.inf:
            return None
        if shape.is_share:
            return Choice(node, (int(scores.device[node]),))
        whole = np.flatnonzero(self.free[node] == MILLI)[: shape.gpus]
        return Choice(node, tuple(whole.tolist()))

    def take(self, shape: Shape, choice: Choice) -> None:
        """Book a choice."""
        self._book(shape, choice, -1)

    def release(self, shape: Shape, choice: Choice) -> None:
        """Undo `take`."""
        self._book(shape, choice, 1)

    def _book(self, shape: Shape, choice: Choice, sign: int) -> None:
        self.cpu[choice.node] += sign * shape.cpu_milli
        for device in choice.devices:
            self.free[choice.node, device] += sign * shape.gpu_milli
        self._mix.update(choice.node, self.free)
        self._changed.append(choice.node)

    def _scores_of(self, shape: Shape) -> _Scores:
        scores = self._scores.get(shape)
        if scores is None:
            n = len(self.cpu)
            scores = _Scores(np.empty(n), np.full(n, -1), len(self._changed))
            self._scores[shape] = scores
            stale = np.arange(n)
        else:
            changed = set(self._changed[scores.seen :])
            if not changed:
                return scores
            scores.seen = len(self._changed)
            stale = np.fromiter(changed, np.int64, len(changed))
        scores.gain[stale] = -np.inf
        fits = (self.cpu[stale] >= shape.cpu_milli) & (shape.models >> self.model[stale] & 1 == 1)
        stale = stale[fits]
        if shape.is_share:
            stale, device = self._best_device(stale, shape.gpu_milli)
            scores.device[stale] = device
        else:
            whole = (self.free[stale] == MILLI).sum(axis=1)
            stale = stale[whole >= shape.gpus]
        scores.gain[stale] = self._mix.gain(
            shape, stale, self.cpu[stale], self.free[stale], scores.device[stale]
        )
        return scores

    def _best_device(self, nodes: Ints, milli: int) -> tuple[Ints, Ints]:
        """Nodes with a GPU that holds the share, and the GPU with the least waste there: of equal
        ones the fullest, then the first."""
        free = self.free[nodes]
        cost = self._mix.waste_of_share(milli)[free]
        device = cost.argmin(axis=1)
        held = cost[np.arange(len(nodes)), device] < np.inf
        return nodes[held], device[held]


class _Mix:
    """The typical shapes, their weights, and per node how many copies of each the GPUs hold."""

    def __init__(
        self, arrived: dict[Shape, float], cpu: Ints, free: Ints, model: Ints, capacity: float
    ) -> None:
        shapes, weight = _typical(arrived)
        shares: dict[int, float] = {}
        for shape, w in zip(shapes, weight.tolist(), strict=True):
            if shape.is_share:
                shares[shape.gpu_milli] = shares.get(shape.gpu_milli, 0.0) + w
        self.waste = leftover_table(shares)
        self._waste_of_share: dict[int, Floats] = {}
        self.cpu_milli = np.array([s.cpu_milli for s in shapes], float)
        self._tables(shapes, free.shape[1])
        models = np.array([s.models for s in shapes], np.int64)
        numbers = np.arange(int(model.max(initial=-1)) + 1)
        self.allowed = (models[None, :] >> numbers[:, None] & 1).astype(float)
        self.model = model
        self.gpu_copies = self._copies_of_gpus(free)
        milli = np.array([s.milli for s in shapes], float)
        room = (self._copies(self.gpu_copies, cpu) * self.allowed[model]).sum(axis=0) * milli
        price = weight / (room / capacity + SCARCE)
        # Per GPU model, so that a shape that must not use a node adds nothing to its room.
        self.value = np.round(self.allowed * (price * milli * (ROOM_WEIGHT * _SCALE)))
        self._cpu_steps(weight)

    def _tables(self, shapes: list[Shape], gpus: int) -> None:
        """Copies of each shape in one GPU by its free milli, and in a number of free GPUs."""
        per_gpu, per_node = np.zeros((2, MILLI + 1, len(shapes)))
        for t, shape in enumerate(shapes):
            if shape.is_share:
                per_gpu[:, t] = np.arange(MILLI + 1) // shape.gpu_milli
            else:
                per_node[:, t] = np.arange(MILLI + 1) // shape.gpus
        self.per_gpu, self.per_node = per_gpu, per_node[: gpus + 1].copy()

    def _cpu_steps(self, weight: Floats) -> None:
        """Share of the typical pods of each model that need more CPU than is left, by steps."""
        order = np.argsort(self.cpu_milli, kind="stable")
        self.steps = self.cpu_milli[order]
        above = np.cumsum((self.allowed * weight)[:, order][:, ::-1], axis=1)[:, ::-1]
        ends = np.zeros((len(above), 1))
        self.blocked = np.round(np.hstack([above, ends]) * (BLOCKED_WEIGHT * _SCALE))

    def _copies_of_gpus(self, free: Ints) -> Floats:
        whole = (free == MILLI).sum(axis=1)
        copies: Floats = self.per_node[whole]
        for device in range(free.shape[1]):
            copies = copies + self.per_gpu[free[:, device]]
        return copies

    def _copies(self, gpu_copies: Floats, cpu: Ints) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            by_cpu = np.floor(cpu[:, None] / self.cpu_milli)
        return np.fmin(gpu_copies, by_cpu)

    def _blocked(self, model: Ints, cpu: Ints, free: Ints) -> Floats:
        per_milli: Floats = self.blocked[model, np.searchsorted(self.steps, cpu, side="right")]
        return per_milli * free

    def update(self, node: int, free: Ints) -> None:
        """The GPUs of the node changed."""
        self.gpu_copies[node] = self._copies_of_gpus(free[node : node + 1])[0]

    def waste_of_share(self, milli: int) -> Floats:
        """Growth of the waste when a GPU with r milli free gives a share, r = 0…1000; infinite
        where it does not fit; of equal ones the fullest is a trifle cheaper."""
        found = self._waste_of_share.get(milli)
        if found is None:
            found = np.full(MILLI + 1, np.inf)
            growth = np.round(
                (self.waste[:-milli] - self.waste[milli:]) * (LEFTOVER_WEIGHT * _SCALE)
            )
            found[milli:] = growth + np.arange(milli, MILLI + 1) / (2 * MILLI)
            self._waste_of_share[milli] = found
        return found

    def gain(self, shape: Shape, nodes: Ints, cpu: Ints, free: Ints, device: Ints) -> Floats:
        """Change of the potential of `nodes` if each took the pod; `device` is for shares."""
        model, total = self.model[nodes], free.sum(axis=1)
        whole = (free == MILLI).sum(axis=1)
        before = self.gpu_copies[nodes]
        if shape.is_share:
            left = free[np.arange(len(nodes)), device]
            opened = (left == MILLI).astype(np.int64)
            after = before + self.per_gpu[left - shape.gpu_milli] - self.per_gpu[left]
            after += self.per_node[whole - opened] - self.per_node[whole]
            gain = -np.floor(self.waste_of_share(shape.gpu_milli)[left])
        else:
            after = before - shape.gpus * self.per_gpu[MILLI]
            after += self.per_node[whole - shape.gpus] - self.per_node[whole]
            gain = np.zeros(len(nodes))
        cpu_after = cpu - shape.cpu_milli
        fewer = self._copies(after, cpu_after) - self._copies(before, cpu)
        gain += (fewer * self.value[model]).sum(axis=1)
        gain -= self._blocked(model, cpu_after, total - shape.milli)
        gain += self._blocked(model, cpu, total)
        return gain


def _typical(arrived: dict[Shape, float]) -> tuple[list[Shape], Floats]:
    """The most popular shapes with GPUs that cover COVER of the pods, and their popularity."""
    with_gpus = {s: n for s, n in arrived.items() if s.gpus}
    total = sum(with_gpus.values())
    shapes: list[Shape] = []
    covered = 0.0
    for shape in sorted(with_gpus, key=lambda s: (-with_gpus[s], s)):
        if covered >= COVER * total:
            break
        shapes.append(shape)
        covered += with_gpus[shape]
    return shapes, np.array([with_gpus[s] for s in shapes]) / max(total, 1.0)
