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
give equal choices on every machine. Ties go to the first node. Inside a node a share goes to the
fullest GPU that holds it, which measures no worse than the GPU with the least waste.
"""

from dataclasses import dataclass
from heapq import heappush
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
REMEMBER = 20_000  # arrivals; then older ones count half, so that the mix follows the load
MOST_ENTRIES = 4  # of a ranking for each node
_SCALE = 1024.0  # of a score per GPU-milli: integers that stay far below 2**53


class PodShape(NamedTuple):
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


class TypicalMix:
    """How often each shape has been asked for lately."""

    def __init__(self) -> None:
        self._counts: dict[PodShape, float] = {}
        self._arrivals = 0.0
        self._forget_at = float(REMEMBER)

    def arrived(self, shape: PodShape, pods: float = 1) -> None:
        """Count pods, placed or not."""
        self._counts[shape] = self._counts.get(shape, 0.0) + pods
        self._arrivals += pods
        if self._arrivals >= self._forget_at:
            self._forget_at = self._arrivals + REMEMBER
            self._counts = {s: n / 2 for s, n in self._counts.items()}

    def typical(self) -> tuple[list[PodShape], Floats]:
        """The most popular shapes with GPUs, covering COVER of the pods; their popularity."""
        with_gpus = {s: n for s, n in self._counts.items() if s.gpus}
        total = sum(with_gpus.values())
        shapes: list[PodShape] = []
        covered = 0.0
        for shape in sorted(with_gpus, key=lambda s: (-with_gpus[s], s)):
            if covered >= COVER * total:
                break
            shapes.append(shape)
            covered += with_gpus[shape]
        return shapes, np.array([with_gpus[s] for s in shapes]) / max(total, 1.0)


class Potential:
    """What nodes are worth to the typical pods, priced by the state of the cluster at one time.

    Nodes are given by columns: `cpu` and `model` [n], `free` milli of each GPU [n, GPUs], 0 for a
    GPU that is not there or must not be used.
    """

    def __init__(
        self, mix: TypicalMix, cpu: Ints, free: Ints, model: Ints, capacity_milli: int
    ) -> None:
        """`capacity_milli`: all GPUs of the cluster, whether free or not."""
        self.width = int(free.shape[1])  # GPUs a node may have at most
        shapes, popularity = mix.typical()
        shares: dict[int, float] = {}
        for shape, weight in zip(shapes, popularity.tolist(), strict=True):
            if shape.is_share:
                shares[shape.gpu_milli] = shares.get(shape.gpu_milli, 0.0) + weight
        self._leftover = np.round(leftover_table(shares) * (LEFTOVER_WEIGHT * _SCALE))
        self._cpu_milli = np.array([s.cpu_milli for s in shapes], float)
        self._per_gpu, self._per_node = _copies_tables(shapes, free.shape[1])
        models = np.array([s.models for s in shapes], np.int64)
        numbers = np.arange(int(model.max(initial=-1)) + 1)
        allowed = (models[None, :] >> numbers[:, None] & 1).astype(float)
        milli = np.array([s.milli for s in shapes], float)
        room = (self._pods(self.copies(free), cpu) * allowed[model]).sum(axis=0) * milli
        price = popularity / (room / max(capacity_milli, 1) + SCARCE)
        # By GPU model, so that a shape that must not use a node counts nothing there.
        self._value = np.round(allowed * (price * milli * (ROOM_WEIGHT * _SCALE)))
        order = np.argsort(self._cpu_milli, kind="stable")
        self._steps = self._cpu_milli[order]
        needing_more = np.cumsum((allowed * popularity)[:, order][:, ::-1], axis=1)[:, ::-1]
        needing_more = np.hstack([needing_more, np.zeros((len(allowed), 1))])
        self._blocked_share = np.round(needing_more * (BLOCKED_WEIGHT * _SCALE))

    def copies(self, free: Ints) -> Floats:
        """Pods of each typical shape that the GPUs of each node hold, CPU aside."""
        copies: Floats = self._per_node[(free == MILLI).sum(axis=1)]
        for device in range(free.shape[1]):
            copies = copies + self._per_gpu[free[:, device]]
        return copies

    def gain(
        self, shape: PodShape, model: Ints, cpu: Ints, free: Ints, device: Ints, copies: Floats
    ) -> Floats:
        """Change of the potential of each node if it took the pod, on `device` if it is a share.

        Every node given must be able to take it; `copies` as from that method.
        """
        whole = (free == MILLI).sum(axis=1)
        if shape.is_share:
            before = free[np.arange(len(free)), device]
            after = before - shape.gpu_milli
            fewer_whole = whole - (before == MILLI)
            change = self._per_gpu[after] - self._per_gpu[before]
            gain = self._leftover[before] - self._leftover[after]
        else:
            fewer_whole = whole - shape.gpus
            change = -shape.gpus * self._per_gpu[MILLI]
            gain = np.zeros(len(free))
        left = copies + change + self._per_node[fewer_whole] - self._per_node[whole]
        cpu_left, total = cpu - shape.cpu_milli, free.sum(axis=1)
        fewer = self._pods(left, cpu_left) - self._pods(copies, cpu)
        gain += (fewer * self._value[model]).sum(axis=1)
        gain -= self._blocked(model, cpu_left, total - shape.milli)
        gain += self._blocked(model, cpu, total)
        return gain

    def _pods(self, copies: Floats, cpu: Ints) -> Floats:
        left = np.maximum(cpu, 0)  # pods of others may have more than there is
        with np.errstate(divide="ignore", invalid="ignore"):
            by_cpu = np.floor(left[:, None] / self._cpu_milli)
        pods: Floats = np.fmin(copies, by_cpu)  # 0 / 0: no limit by CPU
        return pods

    def _blocked(self, model: Ints, cpu: Ints, free: Ints) -> Floats:
        step = np.searchsorted(self._steps, cpu, side="right")
        blocked: Floats = self._blocked_share[model, step] * free
        return blocked


def _copies_tables(shapes: list[PodShape], gpus: int) -> tuple[Floats, Floats]:
    """Pods of each shape in one GPU by its free milli, and in a number of whole free GPUs."""
    per_gpu, per_node = np.zeros((MILLI + 1, len(shapes))), np.zeros((gpus + 1, len(shapes)))
    for number, shape in enumerate(shapes):
        if shape.is_share:
            per_gpu[:, number] = np.arange(MILLI + 1) // shape.gpu_milli
        else:
            per_node[:, number] = np.arange(gpus + 1) // shape.gpus
    return per_gpu, per_node


def fullest_device(free: Ints, milli: int) -> Ints:
    """The GPU of each node with the least free milli that holds the share; -1 where none does."""
    held = np.where(free >= milli, free, MILLI + 1)
    device: Ints = held.argmin(axis=1)
    device[held[np.arange(len(free)), device] > MILLI] = -1
    return device


# Nodes by what they gain, the best first; those that have changed since stand there twice.
Ranking = list[tuple[float, int]]


@dataclass(slots=True)
class Scores:
    """Scores of all nodes for one shape, as of entry `seen` of the log of changed nodes, and by
    number of GPU model the nodes where it fits, by gain (`Ranking`, a heap of negative gains)."""

    gain: Floats
    device: Ints
    seen: int
    ranked: dict[int, Ranking]


class FragmentationGradient:
    """Nodes with what is free on them, and what each would lose by a pod.

    A score depends on one shape and one node only, so scores are kept per shape and only nodes
    that changed since are scored again.
    """

    def __init__(self, cpu: Ints, free: Ints, model: Ints, potential: Potential) -> None:
        """Per node: free CPU, free milli of each GPU (0 for one that is not there), model number.
        `potential`: what judges the nodes at first."""
        self.cpu, self.free, self.model = cpu, free, model
        self._changed: list[int] = []
        self._scores: dict[PodShape, Scores] = {}
        self.judge_by(potential)

    def judge_by(self, potential: Potential) -> None:
        """Judge the nodes by this from now on."""
        self._potential = potential
        self._copies = potential.copies(self.free)
        self._scores.clear()
        self._changed.clear()

    def note(self, node: int) -> None:
        """What is free on a node has changed."""
        self._copies[node] = self._potential.copies(self.free[node : node + 1])[0]
        self._changed.append(node)

    def _rank(self, scores: Scores, nodes: Ints) -> None:
        """Enter the gains of these nodes; when too many entries are out of date, all anew."""
        models, gains = self.model[nodes].tolist(), scores.gain[nodes].tolist()
        for node, model, gain in zip(nodes.tolist(), models, gains, strict=True):
            ranking = scores.ranked.setdefault(model, [])
            heappush(ranking, (-gain, node))
            if len(ranking) > MOST_ENTRIES * len(self.cpu):
                here = np.flatnonzero((self.model == model) & (scores.gain > -np.inf))
                ranking[:] = sorted(zip((-scores.gain[here]).tolist(), here.tolist(), strict=True))

    def scores(self, shape: PodShape) -> Scores:
        """Change of the potential of each node by the pod; minus infinity where it does not fit."""
        scores = self._scores.get(shape)
        if scores is None:
            n = len(self.cpu)
            scores = Scores(np.empty(n), np.full(n, -1), len(self._changed), {})
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
        if shape.is_share:
            scores.device[stale] = fullest_device(self.free[stale], shape.gpu_milli)
            fits &= scores.device[stale] >= 0
        else:
            fits &= (self.free[stale] == MILLI).sum(axis=1) >= shape.gpus
        stale = stale[fits]
        scores.gain[stale] = self._potential.gain(
            shape,
            self.model[stale],
            self.cpu[stale],
            self.free[stale],
            scores.device[stale],
            self._copies[stale],
        )
        self._rank(scores, stale)
        return scores
