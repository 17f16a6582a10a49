"""Choose the GPUs of a node for a pod: a table per node model, not a search (paper 3.3.5).

A set of GPUs is a bit mask; bit i = the GPU with index i. Among the free GPUs, the choice goes by,
in this order: the largest sum of pair bandwidths inside the set, then the most pairs on one NUMA
node; the same two criteria for the GPUs that remain free; the lowest indices. If a node has more
devices than a server has GPUs, they are parts of GPUs without links, and only the indices count.
"""

from array import array
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np

from scheduling.engine.devices.links import MAX_DEVICES, Link, LinkMatrix, matrix_of
from scheduling.engine.types import MILLI, Device, Nic, Node

# NUMA pairs must never outweigh 1 GB/s of link bandwidth: 16 GPUs have at most 120 pairs.
_LINK_WEIGHT = 128


class DeviceTable:
    """The best sets of GPUs for one node model: one entry per (free mask, number of GPUs).

    Entries are filled on first use, so a table for 16 GPUs (65,536 × 17 entries, 2 MB) costs as
    little to set up as one for 8 (256 × 9).
    """

    def __init__(self, matrix: LinkMatrix, numa: Sequence[int]) -> None:
        self.size = len(numa)
        self.numa = tuple(numa)
        self.matrix = matrix
        self._score = _scores(matrix, self.numa)
        self._subsets = _subsets_by_size(self.size)
        self._best = array("H", bytes(2 * (self.size + 1) << self.size))

    def best(self, free: int, count: int) -> int:
        """Return the mask of the best `count` of the GPUs in `free`; 0 if fewer are free."""
        if not 0 < count <= free.bit_count():
            return 0
        at = free * (self.size + 1) + count
        found = self._best[at]
        if not found:
            found = self._best[at] = self._search(free, count)
        return found

    def _search(self, free: int, count: int) -> int:
        sets = self._subsets[count]
        sets = sets[sets & ~free == 0]
        rank = (self._score[sets] << 32) + self._score[free ^ sets]
        return int(sets[np.argmax(rank)])


class FirstFree:
    """Chooses the lowest free indices, on nodes with too many devices for a table."""

    def __init__(self, matrix: LinkMatrix, numa: Sequence[int]) -> None:
        self.size = len(numa)
        self.numa = tuple(numa)
        self.matrix = matrix

    def best(self, free: int, count: int) -> int:
        """Return the mask of the first `count` of the devices in `free`; 0 if fewer are free."""
        if not 0 < count <= free.bit_count():
            return 0
        rest = free
        for _ in range(count):
            rest &= rest - 1
        return free ^ rest


def _scores(matrix: LinkMatrix, numa: tuple[int, ...]) -> np.ndarray:
    """Return the score of every subset of GPUs: an int64 array of 2**n entries."""
    n = len(numa)
    scores = np.zeros(1 << n, np.int64)
    masks = np.arange(1 << n)
    for i in range(n):
        for j in range(i):
            weight = _LINK_WEIGHT * matrix[i][j] + (numa[i] == numa[j])
            scores += weight * ((masks >> i) & (masks >> j) & 1)
    return scores


@cache
def _subsets_by_size(n: int) -> tuple[np.ndarray, ...]:
    """Return all subsets of n GPUs by size, those with lower indices first (0,3 before 1,2)."""
    masks = np.arange(1 << n)
    mirrored = sum(((masks >> i) & 1) << (n - 1 - i) for i in range(n))
    masks = masks[np.argsort(-np.asarray(mirrored), kind="stable")]
    sizes = sum((masks >> i) & 1 for i in range(n))
    return tuple(masks[sizes == k] for k in range(n + 1))


@lru_cache(maxsize=256)
def _table(link_model: str, numa: tuple[int, ...]) -> DeviceTable | FirstFree:
    matrix = matrix_of(link_model, numa)
    return DeviceTable(matrix, numa) if len(numa) <= MAX_DEVICES else FirstFree(matrix, numa)


def table_for(node: Node) -> DeviceTable | FirstFree:
    """Return the device table of a node; nodes of the same model share it.

    An unusable link model (`link_problem`) counts as unknown; then placement goes by NUMA nodes.
    """
    numa = numa_by_index(node.devices)
    try:
        return _table(node.link_model, numa)
    except ValueError:
        return _table("", numa)


def link_problem(node: Node) -> str:
    """Return why the declared link model of a node cannot be used; "" if it can."""
    try:
        _table(node.link_model, numa_by_index(node.devices))
    except ValueError as wrong:
        return str(wrong)
    return ""


def describe(
    node: Node, devices: Sequence[int], nics: Sequence[int] = (), milli: int = MILLI
) -> str:
    """Describe the choice in words: "GPUs 4-7, one NUMA node, NICs 4-7"."""
    gpus = _named("GPU", devices)
    parts = [gpus if milli == MILLI else f"{milli / MILLI:g} of {gpus}"]
    if len(devices) > 1:
        table = table_for(node)
        worst = min(table.matrix[i][j] for i in devices for j in devices if i != j)
        if worst >= Link.NV1:
            parts.append("joined by NVLink")
        numa = len({table.numa[i] for i in devices})
        parts.append("one NUMA node" if numa == 1 else f"{numa} NUMA nodes")
    if nics:
        parts.append(_named("NIC", nics))
    return ", ".join(parts)


def numa_by_index(parts: Sequence[Device] | Sequence[Nic]) -> tuple[int, ...]:
    """Return the NUMA node of every index; indices without a GPU (or NIC) count as NUMA node 0."""
    numa = [0] * (max((part.index for part in parts), default=-1) + 1)
    for part in parts:
        numa[part.index] = part.numa
    return tuple(numa)


def _named(noun: str, indices: Sequence[int]) -> str:
    """ "GPU 3", "GPUs 0-3,6"."""
    runs: list[list[int]] = []
    for i in sorted(indices):
        if runs and runs[-1][-1] == i - 1:
            runs[-1][1:] = [i]
        else:
            runs.append([i])
    text = ",".join("-".join(map(str, run)) for run in runs)
    return f"{noun}{'s' if len(indices) > 1 else ''} {text}"
