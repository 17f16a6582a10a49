"""Fragmentation gradient: place where the potential of a node to take typical pods falls least.

It is made for pools with fractional GPUs. The potential of a node is in GPU-milli, judged by the
typical mix of the pods that have arrived so far:

    potential = 0.1 * room - blocked - 10 * leftover

- room: what typical pods could still get on the node. Each shape is weighted by its popularity and
  by how scarce its room is in the whole cluster (the gradient of Σ popularity × ln room). This
  keeps GPUs, CPU and models that few nodes have for the pods that need them.
- blocked: free GPU-milli that typical pods cannot get because the CPU is used up.
- leftover: how much of the free parts of partly used GPUs will be wasted in the end (leftover.py).

Descending a gradient of expected fragmentation is the idea of Q. Weng et al., "Beware of
Fragmentation", USENIX ATC 2023. All sums are over integers in float64, hence exact: equal states
give equal choices on every machine. Ties go to the first node. Inside a node, a share goes to the
fullest GPU that holds it, which measured no worse than the GPU with the least waste.
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
COVER = 0.98  # the share of arrived pods that the typical shapes describe
SCARCE = 0.01  # the share of the cluster below which less room no longer raises a shape's price
REMEMBER = 20_000  # arrivals after which older ones count half, so that the mix follows the load
MOST_ENTRIES = 4  # entries of a ranking per node, before it is rebuilt
_SCALE = 1024.0  # score units per GPU-milli; scores are integers far below 2**53


class PodShape(NamedTuple):
    """What a pod needs from a node: whole GPUs (`gpus`, `gpu_milli` 1000) or a share of one GPU.

    `models`: bit mask of acceptable GPU models by number; -1 = any. `gpus` 0: only CPU.
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
    """How often each shape has been requested lately."""

    def __init__(self) -> None:
        self._counts: dict[PodShape, float] = {}
        self._arrivals = 0.0
        self._forget_at = float(REMEMBER)

    def arrived(self, shape: PodShape, pods: float = 1) -> None:
        """Count pods of a shape, whether they get placed or not."""
        self._counts[shape] = self._counts.get(shape, 0.0) + pods
        self._arrivals += pods
        if self._arrivals >= self._forget_at:
            self._forget_at = self._arrivals + REMEMBER
            self._counts = {s: n / 2 for s, n in self._counts.items()}

    def typical(self) -> tuple[list[PodShape], Floats]:
        """Return the most popular shapes with GPUs (COVER of the pods), and their popularity."""
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
    """What nodes are worth to typical pods, priced by the state of the cluster at one time.

    Nodes are given as columns: `cpu` and `model` [n], and the free GPU-milli `free` of each GPU
    [n, GPUs], 0 for a GPU that does not exist or must not be used.
    """

    def __init__(
        self, mix: TypicalMix, cpu: Ints, free: Ints, model: Ints, capacity_milli: int
    ) -> None:
        """`capacity_milli`: GPU-milli of all GPUs of the cluster, free or not."""
        self.width = int(free.shape[1])  # the most GPUs that a node may have
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
        # By GPU model: a shape counts nothing on nodes that it must not use.
        self._value = np.round(allowed * (price * milli * (ROOM_WEIGHT * _SCALE)))
        order = np.argsort(self._cpu_milli, kind="stable")
        self._steps = self._cpu_milli[order]
        needing_more = np.cumsum((allowed * popularity)[:, order][:, ::-1], axis=1)[:, ::-1]
        needing_more = np.hstack([needing_more, np.zeros((len(allowed), 1))])
        self._blocked_share = np.round(needing_more * (BLOCKED_WEIGHT * _SCALE))

    def copies(self, free: Ints) -> Floats:
        """Return how many pods of each typical shape each node's GPUs hold, ignoring CPU."""
        copies: Floats = self._per_node[(free == MILLI).sum(axis=1)]
        for device in range(free.shape[1]):
            copies = copies + self._per_gpu[free[:, device]]
        return copies

    def gain(
        self, shape: PodShape, model: Ints, cpu: Ints, free: Ints, device: Ints, copies: Floats
    ) -> Floats:
        """Return the change of each node's potential if it took the pod (a share: on `device`).

        Every node given must be able to take it. `copies`: the result of the method `copies`.
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
        left = np.maximum(cpu, 0)  # pods of others may use more than there is
        with np.errstate(divide="ignore", invalid="ignore"):
            by_cpu = np.floor(left[:, None] / self._cpu_milli)
        pods: Floats = np.fmin(copies, by_cpu)  # 0 / 0: no limit by CPU
        return pods

    def _blocked(self, model: Ints, cpu: Ints, free: Ints) -> Floats:
        step = np.searchsorted(self._steps, cpu, side="right")
        blocked: Floats = self._blocked_share[model, step] * free
        return blocked


def _copies_tables(shapes: list[PodShape], gpus: int) -> tuple[Floats, Floats]:
    """Return how many pods of each shape fit in a GPU by its free milli, and in n free GPUs."""
    per_gpu, per_node = np.zeros((MILLI + 1, len(shapes))), np.zeros((gpus + 1, len(shapes)))
    for number, shape in enumerate(shapes):
        if shape.is_share:
            per_gpu[:, number] = np.arange(MILLI + 1) // shape.gpu_milli
        else:
            per_node[:, number] = np.arange(gpus + 1) // shape.gpus
    return per_gpu, per_node


def fullest_device(free: Ints, milli: int) -> Ints:
    """Return each node's GPU with the least free milli that holds the share; -1 if none does."""
    held = np.where(free >= milli, free, MILLI + 1)
    device: Ints = held.argmin(axis=1)
    device[held[np.arange(len(free)), device] > MILLI] = -1
    return device


