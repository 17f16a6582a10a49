"""Places for several pod sets of a gang that compete for the same nodes: the search for those that
placing one set after the other misses, and the proof that there are none.

Pod sets on different GPU models do not compete. Those on one are looked at together, on every node
that holds any of their pods: what mixtures it holds (mixtures.py), and what the nodes of each group
of the network hold together where a set has to be in one, may have so many in a leaf, or goes by
slices. The answer is exact until MAX_EFFORT is used up. Strategies have no say: it is asked for
where they have found nothing.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.index import PoolIndex
from scheduling.engine.cluster.index_layout import Domains, Ints
from scheduling.engine.native import copied_by_fields
from scheduling.engine.placement.fit import free_nics, share_milli, share_units, units_left
from scheduling.engine.placement.mixtures import (
    NONE,
    Effort,
    InGroup,
    Mixture,
    OfNode,
    Table,
    TooMuch,
    added,
    limited,
    together,
)
from scheduling.engine.placement.plan import NetworkWish
from scheduling.engine.placement.request import HYPER
from scheduling.engine.placement.view import PoolView
from scheduling.engine.types import MILLI, JobRequest, PodSetSpec

# Cells of tables that one search may look at (about 0.1 s), cells of one table, and combinations of
# the pools that pod sets accept.
MAX_EFFORT = 30_000_000
MAX_CELLS = 1 << 15
MAX_COMBINATIONS = 16

# A pool that a pod set may use, GPU-milli of each device there, and the nodes.
Choice = tuple[PoolIndex, int, int]
# Pods of a set by node number, in a pool.
Share = tuple[int, PoolIndex, dict[int, int]]


@dataclass(frozen=True, slots=True)
class JointPodSet:
    """A pod set by number, how many pods of it, how they lie, and where they may be."""

    index: int
    spec: PodSetSpec
    pods: int
    wish: NetworkWish
    choices: tuple[Choice, ...]


copied_by_fields(JointPodSet)


class Joint:
    """One search. `gave_up`: it ended before everything was looked at; `short`: beside all others
    only so many pods of this set fit, of all sets together (-1) no more than so many."""

    def __init__(self, state: ClusterState, job: JobRequest, effort: Effort) -> None:
        self.state, self.job, self.effort = state, job, effort
        self.gave_up = False
        self.short: tuple[int, int] | None = None
        self._known: dict[tuple[object, ...], list[Share] | None] = {}

    def find(self, sets: Sequence[JointPodSet]) -> list[Share] | None:
        """Nodes for all of these; None if there are none, or none were found (`gave_up`)."""
        pools = [list(dict.fromkeys(pool for pool, _, _ in s.choices)) for s in sets]
        for tried, chosen in enumerate(product(*pools)):
            if tried >= MAX_COMBINATIONS:
                self.gave_up = True
                return None
            found: list[Share] = []
            for pool in dict.fromkeys(chosen):
                members = [s for s, p in zip(sets, chosen, strict=True) if p is pool]
                more = self._in_pool(pool, members)
                if more is None:
                    break
                found += more
            else:
                return found
        return None

    def _in_pool(self, pool: PoolIndex, sets: list[JointPodSet]) -> list[Share] | None:
        key = (pool, *((s.index, s.pods) for s in sets))
        if key not in self._known:
            try:
                self._known[key] = _Pool(self, pool, sets).solve()
            except TooMuch:
                self.gave_up = True
                self._known[key] = None
        return self._known[key]


class _Pool:
    """The pod sets on one pool, the last of them being that of the tables' values: one of shares of
    GPUs if there is any, else the largest. Raises TooMuch where the tables would be too large."""

    def __init__(self, search: Joint, pool: PoolIndex, sets: list[JointPodSet]) -> None:
        self.search, self.state, self.pool = search, search.state, pool
        self.layout, self.effort = pool.layout, search.effort
        self.sets = sorted(sets, key=lambda s: (s.spec.is_share, s.pods, s.index))
        self.specs = [s.spec for s in self.sets]
        self.shape = tuple(s.pods + 1 for s in self.sets[:-1])
        self.most = self.sets[-1].pods
        if math.prod(self.shape) > MAX_CELLS:
            raise TooMuch
        self.grid = np.indices(self.shape) if self.shape else np.zeros((0,), np.int64)
        self.milli: dict[int, tuple[int, ...]] = {}
        self.tables: dict[tuple[object, ...], Table] = {}

    def solve(self) -> list[Share] | None:
        nodes = self._nodes()
        if nodes is None:
            return None
        if self._too_many(nodes):
            return None
        levels = self._levels(nodes)
        if levels is None:
            raise TooMuch  # hyper-nodes lie across the groups of another level
        found = self._inside(levels, nodes)
        corner = tuple(s.pods for s in self.sets[:-1])
        fit = NONE if found is None else int(found.table[corner])
        if found is None or fit < self.most:
            if fit >= 0 and self.search.short is None:
                self.search.short = self.sets[-1].index, fit
            return None
        taken: dict[int, tuple[int, ...]] = {}
        found.take(corner, self.most, taken)
        return [
            (s.index, self.pool, {n: mine for n, pods in taken.items() if (mine := pods[at])})
            for at, s in enumerate(self.sets)
        ]

    def _nodes(self) -> dict[int, int] | None:
        """Numbers of the nodes that hold any of the pods, with the sets that may be there as a bit
        set; None where some set does not even fit alone, or all need more than there is."""
        found: dict[int, int] = {}
        for at, s in enumerate(self.sets):
            room = 0
            for pool, milli, mask in s.choices:
                if pool is not self.pool:
                    continue
                if s.wish.required is not None:
                    mask &= self._domains(s.wish.required).known
                view = PoolView(self.state, pool, s.spec, milli, mask)
                numbers, pods = view.capacity()
                room += view.room(numbers, pods)
                for number in numbers.tolist():
                    found[number] = found.get(number, 0) | 1 << at
            if room < s.pods:
                return None
        slots = self.layout.slot_array[np.array(sorted(found), np.int64)]
        for has, asked in (
            (self.state.free, [0 if s.is_share else s.gpus for s in self.specs]),
            (self.state.cpu, [s.cpu_milli for s in self.specs]),
            (self.state.memory, [s.memory_mib for s in self.specs]),
        ):
            need = sum(a * s.pods for a, s in zip(asked, self.sets, strict=True))
            if need and int(np.frombuffer(has, np.int64)[slots].sum()) < need:
                return None
        return dict(sorted(found.items()))

    def _too_many(self, nodes: dict[int, int]) -> bool:
        """Whether the nodes hold fewer pods in all, or pods with fewer GPUs, than are asked for,
        each node holding the most it can: quickly known, also of thousands of pods."""
        alike = Counter(id(self._table(number, sets)) for number, sets in nodes.items())
        for weights in ([1] * len(self.specs), [max(s.gpus, 1) for s in self.specs]):
            value = -self._used([-w for w in weights])
            most = sum(
                alike[id(table)] * int(np.where(table < 0, 0, value + weights[-1] * table).max())
                for table in self.tables.values()
            )
            if most < sum(w * s.pods for w, s in zip(weights, self.sets, strict=True)):
                if weights[0] == weights[-1] == 1:
                    self.search.short = -1, most
                return True
        return False

    # --- groups -------------------------------------------------------------------------------
    def _domains(self, level: int) -> Domains:
        return self.layout.hyper if level == HYPER else self.layout.levels[level]

    def _levels(self, nodes: dict[int, int]) -> list[int] | None:
        """Levels at which groups matter, the widest first; None where one does not nest in the
        other."""
        used = {s.wish.required for s in self.sets if s.wish.required is not None}
        if any(s.max_per_leaf is not None for s in self.specs):
            used.add(0)
        levels = sorted(used - {HYPER}, reverse=True)
        if HYPER not in used:
            return levels
        at = np.array(list(nodes), np.int64)
        for place in range(len(levels), -1, -1):
            chain = [*levels[:place], HYPER, *levels[place:]]
            groups = [self._domains(level).of[at] for level in chain]
            if all(_nests(a, b) for b, a in pairwise(groups)):
                return chain
        return None

    def _inside(self, levels: list[int], nodes: dict[int, int]) -> Mixture | None:
        """What these nodes hold together."""
        if not levels:
            mixtures: list[Mixture] = [
                OfNode(self._table(number, sets), number) for number, sets in nodes.items()
            ]
            return together(mixtures, self.most, self.effort)
        level, of = levels[0], self._domains(levels[0]).of
        groups: dict[int, dict[int, int]] = {}
        for number, sets in nodes.items():
            groups.setdefault(int(of[number]), {})[number] = sets
        steps = tuple(
            (s.wish.slice_size or s.pods) if s.wish.required == level else 1 for s in self.sets
        )
        limits = tuple(s.max_per_leaf if level == 0 else None for s in self.specs)
        inside = (self._inside(levels[1:], members) for members in groups.values())
        found: list[Mixture] = [InGroup(mixture, steps, limits) for mixture in inside if mixture]
        return together(found, self.most, self.effort)

    # --- one node -----------------------------------------------------------------------------
    def _table(self, number: int, sets: int) -> Table:
        """The mixtures that one node holds; nodes with as much left share a table."""
        state, slot = self.state, self.layout.slots[number]
        node, specs = state.facts[slot], self.specs
        assert node is not None
        sizes = tuple(share_milli(node.gpu_memory_mib, s) for s in specs)
        shares, whole = any(s.is_share for s in specs), MILLI
        partial = tuple(sorted(state.partial[slot].values())) if shares else ()
        if any(s.gpu_memory_mib for s in specs):
            memory = node.gpu_memory_mib
            whole = MILLI * memory
            sizes = tuple(
                share_units(memory, s) if m else 0 for s, m in zip(specs, sizes, strict=True)
            )
            partial = tuple(sorted(left for left, _ in units_left(state, slot)))
        nics = free_nics(state, slot).bit_count() if any(s.nics for s in specs) else 0
        names = sorted({name for s in specs for name in s.extended})
        extended = tuple([state.extended[slot].get(name, 0) for name in names])
        plain = state.free[slot], state.cpu[slot], state.memory[slot], state.pods[slot], nics
        key = (sets, whole, sizes, partial, extended, *plain)
        known = self.tables.get(key)
        if known is not None:
            return known
        self.effort.spend(1, 8 * int(np.prod(self.shape, dtype=np.int64)))
        free, cpu, memory, pods, _ = plain
        table = self._gpus(free, partial, sizes, whole)
        amounts = [
            (cpu, [s.cpu_milli for s in specs]),
            (memory, [s.memory_mib for s in specs]),
            (pods, [1] * len(specs)),
            (nics, [s.nics for s in specs]),
        ]
        for name, left in zip(names, extended, strict=True):
            amounts.append((left, [s.extended.get(name, 0) for s in specs]))
        for left, asked in amounts:
            if any(asked):
                table = np.minimum(table, self._amount(left, asked))
        may = [sets >> at & 1 for at in range(len(specs))]
        limits = [s.max_per_node if ok else 0 for s, ok in zip(specs, may, strict=True)]
        table = np.minimum(limited(table, limits), self.most)
        table = self.tables[key] = np.where(table < 0, NONE, table)
        return table

    def _used(self, asked: Sequence[int]) -> Ints:
        """What so many pods of the first sets take of an amount."""
        used = np.zeros(self.shape, np.int64)
        for amount, pods in zip(asked[:-1], self.grid, strict=True):
            used = used + amount * pods
        return used

    def _amount(self, left: int, asked: Sequence[int]) -> Table:
        rest = left - self._used(asked)
        fit = rest // asked[-1] if asked[-1] else np.full(self.shape, self.most, np.int64)
        return np.where(rest < 0, NONE, fit)

    def _gpus(
        self, free: int, partial: tuple[int, ...], sizes: tuple[int, ...], full: int
    ) -> Table:
        """What fits by GPUs alone: `sizes` of each pod's part of a GPU, `partial` what is left of
        the partly used ones, where a `full` GPU is so much."""
        specs = self.specs
        whole = [
            s.gpus if not s.gpus or m == full else 0 for s, m in zip(specs, sizes, strict=True)
        ]
        shares = [at for at, s in enumerate(specs) if s.gpus and sizes[at] < full]
        if any(s.gpus and not m for s, m in zip(specs, sizes, strict=True)):
            return self._gpus_without(free, partial, sizes, full)
        if not shares:
            return self._amount(free, whole)
        if shares == [len(specs) - 1]:
            size = sizes[-1]
            left = free - self._used(whole)
            fit = left * (full // size) + sum(part // size for part in partial)
            return np.where(left < 0, NONE, fit)
        left = free - self._used(whole)
        table = np.full(self.shape, NONE, np.int64)
        for devices, fit in enumerate(self._of_devices(free, partial, sizes, shares, full)):
            table = np.where(left == devices, fit, table)
        return table

    def _gpus_without(
        self, free: int, partial: tuple[int, ...], sizes: tuple[int, ...], full: int
    ) -> Table:
        """Where the GPUs are too small for some set, of which no pod is here."""
        others = tuple(m or 1 for m in sizes)
        limits = [0 if s.gpus and not m else None for s, m in zip(self.specs, sizes, strict=True)]
        return limited(self._gpus(free, partial, others, max(full, MILLI)), limits)

    def _of_devices(
        self,
        free: int,
        partial: tuple[int, ...],
        sizes: tuple[int, ...],
        shares: list[int],
        full: int,
    ) -> Iterator[Table]:
        """What shares of several sizes fit on the partly used devices and 0, 1, … `free` others."""
        last = len(self.specs) - 1
        asked = [sizes[at] if at in shares else 0 for at in range(last + 1)]

        if last not in shares:
            raise TooMuch  # it is shares on other nodes, and whole GPUs here

        def device(left: int) -> Table:
            return self._amount(left, asked)

        total = np.where(self._used(asked) > 0, NONE, 0)
        for part in partial:
            total = added(total, device(part), self.most, self.effort)
        yield total
        for _ in range(free):
            total = added(total, device(full), self.most, self.effort)
            yield total


def _nests(narrow: Ints, wide: Ints) -> bool:
    """Whether nodes of one narrow group are in one wide group; in no group (-1) is alone."""
    pairs = {(n, w) for n, w in zip(narrow.tolist(), wide.tolist(), strict=True) if n >= 0}
    return len(pairs) == len({n for n, _ in pairs}) and not (
        (narrow < 0).any() and (wide >= 0).any()
    )
