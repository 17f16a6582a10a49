"""Place several pod sets of a gang that compete for the same nodes.

This exact search finds the places that placing one set after the other misses, or proves that there
are none. It runs only when the strategy has found no places, and ignores strategies itself.

Pod sets on different GPU models do not compete. For sets on one model, the search works out which
mixtures of pods each node holds (mixtures.py), and combines them over the nodes of each network
group if a set must share a group, has a limit per leaf, or comes in slices. Pods without GPUs need
no model and may lie in several pools; these pools are then searched together. If hyper-nodes extend
across the groups of another level, the search tries every way to divide pods among them. The answer
is exact unless MAX_EFFORT is used up.
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
    Limit,
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

# Table cells that one search may look at (about 0.1 s), cells of one table, and combinations of the
# pools that pod sets accept.
MAX_EFFORT = 30_000_000
MAX_CELLS = 1 << 15
MAX_COMBINATIONS = 16

# A pool that a pod set may use, the GPU-milli per device there, and the allowed nodes.
Choice = tuple[PoolIndex, int, int]
# Pools over which a pod set may be divided.
Pools = tuple[PoolIndex, ...]
# The number of a pod set, a pool, and the set's pods there by node number.
Share = tuple[int, PoolIndex, dict[int, int]]


@dataclass(frozen=True, slots=True)
class JointPodSet:
    """A pod set (by number), how many pods of it to place, and where they may or should be."""

    index: int
    spec: PodSetSpec
    pods: int
    wish: NetworkWish
    choices: tuple[Choice, ...]


copied_by_fields(JointPodSet)


class Joint:
    """One search.

    `gave_up`: it stopped before it had looked at everything. `short`: (pod set, how many of its
    pods fit beside all other sets); pod set -1 stands for all sets together.
    """

    def __init__(self, state: ClusterState, job: JobRequest, effort: Effort) -> None:
        self.state, self.job, self.effort = state, job, effort
        self.gave_up = False
        self.short: tuple[int, int] | None = None
        self._known: dict[tuple[object, ...], list[Share] | None] = {}

    def find(self, sets: Sequence[JointPodSet]) -> list[Share] | None:
        """Find nodes for all of these; None if there are none, or the search gave up."""
        options: list[list[Pools]] = [
            [(pool,) for pool in dict.fromkeys(pool for pool, _, _ in s.choices)] for s in sets
        ]
        wide = [at for at, s in enumerate(sets) if not s.spec.gpus and len(options[at]) > 1]
        if not wide:
            return self._on_any(sets, options)
        # First put each set in one pool: the tables are smaller, but a failure proves nothing.
        kept = self.effort.left // 2
        self.effort.left -= kept
        found = self._on_any(sets, options)
        self.effort.left += kept
        if found is not None:
            return found
        self.gave_up, self.short = False, None
        for at in wide:
            options[at] = [tuple([pool for (pool,) in options[at]])]
        return self._on_any(sets, options)

    def _on_any(
        self, sets: Sequence[JointPodSet], options: list[list[Pools]]
    ) -> list[Share] | None:
        """Place the sets on the first combination of these pools that holds them."""
        for tried, chosen in enumerate(product(*options)):
            if tried >= MAX_COMBINATIONS:
                self.gave_up = True
                return None
            found: list[Share] = []
            for pools, members in _apart(sets, chosen):
                more = self._in_pools(pools, members)
                if more is None:
                    break
                found += more
            else:
                return found
        return None

    def _in_pools(self, pools: Pools, sets: list[JointPodSet]) -> list[Share] | None:
        key = tuple((s.index, s.pods, tuple([pool for pool, _, _ in s.choices])) for s in sets)
        if key not in self._known:
            try:
                self._known[key] = _Pools(self, pools, sets).solve()
            except TooMuch:
                self.gave_up = True
                return None
        return self._known[key]


def _apart(
    sets: Sequence[JointPodSet], chosen: Sequence[Pools]
) -> list[tuple[Pools, list[JointPodSet]]]:
    """Limit each set to its chosen pools, and group the sets that share a pool."""
    parts: list[tuple[Pools, list[JointPodSet]]] = []
    for s, pools in zip(sets, chosen, strict=True):
        choices = tuple([choice for choice in s.choices if choice[0] in pools])
        all_pools, members = pools, [JointPodSet(s.index, s.spec, s.pods, s.wish, choices)]
        others: list[tuple[Pools, list[JointPodSet]]] = []
        for part in parts:
            if any(pool in pools for pool in part[0]):
                all_pools = tuple(dict.fromkeys([*part[0], *all_pools]))
                members = part[1] + members
            else:
                others.append(part)
        parts = [*others, (all_pools, members)]
    return parts


class _Pools:
    """The search for pod sets on given pools.

    The last set provides the values of the tables; it is one with shares of GPUs if there is any,
    else the largest. Node numbers continue from one pool to the next. Raises TooMuch if the tables
    would be too large.
    """

    def __init__(self, search: Joint, pools: Pools, sets: list[JointPodSet]) -> None:
        self.search, self.state, self.pools = search, search.state, pools
        self.effort = search.effort
        self.slots = [slot for pool in pools for slot in pool.layout.slots]
        self.known: dict[int, Ints] = {}
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
            return self._across()
        found = self._inside(levels, nodes)
        corner = tuple(s.pods for s in self.sets[:-1])
        fit = NONE if found is None else int(found.table[corner])
        if found is None or fit < self.most:
            if fit >= 0 and self.search.short is None:
                self.search.short = self.sets[-1].index, fit
            return None
        taken: dict[int, tuple[int, ...]] = {}
        found.take(corner, self.most, taken)
        shares: list[Share] = []
        start = 0
        for pool in self.pools:
            end = start + pool.layout.size
            for index in dict.fromkeys(s.index for s in self.sets):
                parts = [at for at, s in enumerate(self.sets) if s.index == index]
                mine = {
                    number - start: some
                    for number, pods in taken.items()
                    if start <= number < end and (some := sum([pods[at] for at in parts]))
                }
                if mine:
                    shares.append((index, pool, mine))
            start = end
        return shares

    def _across(self) -> list[Share] | None:
        """Search with hyper-nodes that extend across the groups of another level.

        Try each way to divide the pods that must be in hyper-nodes; each part then is a pod set on
        one hyper-node.
        """
        free = [s for s in self.sets if s.wish.required != HYPER]
        ways = [self._divided(s) for s in self.sets if s.wish.required == HYPER]
        for way in product(*ways):
            self.effort.spend(1, 0)
            parts = [part for of_set in way for part in of_set]
            found = _Pools(self.search, self.pools, free + parts).solve()
            # A single way does not tell how many pods fit beside the others.
            self.search.short = None
            if found is not None:
                return found
        return None

    def _divided(self, s: JointPodSet) -> list[list[JointPodSet]]:
        """Return every way to divide the pods of a set among hyper-nodes, in whole slices."""
        room: dict[str, int] = {}
        for pool, milli, mask in s.choices:
            view = PoolView(self.state, pool, s.spec, milli, mask)
            keys, held = pool.layout.hyper.keys, view.in_groups(*view.capacity(), HYPER)
            for group in held.nonzero()[0].tolist():
                room[keys[group]] = room.get(keys[group], 0) + int(held[group])
        size = s.wish.slice_size or s.pods
        ways: list[list[JointPodSet]] = []
        self._divide(s, size, [(key, pods // size) for key, pods in room.items()], s.pods, [], ways)
        return ways

    def _divide(
        self,
        s: JointPodSet,
        size: int,
        room: list[tuple[str, int]],
        pods: int,
        parts: list[JointPodSet],
        ways: list[list[JointPodSet]],
    ) -> None:
        self.effort.spend(1, 0)
        if not pods:
            ways.append(parts)
            return
        if sum([slices for _, slices in room]) * size < pods:
            return
        key, most = room[0]
        for slices in range(min(most, pods // size), -1, -1):
            here = [*parts, _on_hyper_node(s, key, slices * size)] if slices else parts
            self._divide(s, size, room[1:], pods - slices * size, here, ways)

    def _nodes(self) -> dict[int, int] | None:
        """Return the numbers of nodes that can hold any of the pods, with their sets as a bit set.

        None if some set does not fit even alone, or all sets together need more than there is.
        """
        found: dict[int, int] = {}
        for at, s in enumerate(self.sets):
            room = 0
            for pool, milli, mask in s.choices:
                if s.wish.required is not None:
                    mask &= _domains(pool, s.wish.required).known
                view = PoolView(self.state, pool, s.spec, milli, mask)
                numbers, pods = view.capacity()
                room += view.room(numbers, pods)
                start = self._first(pool)
                for number in numbers.tolist():
                    found[start + number] = found.get(start + number, 0) | 1 << at
            if room < s.pods:
                return None
        slots = np.array([self.slots[number] for number in found], np.int64)
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
        """Whether the nodes, each filled to its maximum, hold fewer pods or GPUs than requested.

        This check is quick, even for thousands of pods.
        """
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
    def _first(self, pool: PoolIndex) -> int:
        """Return the number of the first node of a pool."""
        return sum([p.layout.size for p in self.pools[: self.pools.index(pool)]])

    def _groups(self, level: int) -> Ints:
        """Return the group of each node at a level, numbered across all pools; -1 = in none."""
        known = self.known.get(level)
        if known is None:
            ids: dict[str, int] = {}
            found = []
            for pool in self.pools:
                domains = _domains(pool, level)
                here = [ids.setdefault(key, len(ids)) for key in domains.keys]
                found.append(np.array([*here, -1], np.int64)[domains.of])
            known = self.known[level] = np.concatenate(found)
        return known

    def _levels(self, nodes: dict[int, int]) -> list[int] | None:
        """Return the levels at which groups matter, widest first; None if they do not nest."""
        used = {s.wish.required for s in self.sets if s.wish.required is not None}
        if any(s.max_per_leaf is not None for s in self.specs):
            used.add(0)
        levels = sorted(used - {HYPER}, reverse=True)
        if HYPER not in used:
            return levels
        at = np.array(list(nodes), np.int64)
        for place in range(len(levels), -1, -1):
            chain = [*levels[:place], HYPER, *levels[place:]]
            groups = [self._groups(level)[at] for level in chain]
            if all(_nests(a, b) for b, a in pairwise(groups)):
                return chain
        return None

    def _inside(self, levels: list[int], nodes: dict[int, int]) -> Mixture | None:
        """Return what these nodes hold together, group by group."""
        if not levels:
            mixtures: list[Mixture] = [
                OfNode(self._table(number, sets), number) for number, sets in nodes.items()
            ]
            return together(mixtures, self.most, self.effort)
        level, of = levels[0], self._groups(levels[0])
        groups: dict[int, dict[int, int]] = {}
        for number, sets in nodes.items():
            groups.setdefault(int(of[number]), {})[number] = sets
        steps = tuple(
            (s.wish.slice_size or s.pods) if s.wish.required == level else 1 for s in self.sets
        )
        limits = self._leaf_limits() if level == 0 else ()
        inside = (self._inside(levels[1:], members) for members in groups.values())
        found: list[Mixture] = [InGroup(mixture, steps, limits) for mixture in inside if mixture]
        return together(found, self.most, self.effort)

    def _leaf_limits(self) -> tuple[Limit, ...]:
        """Return, for each set with a limit per leaf, its parts in `sets` and the limit."""
        return tuple(
            (tuple([at for at, other in enumerate(self.sets) if other.index == s.index]), limit)
            for s in {s.index: s for s in self.sets}.values()
            if (limit := s.spec.max_per_leaf) is not None
        )

    # --- one node -----------------------------------------------------------------------------
    def _table(self, number: int, sets: int) -> Table:
        """Return the mixtures that a node holds; nodes with the same amounts left share a table."""
        state, slot = self.state, self.slots[number]
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
        """Return how much of a resource the pods of the first sets take, by their numbers."""
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
        """Return what fits by GPUs alone.

        `sizes`: the part of a GPU that a pod of each set takes. `partial`: what is left of partly
        used GPUs. `full`: the size of a whole GPU. All three are in the same unit.
        """
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
        """Return what fits by GPUs alone if they are too small for some sets (size 0)."""
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
        """Yield which shares fit on the partly used devices and on 0, 1, … `free` more devices."""
        last = len(self.specs) - 1
        asked = [sizes[at] if at in shares else 0 for at in range(last + 1)]

        if last not in shares:
            raise TooMuch  # the last set takes shares on other nodes, but whole GPUs here

        def device(left: int) -> Table:
            return self._amount(left, asked)

        total = np.where(self._used(asked) > 0, NONE, 0)
        for part in partial:
            total = added(total, device(part), self.most, self.effort)
        yield total
        for _ in range(free):
            total = added(total, device(full), self.most, self.effort)
            yield total


def _domains(pool: PoolIndex, level: int) -> Domains:
    return pool.layout.hyper if level == HYPER else pool.layout.levels[level]


def _on_hyper_node(s: JointPodSet, key: str, pods: int) -> JointPodSet:
    """Return a pod set of `pods` pods that may only use one hyper-node."""
    choices: list[Choice] = []
    for pool, milli, mask in s.choices:
        hyper = pool.layout.hyper
        if key in hyper.id_of:
            choices.append((pool, milli, mask & hyper.masks[hyper.id_of[key]]))
    return JointPodSet(s.index, s.spec, pods, NetworkWish(None, None, None, 0), tuple(choices))


def _nests(narrow: Ints, wide: Ints) -> bool:
    """Whether each narrow group lies in one wide group; nodes in no narrow group do not count."""
    pairs = {(n, w) for n, w in zip(narrow.tolist(), wide.tolist(), strict=True) if n >= 0}
    return len(pairs) == len({n for n, _ in pairs})
