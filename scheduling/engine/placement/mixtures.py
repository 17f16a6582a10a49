"""How many pods of several sets fit together, exactly: tables of the best mixtures, added up.

A table of k pod sets tells for every number of pods of the first k - 1 sets how many of the last
fit beside at least so many, no more being counted than are asked for. With fewer pods everything
fits more easily, so a table says all there is to say of a node, and two tables make that of both
nodes together (a max-plus convolution). Equal nodes, and equal groups of nodes, are added by
doubling. Going back through the sums tells which node takes what.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.int64]
# Sets that count together, and the most pods of all of them.
Limit = tuple[tuple[int, ...], int]
NONE = -(1 << 40)  # so many of the others do not fit at all
# What a step costs beside the cells that it looks at, in cells.
STEP = 4_000


class TooMuch(Exception):
    """The search takes more effort than is allowed."""


class Effort:
    """What is left of the effort of a search, in cells of tables."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, steps: int, cells: int) -> None:
        self.left -= steps * (cells + STEP)
        if self.left < 0:
            raise TooMuch


class Mixture:
    """The `table` of some nodes; `take` notes in `out`, by node number, which pods each is to take
    so that there are `at` of the first sets and `last` of the last one."""

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
    """Nodes, or groups of them, with equal tables; `tables`: of so many of them together."""

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
    """Nodes of one group of the network: of a set with a step other than 1 they count only by whole
    steps; of sets with a limit no more than that."""

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
    """All of these; None where they hold no pod. `most`: pods of the last set that are counted."""
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
    """The table where no more than so many pods of each set are allowed."""
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
    """The table where no more than so many pods of all these sets are allowed."""
    used = np.zeros(table.shape, np.int64)
    for axis, pods in enumerate(np.indices(table.shape)):
        if axis in sets:
            used = used + pods
    if table.ndim in sets:
        table = np.minimum(table, most - used)
    return np.where((table < 0) | (used > most), NONE, table)


def added(one: Table, other: Table, most: int, effort: Effort) -> Table:
    """The table of two disjoint sets of nodes."""
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
    """How so many pods are divided between two sets of nodes that hold them together."""
    found = corners(one)
    wanted = np.array(at, np.int64)
    rest = np.maximum(wanted - found, 0)
    total = one[tuple(found.T)] + other[tuple(rest.T)]
    best = int(np.flatnonzero(total >= last)[0])
    mine = np.minimum(found[best], wanted)
    first = min(int(one[tuple(found[best])]), last)
    return tuple(mine.tolist()), first, tuple((wanted - mine).tolist()), last - first


def corners(table: Table) -> NDArray[np.int64]:
    """The mixtures that no other one exceeds in everything, one a row."""
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
    """What the table says of as many pods less."""
    if not table.ndim:
        return table
    return table[
        np.ix_(*[np.maximum(np.arange(n) - k, 0) for n, k in zip(table.shape, by, strict=True)])
    ]
