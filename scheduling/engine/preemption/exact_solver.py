"""The least loss that makes room for pods on few nodes.

It is exact by GPUs, CPU, memory, NICs and extended resources. Tables say what each single node has
to give up for given numbers of pods of each pod set. The tables are joined group by group of the
network, where slices and required levels restrict what a group may hold. Units on several nodes
couple the tables: on each node such a unit weighs in proportion to its GPUs there. That bounds the
loss from below, and branch and bound decides which of these units go.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.columns import PodKey, extended_of
from scheduling.engine.cluster.constraints import admits
from scheduling.engine.placement.fit import free_nics
from scheduling.engine.placement.pod_rules import devices_at, frees
from scheduling.engine.placement.request import HYPER_NODE
from scheduling.engine.preemption.candidates import EvictionCandidate, bookings_of
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import MILLI, FreeableDevices, JobRequest, PodSetSpec

# Limits: nodes, units on one node, and ways to divide the pods of all pod sets.
MAX_NODES = 64
MAX_UNITS = 9
MAX_WAYS = 128
# Limits of the bounds in one search and of the joins in all of them; after that the search returns
# the best choice so far.
MAX_BOUNDS = 96
MAX_JOINS = 300_000

Counts = tuple[int, ...]  # pods of each pod set
# GPU-milli, milli-CPU, MiB of memory, pods, NICs, and each extended resource that is asked for.
Amounts = tuple[int, ...]
# The units taken, as a tree: nothing, the units of a node, or two trees.
_Trail = tuple[object, ...]
_Ways = dict[Counts, tuple[int, _Trail]]


@dataclass(slots=True)
class WantedPods:
    """Pods of one set.

    `asks`: what a pod needs. `level`: the number of the level at which one group has to hold all
    pods, or each slice of `size` pods; -1 = they may be anywhere.
    """

    spec: PodSetSpec
    count: int
    asks: Amounts
    level: int
    size: int


@dataclass(slots=True)
class Spot:
    """A node.

    `free`: what is free there. `most`: how many pods of each set it may hold. `groups`: its groups
    by level, "" = none. `units` and `gives`: the units there and what each would give back.
    `shared`: for each device that pods share, those pods; the device is free once all of them are
    gone.
    """

    name: str
    free: Amounts
    most: Counts
    groups: tuple[str, ...]
    units: list[EvictionCandidate] = field(default_factory=list)
    gives: list[Amounts] = field(default_factory=list)
    shared: tuple[frozenset[PodKey], ...] = ()
    # For each set, when the node has the devices that its pods claim; None = amounts say it.
    devices: tuple[FreeableDevices | None, ...] = ()
    # Pods -> the smallest sets of units, by number, that make room for them.
    needs: dict[Counts, list[tuple[int, ...]]] = field(default_factory=dict)


class Optimum:
    """The search for units of the least weight that make room for all pods.

    `within`: the level at which one group has to hold all pod sets, -1 = none. `leaf_most`: how
    many pods of each set a group of the first level may hold.
    """

    def __init__(
        self,
        wanted: Sequence[WantedPods],
        spots: Iterable[Spot],
        within: int,
        leaf_most: Counts,
        cluster: ClusterState,
    ) -> None:
        self._wanted = wanted
        self._within = within
        self._leaf_most = leaf_most
        self._full: Counts = tuple([w.count for w in wanted])
        self._nothing: Counts = (0,) * len(wanted)
        self._spots = [spot for spot in spots if any(spot.most)]
        for spot in self._spots:
            if not spot.needs:
                _tabulate(spot, wanted, cluster)
        self._on: dict[EvictionCandidate, int] = {}  # GPU-milli of a unit on all these nodes
        self._spread: set[EvictionCandidate] = set()  # units on several of these nodes
        for spot in self._spots:
            for unit in spot.units:
                if unit in self._on:
                    self._spread.add(unit)
                self._on[unit] = self._on.get(unit, 0) + unit.on[spot.name]
        joins = ways(self._full) * sum([len(spot.needs) for spot in self._spots])
        self._max_bounds = max(3, min(MAX_BOUNDS, MAX_JOINS // max(1, joins)))
        self._tables: dict[
            tuple[str, frozenset[EvictionCandidate], frozenset[EvictionCandidate]], _Ways
        ] = {}
        levels = {w.level for w in wanted} | {within}
        if any(most < count for most, count in zip(leaf_most, self._full, strict=True)):
            levels.add(0)
        self._levels = sorted(level for level in levels if level >= 0)

    def search(
        self,
        already: frozenset[EvictionCandidate],
        without: frozenset[EvictionCandidate] = frozenset(),
    ) -> list[EvictionCandidate] | None:
        """Return the units to evict in addition to those that go `already`; None if none suffice.

        Units in `without` are not evicted.
        """
        best: list[EvictionCandidate] | None = None
        least = -1
        first = self._bound(already, without)
        if first is None:
            return None
        heap = [(first[0], 0, already, without, first[1])]
        bounds, number = 1, 1
        while heap:
            bound, _, out, stay, used = heappop(heap)
            if 0 <= least <= bound:
                break
            taken = (used | out) - already
            weight = sum([unit.weight for unit in taken])
            if least < 0 or weight < least:
                best, least = sorted(taken, key=lambda u: u.order), weight
            open_units = [u for u in used & self._spread if u not in out]
            if weight <= bound + len(self._spots) or not open_units:  # proportions are rounded down
                continue
            if bounds >= self._max_bounds:
                break
            branch = max(open_units, key=lambda u: (u.weight, u.order))
            for now_out, now_stay in ((out | {branch}, stay), (out, stay | {branch})):
                found = self._bound(now_out, now_stay)
                bounds += 1
                if found is None:
                    continue
                extra = sum([unit.weight for unit in now_out if unit not in already])
                if least < 0 or found[0] + extra < least:
                    state = (found[0] + extra, number, now_out, now_stay, found[1])
                    heappush(heap, state)
                    number += 1
        return best

    def _bound(
        self, out: frozenset[EvictionCandidate], stay: frozenset[EvictionCandidate]
    ) -> tuple[int, frozenset[EvictionCandidate]] | None:
        """Return a lower bound of the loss beyond `out` while `stay` stays, and the units of it."""
        ways = self._joined(out, stay)
        found = ways.get(self._full)
        return None if found is None else (found[0], frozenset(_units(found[1])))

    def _joined(
        self, out: frozenset[EvictionCandidate], stay: frozenset[EvictionCandidate]
    ) -> _Ways:
        tables = [(spot.groups, self._table(spot, out, stay)) for spot in self._spots]
        for level in self._levels:
            merged: dict[str, _Ways] = {}
            groups_of: dict[str, tuple[str, ...]] = {}
            for groups, ways in tables:
                key = groups[level]
                groups_of.setdefault(key, groups)
                merged[key] = self._join(merged[key], ways) if key in merged else ways
            tables = [
                (groups_of[key], self._allowed(ways, level, bool(key)))
                for key, ways in merged.items()
            ]
            if level == self._within:
                whole = [w[self._full] for _, w in tables if self._full in w]
                return {self._full: min(whole, key=lambda way: way[0])} if whole else {}
        found: _Ways = {self._nothing: (0, ())}
        for _, ways in tables:
            found = self._join(found, ways)
        return found

    def _join(self, some: _Ways, others: _Ways) -> _Ways:
        if len(others) == 1:
            return some
        found: _Ways = dict(some)
        full = self._full
        for more, (weight, trail) in others.items():
            if not any(more):
                continue
            for pods, (before, path) in some.items():
                both = tuple([a + b for a, b in zip(pods, more, strict=True)])
                if any(n > most for n, most in zip(both, full, strict=True)):
                    continue
                total = before + weight
                known = found.get(both)
                if known is None or total < known[0]:
                    found[both] = (total, (path, trail))
        return found

    def _allowed(self, ways: _Ways, level: int, named: bool) -> _Ways:
        """Return the ways that one group of the level may hold."""
        found: _Ways = {}
        for pods, way in ways.items():
            for at, (n, wanted) in enumerate(zip(pods, self._wanted, strict=True)):
                here = wanted.level == level
                if n and here and (n % wanted.size or not named):
                    break
                if n and self._within == level and not named:
                    break
                if level == 0 and n > self._leaf_most[at]:
                    break
            else:
                found[pods] = way
        return found

    def _table(
        self, spot: Spot, out: frozenset[EvictionCandidate], stay: frozenset[EvictionCandidate]
    ) -> _Ways:
        """Return the least that the node has to lose for each number of pods."""
        mine = frozenset(spot.units)
        key = (spot.name, out & mine, stay & mine)
        known = self._tables.get(key)
        if known is not None:
            return known
        shares = [
            0 if unit in out else unit.weight * unit.on[spot.name] // self._on[unit]
            for unit in spot.units
        ]
        barred = [unit in stay for unit in spot.units]
        gone = [unit in out for unit in spot.units]
        found: _Ways = {}
        for pods, choices in spot.needs.items():
            best = -1
            chosen: tuple[int, ...] = ()
            for choice in choices:
                if any(barred[n] for n in choice):
                    continue
                weight = sum([shares[n] for n in choice])
                if best < 0 or weight < best:
                    best, chosen = weight, choice
            if best >= 0:
                found[pods] = (best, tuple([spot.units[n] for n in chosen if not gone[n]]))
        self._tables[key] = found
        return found


def _units(trail: _Trail) -> Iterable[EvictionCandidate]:
    """Yield the leaves of a tree."""
    left: list[object] = [trail]
    while left:
        at = left.pop()
        if isinstance(at, EvictionCandidate):
            yield at
        elif isinstance(at, tuple):
            left.extend(at)


def _tabulate(spot: Spot, wanted: Sequence[WantedPods], cluster: ClusterState) -> None:
    """Fill in `needs` of the node, using its cheapest units."""
    if len(spot.units) > MAX_UNITS:
        cheap = sorted(
            range(len(spot.units)),
            key=lambda n: (spot.units[n].weight // spot.units[n].on[spot.name], n),
        )[:MAX_UNITS]
        spot.units = [spot.units[n] for n in cheap]
        spot.gives = [spot.gives[n] for n in cheap]
    masks = sorted(range(1 << len(spot.units)), key=lambda mask: (mask.bit_count(), mask))
    have: list[tuple[int, Amounts]] = []
    by_devices = any(of is not None for of in spot.devices)
    gone = [_keys(unit) for unit in spot.units] if by_devices or spot.shared else []
    freed_by = [by for pods in spot.shared if (by := _holders(pods, gone))]
    for mask in masks:
        there = list(spot.free)
        there[0] += MILLI * sum([mask & by == by for by in freed_by])
        for n, gives in enumerate(spot.gives):
            if mask >> n & 1:
                there = [left + more for left, more in zip(there, gives, strict=True)]
        have.append((mask, tuple(there)))
    known: dict[Amounts, list[tuple[int, ...]]] = {}
    for pods in _counts(spot.most):
        need = [0] * len(spot.free)
        for n, w in zip(pods, wanted, strict=True):
            need = [so_far + n * each for so_far, each in zip(need, w.asks, strict=True)]
        asked = tuple(need)
        if by_devices:
            enough = [
                (mask, amounts) for mask, amounts in have if _frees(spot, pods, mask, gone, cluster)
            ]
            if smallest := _smallest(enough, asked):
                spot.needs[pods] = smallest
            continue
        if asked not in known:
            known[asked] = _smallest(have, asked)
        if known[asked]:
            spot.needs[pods] = known[asked]


def _holders(pods: frozenset[PodKey], of_units: Sequence[frozenset[PodKey]]) -> int:
    """Return the units that hold these pods, as a bit set; 0 = others hold some of them, too."""
    found, left = 0, pods
    for n, keys in enumerate(of_units):
        if not keys.isdisjoint(pods):
            found |= 1 << n
            left -= keys
    return 0 if left else found


def _keys(unit: EvictionCandidate) -> frozenset[PodKey]:
    return frozenset([(unit.record.job.id, *pod) for pod in unit.pods])


def _frees(
    spot: Spot,
    pods: Counts,
    mask: int,
    of_units: Sequence[frozenset[PodKey]],
    cluster: ClusterState,
) -> bool:
    """Return whether the node has all devices for these pods once the units in `mask` are gone."""
    gone = frozenset([pod for n, keys in enumerate(of_units) if mask >> n & 1 for pod in keys])
    for of, count in zip(spot.devices, pods, strict=True):
        if of is not None and count and not frees(cluster, of, count, gone):
            return False
    return True


def _smallest(have: Sequence[tuple[int, Amounts]], asked: Amounts) -> list[tuple[int, ...]]:
    """Return the sets of units that give as much as asked, none of which contains another."""
    found: list[int] = []
    for mask, there in have:
        if any(need and left < need for left, need in zip(there, asked, strict=True)):
            continue
        if not any(mask & smaller == smaller for smaller in found):
            found.append(mask)
    return [tuple([n for n in range(MAX_UNITS) if mask >> n & 1]) for mask in found]


def _counts(most: Counts) -> Iterable[Counts]:
    """Return all counts of pods by pod set up to these."""
    found: list[Counts] = [()]
    for limit in most:
        found = [(*pods, n) for pods in found for n in range(limit + 1)]
    return found


def ways(counts: Iterable[int]) -> int:
    """Return in how many ways these pods can be divided in two."""
    found = 1
    for count in counts:
        found *= count + 1
    return found


# --- input of the search ----------------------------------------------------------------------
Sets = Sequence[tuple[PodSetSpec, int]]  # pod sets, and how many pods of each


def spots_of(
    state: SchedulerState,
    record: JobRecord,
    sets: Sets,
    units: Iterable[EvictionCandidate],
    avoid: frozenset[str],
) -> list[Spot] | None:
    """Return the nodes that may take pods of the job, or None if the exact search does not apply.

    It does not if there are too many nodes or too many units on a node where pods share GPUs, or if
    the job itself asks for shares, which no count of GPU-milli describes.
    """
    cluster, pools = state.cluster, state.pools
    if record.pods or any(s.gpu_milli < MILLI or s.gpu_memory_mib for s, _ in sets):
        return None
    if not sets or ways([n for _, n in sets]) > MAX_WAYS:
        return None
    of_model: dict[str, Sequence[int]] = {}
    for s, _ in sets:
        pool = cluster.index.pools.get(s.gpu_models[0])
        if pool is None or pool.layout.size > MAX_NODES:
            return None
        of_model[s.gpu_models[0]] = pool.layout.slots
    names = _extended(sets)
    found: dict[str, Spot] = {}
    for model, slots in of_model.items():
        for slot in slots:
            node, name = cluster.facts[slot], cluster.names[slot]
            if node is None or not cluster.usable[slot] or name in avoid:
                continue
            most = tuple(
                [
                    min(n, len(node.devices) // s.gpus, s.max_per_node or n)
                    if s.gpu_models[0] == model and admits(node, s)
                    else 0
                    for s, n in sets
                ]
            )
            left = cluster.extended[slot]
            free = (
                *(cluster.free[slot] * MILLI, cluster.cpu[slot], cluster.memory[slot]),
                *(cluster.pods[slot], free_nics(cluster, slot).bit_count()),
                *[left.get(resource, 0) for resource in names],
            )
            devices = tuple([devices_at(s, name) for s, _ in sets])
            found[name] = Spot(name, free, most, pools.groups_of[name], devices=devices)
    for unit in units:
        gives: dict[str, list[int]] = {}
        for p, spec in bookings_of(cluster, unit):
            if p.node not in found:
                continue
            node = cluster.node(p.node)
            assert node is not None
            held = extended_of(node, p, spec)
            more = (
                *(len(p.devices) * MILLI if p.milli == MILLI else 0, spec.cpu_milli),
                spec.memory_mib,
                *(1, len(p.nics) if spec.nics else 0),
                *[held.get(resource, 0) for resource in names],
            )
            before = gives.get(p.node, [0] * len(more))
            gives[p.node] = [some + each for some, each in zip(before, more, strict=True)]
        for name, sums in gives.items():
            if unit.on[name]:
                found[name].units.append(unit)
                found[name].gives.append(tuple(sums))
    for spot in found.values():
        spot.shared = _shared(cluster, spot.name)
        if spot.shared and len(spot.units) > MAX_UNITS:
            return None  # the cheapest of them alone might not free any device
    return list(found.values())


def _shared(cluster: ClusterState, name: str) -> tuple[frozenset[PodKey], ...]:
    """Return, for each healthy device of the node that pods share, those pods."""
    node = cluster.node(name)
    assert node is not None
    of: dict[int, list[PodKey]] = {d.index: [] for d in node.devices if d.healthy}
    for key in cluster.pods_on(name):
        booking = cluster.booking(key)
        assert booking is not None
        if booking.placement.milli < MILLI:
            for device in booking.placement.devices:
                if device in of:
                    of[device].append(key)
    return tuple([frozenset(keys) for keys in of.values() if keys])


def _extended(sets: Sets) -> list[str]:
    """Return the extended resources that any of these pods asks for."""
    return sorted({name for s, _ in sets for name, amount in s.extended.items() if amount})


def _asks(s: PodSetSpec, names: Iterable[str]) -> Amounts:
    extended = [s.extended.get(name, 0) for name in names]
    return (s.gpus * MILLI, s.cpu_milli, s.memory_mib, 1, s.nics, *extended)


def least_of(
    state: SchedulerState,
    job: JobRequest,
    sets: Sets,
    spots: Sequence[Spot],
    within: str,
    already: frozenset[EvictionCandidate],
) -> list[EvictionCandidate] | None:
    """Return the units of least weight that make room for the pods; None if no units do.

    All pods go into one group of the level `within`; "" = anywhere.
    """
    number = {name: at for at, name in enumerate((*state.cluster.levels, HYPER_NODE))}
    names = _extended(sets)
    wanted = [
        WantedPods(
            s,
            count,
            _asks(s, names),
            number[s.required_level] if s.required_level else -1,
            s.slice_size or count,
        )
        for s, count in sets
    ]
    leaf_most = tuple([s.max_per_leaf or count for s, count in sets])
    at = number[within or job.required_level] if within or job.required_level else -1
    return Optimum(wanted, spots, at, leaf_most, state.cluster).search(already)
