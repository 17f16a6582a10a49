"""Placement policies that the openb study compares, by name."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scheduling.engine.placement.fragmentation import Choice, FragmentationGradient, Shape
from scheduling.engine.types import MILLI

Bools = NDArray[np.bool_]


class Placement(Protocol):
    """What a run needs; see FragmentationGradient."""

    def arrived(self, shape: Shape) -> None: ...
    def choose(self, shape: Shape, usable: Bools | None = None) -> Choice | None: ...
    def take(self, shape: Shape, choice: Choice) -> None: ...


class _Fullest:
    """The node that has least left, of equal ones the first; a share goes to the fullest GPU."""

    def __init__(
        self, cpu_milli: Sequence[int], free_milli: Sequence[Sequence[int]], model: Sequence[int]
    ) -> None:
        self.cpu = np.array(cpu_milli, np.int64)
        self.free = np.array(free_milli, np.int64)
        self.model = np.array(model, np.int64)
        self.most_cpu = max(1, int(self.cpu.max()))
        self.most_gpu = max(1, int(self.free.sum(axis=1).max()))

    def left(self) -> NDArray[Any]:
        """What each node has left; the least wins."""
        raise NotImplementedError

    def arrived(self, shape: Shape) -> None:
        """These policies do not look at what arrives."""

    def choose(self, shape: Shape, usable: Bools | None = None) -> Choice | None:
        fits = (self.cpu >= shape.cpu_milli) & (shape.models >> self.model & 1 == 1)
        if usable is not None:
            fits &= usable
        if shape.is_share:
            fits &= self.free.max(axis=1) >= shape.gpu_milli
        else:
            fits &= (self.free == MILLI).sum(axis=1) >= shape.gpus
        if not fits.any():
            return None
        node = int(np.where(fits, self.left(), np.inf).argmin())
        free = self.free[node]
        if shape.is_share:
            held = np.where(free >= shape.gpu_milli, free, 2 * MILLI)
            return Choice(node, (int(held.argmin()),))
        return Choice(node, tuple(np.flatnonzero(free == MILLI)[: shape.gpus].tolist()))

    def take(self, shape: Shape, choice: Choice) -> None:
        self.cpu[choice.node] -= shape.cpu_milli
        self.free[choice.node, list(choice.devices)] -= shape.gpu_milli


class BestFit(_Fullest):
    """Least GPU and CPU left, each as a part of what the largest node has."""

    def left(self) -> NDArray[Any]:
        # Over a common denominator, so that equal nodes are exactly equal.
        return self.free.sum(axis=1) * self.most_cpu + self.cpu * self.most_gpu


class Binpack(_Fullest):
    """Least GPU left."""

    def left(self) -> NDArray[Any]:
        total: NDArray[Any] = self.free.sum(axis=1)
        return total


POLICIES: dict[str, Callable[..., Placement]] = {
    "fragmentation-gradient": FragmentationGradient,
    "best-fit": BestFit,
    "binpack": Binpack,
}
