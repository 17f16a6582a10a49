"""How many pods of several sets fit together, exactly: tables of the best mixtures, added up.

A mixture is a number of pods of each set. A table for k pod sets has one axis for each of the first
k - 1 sets. The entry at (n1, n2, ...) is how many pods of the last set fit beside at least that
many pods of the others, capped at the number requested. Fewer pods always fit where more do, so the
table describes a node completely, and the tables of two nodes combine to that of both (a max-plus
convolution). Equal nodes, and equal groups of nodes, are added by doubling. Going back through the
sums tells which node takes what.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.int64]
# Sets that count together, and the most pods that they may have in all.
Limit = tuple[tuple[int, ...], int]
NONE = -(1 << 40)  # not even this many pods of the other sets fit
# The fixed cost of a step, in cells, in addition to the cells that it looks at.
STEP = 4_000


class TooMuch(Exception):
    """The search needs more effort than it may spend."""


class Effort:
    """The effort that a search may still spend, in table cells."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, steps: int, cells: int) -> None:
        self.left -= steps * (cells + STEP)
        if self.left < 0:
            raise TooMuch


class Mixture:
    """The `table` of some nodes, and the way to divide pods among them.

    `take` writes to `out`, by node number, how many pods of each set a node takes, so that the
    nodes hold `at` pods of the first sets and `last` pods of the last set.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    def take(self, at: tuple[int, ...], last: int, out: dict[int, tuple[int, ...]]) -> None:
        raise NotImplementedError


class OfNode(Mixture):
    def __init__(self, table: Table, number: int) -> None:
        super().__init__(table)
        self.number = number

    def take(self, at: tuple[int, ...], last: int, out: dict[int, tuple[int, ...]]) -> None:
        out[self.number] = (*at, last)


class Alike(Mixture):
    """Nodes, or groups of nodes, with equal tables; `tables`: by number of them added up."""

    def __init__(self, items: Sequence[Mixture], most: int, effort: Effort) -> None:
        self.items = items
        self.tables: dict[int, Table] = {1: items[0].table}
        super().__init__(self._sum(len(items), most, effort))

    def _sum(self, count: int, most: int, effort: Effort) -> Table:
        known = self.tables.get(count)
        if known is None:
            half = count // 2
            one, other = self._sum(half, most, effort), self._sum(count - half, most, effort)
            known = self.tables[count] = added(one, other, most, effort)
        return known

    def take(self, at: tuple[int, ...], last: int, out: dict[int, tuple[int, ...]]) -> None:
        self._take(0, len(self.items), at, last, out)

    def _take(
        self, low: int, high: int, at: tuple[int, ...], last: int, out: dict[int, tuple[int, ...]]
    ) -> None:
        if not (last or any(at)):
            return
        if high - low == 1:
            self.items[low].take(at, last, out)
            return
        half = (high - low) // 2
        one, other = self.tables[half], self.tables[high - low - half]
        mine, first, rest, more = divided(one, other, at, last)
        self._take(low, low + half, mine, first, out)
        self._take(low + half, high, rest, more, out)


class Both(Mixture):
    def __init__(self, one: Mixture, other: Mixture, most: int, effort: Effort) -> None:
        super().__init__(added(one.table, other.table, most, effort))
        self.one, self.other = one, other

    def take(self, at: tuple[int, ...], last: int, out: dict[int, tuple[int, ...]]) -> None:
        mine, first, rest, more = divided(self.one.table, self.other.table, at, last)
        for mixture, counts, of_last in ((self.one, mine, first), (self.other, rest, more)):
            if of_last or any(counts):
                mixture.take(counts, of_last, out)


class InGroup(Mixture):
    """The nodes of one group of the network.

    Pods of a set count only in whole steps (slices, or all pods that must share a group), and sets
    with a limit count no further than that.
    """

    def __init__(self, inside: Mixture, steps: tuple[int, ...], limits: tuple[Limit, ...]) -> None:
        self.inside, self.steps = inside, steps
        table = inside.table
        for sets, most in limits:
            table = _limited_together(table, sets, most)
        if table.ndim:
            whole = [
                np.minimum(-(-np.arange(n) // step) * step, n - 1)
                for n, step in zip(table.shape, steps, strict=False)
            ]
            table = table[np.ix_(*whole)]
        super().__init__(np.where(table < 0, NONE, table // steps[-1] * steps[-1]))

    def take(self, at: tuple[int, ...], last: int, out: dict[int, tuple[int, ...]]) -> None:
        counts = [-(-n // step) * step for n, step in zip((*at, last), self.steps, strict=True)]
        self.inside.take(tuple(counts[:-1]), counts[-1], out)


def together(mixtures: Sequence[Mixture], most: int, effort: Effort) -> Mixture | None:
    """Combine all mixtures; None if they hold no pod. `most`: cap for pods of the last set."""
    alike: dict[bytes, list[Mixture]] = {}
    for mixture in mixtures:
        if (mixture.table >= 0).sum() > 1 or mixture.table.max() > 0:
            alike.setdefault(mixture.table.tobytes(), []).append(mixture)
    found: Mixture | None = None
    for items in alike.values():
        more = items[0] if len(items) == 1 else Alike(items, most, effort)
        found = more if found is None else Both(found, more, most, effort)
    return found


def limited(table: Table, limits: Sequence[int | None]) -> Table:
    """Return the table with a limit on the pods of each set; None = no limit."""
    if all(limit is None for limit in limits):
        return table
    table = table.copy()
    for axis, limit in enumerate(limits[:-1]):
        if limit is not None:
            beyond = [slice(None)] * table.ndim
            beyond[axis] = slice(limit + 1, None)
            table[tuple(beyond)] = NONE
    return table if limits[-1] is None else np.minimum(table, limits[-1])


def _limited_together(table: Table, sets: tuple[int, ...], most: int) -> Table:
    """Return the table with a limit `most` on the pods of these sets together."""
    used = np.zeros(table.shape, np.int64)
    for axis, pods in enumerate(np.indices(table.shape)):
        if axis in sets:
            used = used + pods
    if table.ndim in sets:
        table = np.minimum(table, most - used)
    return np.where((table < 0) | (used > most), NONE, table)


def added(one: Table, other: Table, most: int, effort: Effort) -> Table:
    """Return the table of two disjoint sets of nodes together."""
    first, second = corners(one), corners(other)
    if len(second) < len(first):
        one, other, first = other, one, second
    effort.spend(len(first), other.size)
    total = np.full(other.shape, NONE, np.int64)
    for corner in first.tolist():
        fit = one[tuple(corner)]
        if total.ndim == 1:  # without a copy
            by = corner[0]
            np.maximum(total[by:], fit + other[: len(total) - by], out=total[by:])
            np.maximum(total[:by], fit + other[0], out=total[:by])
        else:
            np.maximum(total, fit + shifted(other, corner), out=total)
    np.minimum(total, most, out=total)
    total[total < 0] = NONE
    return total


def divided(
    one: Table, other: Table, at: tuple[int, ...], last: int
) -> tuple[tuple[int, ...], int, tuple[int, ...], int]:
    """Divide pods between two sets of nodes that hold them together."""
    found = corners(one)
    wanted = np.array(at, np.int64)
    rest = np.maximum(wanted - found, 0)
    total = one[tuple(found.T)] + other[tuple(rest.T)]
    best = int(np.flatnonzero(total >= last)[0])
    mine = np.minimum(found[best], wanted)
    first = min(int(one[tuple(found[best])]), last)
    return tuple(mine.tolist()), first, tuple((wanted - mine).tolist()), last - first


def corners(table: Table) -> NDArray[np.int64]:
    """Return the Pareto-optimal mixtures of a table, as its indices, one per row."""
    best = table >= 0
    for axis in range(table.ndim):
        ahead = [slice(None)] * table.ndim
        behind = ahead.copy()
        ahead[axis], behind[axis] = slice(1, None), slice(None, -1)
        best[tuple(behind)] &= table[tuple(behind)] > table[tuple(ahead)]
    if not table.ndim:
        return np.zeros((1, 0), np.int64)
    return np.argwhere(best)


def shifted(table: Table, by: Sequence[int]) -> Table:
    """Return the table shifted by `by` pods: the entry at n is the old one at max(n - by, 0)."""
    if not table.ndim:
        return table
    return table[
        np.ix_(*[np.maximum(np.arange(n) - k, 0) for n, k in zip(table.shape, by, strict=True)])
    ]
