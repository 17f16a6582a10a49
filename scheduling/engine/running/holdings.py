"""What jobs hold on which node, pod by pod, in columns that NumPy can sum."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduling.engine.cluster.index_layout import Ints
from scheduling.engine.types import MILLI, PodPlacement, PodSetSpec

_FEW = 16  # initial number of rows


class HeldPod(NamedTuple):
    """The row of one pod.

    `at`: from when on it may be taken (seconds since the epoch). `slot`: the slot of its node, -1 =
    unknown. `model`: the number of its GPU model. `milli`: all GPU-milli that it holds. `gpus`: its
    whole devices. `device`: the device of its share, -1 = it has none. `cpu`: milli-CPU. `memory`:
    MiB. `by_memory`: 1 for a share by memory, which may hold up to one GPU-milli more.
    """

    at: float
    slot: int
    model: int
    milli: int
    gpus: int
    device: int
    cpu: int
    memory: int
    by_memory: int


def row_of(at: float, slot: int, model: int, p: PodPlacement, spec: PodSetSpec) -> HeldPod:
    """Return the row of a pod at its place."""
    whole = p.milli == MILLI or not p.devices
    return HeldPod(
        at,
        slot,
        model,
        p.milli * len(p.devices),
        len(p.devices) if whole else 0,
        -1 if whole else p.devices[0],
        spec.cpu_milli,
        spec.memory_mib,
        int(spec.gpu_memory_mib > 0),
    )


class Freed(NamedTuple):
    """What nodes would get back, by slot: whole GPUs, milli-CPU, MiB of memory and pods.

    `shares`: GPU-milli of shares of GPUs, by slot and device; each share by memory is rounded up.
    """

    gpus: Ints
    cpu: Ints
    memory: Ints
    pods: Ints
    shares: dict[int, dict[int, int]]


class Holdings:
    """The rows of many jobs, as columns.

    `at` has the times of the rows, `rest` one line for each other field. Unused rows have the time
    NaN.
    """

    def __init__(self) -> None:
        self.at: NDArray[np.float64] = np.full(_FEW, math.nan)
        self.rest: Ints = np.zeros((len(HeldPod._fields) - 1, _FEW), np.int64)
        self._rows_of: dict[str, list[int]] = {}
        self._unused = list(range(_FEW))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Holdings":
        """Copy quickly, because rehearsals copy whole clusters; row lists are never changed."""
        twin = Holdings()
        twin.at, twin.rest = self.at.copy(), self.rest.copy()
        twin._rows_of, twin._unused = self._rows_of.copy(), self._unused.copy()
        return twin

    def put(self, job_id: str, rows: Iterable[HeldPod]) -> None:
        """Replace the rows of a job by these."""
        self.drop(job_id)
        mine: list[int] = []
        for row in rows:
            if not self._unused:
                self._grow()
            mine.append(number := self._unused.pop())
            self.at[number] = row.at
            self.rest[:, number] = row[1:]
        self._rows_of[job_id] = mine

    def drop(self, job_id: str) -> None:
        rows = self._rows_of.pop(job_id, [])
        self.at[rows] = math.nan
        self._unused += rows

    def _grow(self) -> None:
        size = len(self.at)
        self._unused = list(range(size, 2 * size))
        self.at = np.concatenate((self.at, np.full(size, math.nan)))
        self.rest = np.concatenate((self.rest, np.zeros_like(self.rest)), axis=1)

    def sums(self, by: float, models: int) -> Ints:
        """Return the GPU-milli that may be taken by then, by number of the GPU model.

        `models`: how many models there are. Each share by memory is rounded up.
        """
        _, model, milli, *_, by_memory = self.rest[:, self.at <= by]
        return _sums(model, milli + by_memory, models)

    def later(self, than: float) -> list[tuple[float, int, int]]:
        """Return (when, number of the GPU model, GPU-milli) of all that may be taken after `than`.

        Each share by memory is rounded up.
        """
        some = self.at > than
        _, model, milli, *_, by_memory = self.rest[:, some]
        held = (milli + by_memory).tolist()
        return list(zip(self.at[some].tolist(), model.tolist(), held, strict=True))


def freed(tables: Sequence[Holdings], by: float, slots: int) -> Freed:
    """Return what nodes would get back if all that may be taken by then were gone.

    `slots`: the number of slots of the cluster.
    """
    ripe = [table.rest[:, (table.at <= by) & (table.rest[0] >= 0)] for table in tables]
    nothing = np.zeros((len(HeldPod._fields) - 1, 0), np.int64)
    slot, _, milli, gpus, device, cpu, memory, by_memory = np.concatenate((nothing, *ripe), axis=1)
    shares: dict[int, dict[int, int]] = {}
    of_shares = np.stack((slot, device, milli + by_memory))[:, device >= 0]
    for on, at, part in of_shares.T.tolist():
        devices = shares.setdefault(on, {})
        devices[at] = devices.get(at, 0) + part
    gpus, cpu, memory = (_sums(slot, amounts, slots) for amounts in (gpus, cpu, memory))
    return Freed(gpus, cpu, memory, np.bincount(slot, minlength=slots), shares)


def _sums(groups: Ints, amounts: Ints, size: int) -> Ints:
    return np.bincount(groups, amounts, size).astype(np.int64)