# Nodes by their gain, the best first. Nodes that have changed since have outdated entries, too.
Ranking = list[tuple[float, int]]


@dataclass(slots=True)
class Scores:
    """Scores of all nodes for one shape.

    They are as of entry `seen` of the log of changed nodes. `ranked`: by number of the GPU model,
    the nodes where the shape fits, by gain (a heap of negated gains).
    """

    gain: Floats
    device: Ints
    seen: int
    ranked: dict[int, Ranking]


class FragmentationGradient:
    """What is free on each node, and how much potential each would lose by taking a pod.

    A score depends on only one shape and one node. So scores are kept per shape, and only nodes
    that changed are scored again.
    """

    def __init__(self, cpu: Ints, free: Ints, model: Ints, potential: Potential) -> None:
        """Arguments are per node: free CPU, free milli of each GPU (0 = no such GPU), model number.

        `potential` judges the nodes until `judge_by` replaces it.
        """
        self.cpu, self.free, self.model = cpu, free, model
        self._changed: list[int] = []
        self._scores: dict[PodShape, Scores] = {}
        self.judge_by(potential)

    def judge_by(self, potential: Potential) -> None:
        """Judge the nodes by this potential from now on."""
        self._potential = potential
        self._copies = potential.copies(self.free)
        self._scores.clear()
        self._changed.clear()

    def note(self, node: int) -> None:
        """Note that what is free on a node has changed."""
        self._copies[node] = self._potential.copies(self.free[node : node + 1])[0]
        self._changed.append(node)

    def _rank(self, scores: Scores, nodes: Ints) -> None:
        """Add the gains of these nodes to the rankings; rebuild a ranking that grew too long."""
        models, gains = self.model[nodes].tolist(), scores.gain[nodes].tolist()
        for node, model, gain in zip(nodes.tolist(), models, gains, strict=True):
            ranking = scores.ranked.setdefault(model, [])
            heappush(ranking, (-gain, node))
            if len(ranking) > MOST_ENTRIES * len(self.cpu):
                here = np.flatnonzero((self.model == model) & (scores.gain > -np.inf))
                ranking[:] = sorted(zip((-scores.gain[here]).tolist(), here.tolist(), strict=True))

    def scores(self, shape: PodShape) -> Scores:
        """Return the change of each node's potential by the pod; -inf if it does not fit."""
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
