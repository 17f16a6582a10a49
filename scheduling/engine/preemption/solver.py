"""Choose the victims that make room for pods at the least cost, by GPU count.

Placement has the last word. The cost of a gang is shared by all pods that it makes room for. The
solver opens nodes one after the other where the next pod is cheapest; what has gone already counts
as free. Then it takes back the victims that turned out not to be needed, and tries a choice without
each expensive victim. It looks only at nodes that the cheapest units could open, so its running
time hardly grows with the cluster.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from scheduling.engine.preemption.candidates import EvictionCandidate
from scheduling.engine.types import MILLI

# Limits of the search: nodes looked at, for each pod and at least; passes that try to exchange a
# victim for others; up to how many units each unit is also tried as a victim around which the
# others are chosen; and how many of the chosen units a choice is tried without.
NODES_PER_POD = 4
NODES_AT_LEAST = 96
EXCHANGES = 64
FEW_UNITS = 96
DISPENSED_WITH = 8
GROUPS_PER_LEVEL = 4


Offer = tuple[int, list[EvictionCandidate]]  # price and units for one more pod on a node


@dataclass(slots=True)
class Room:
    """Nodes that may take pods: `free` GPU-milli now, and the units that could free more."""

    milli: int  # GPU-milli of one pod
    pods: int  # how many pods need room
    free: dict[str, int] = field(default_factory=dict)
    units: dict[str, list[EvictionCandidate]] = field(default_factory=dict)
    # Prices and first offers are the same in every pass. Key: whether a gang's cost is shared.
    prices: dict[bool, dict[EvictionCandidate, int]] = field(default_factory=dict)
    offers: dict[bool, list[tuple[int, str]]] = field(default_factory=dict)
    capacity: int | None = None  # pods that fit as it is; None = not counted yet

    def price(self, shared: bool) -> dict[EvictionCandidate, int]:
        if shared not in self.prices:
            units = {u for on_node in self.units.values() for u in on_node}
            self.prices[shared] = {u: u.weight // (self.gain(u) if shared else 1) for u in units}
        return self.prices[shared]

    def first_offers(self, shared: bool) -> list[tuple[int, str]]:
        """Return the price of the first pod on each node while nobody has gone, cheapest first."""
        if shared not in self.offers:
            as_it_is = _Greedy(self, _NONE, _NONE, _NONE, shared)
            self.offers[shared] = sorted(as_it_is.offers_of(self.free))
        return self.offers[shared]

    def fitting(self) -> int:
        """Return how many pods fit while nobody has gone."""
        if self.capacity is None:
            self.capacity = sum(self.fits(node, 0) for node in self.free)
        return self.capacity

    def fits(self, node: str, freed: int) -> int:
        return (self.free[node] + freed) // self.milli

    def gain(self, unit: EvictionCandidate) -> int:
        """Return how many pods the unit alone could make room for: at least 1, at most `pods`."""
        gained = sum(
            (self.free[n] % self.milli + milli) // self.milli
            for n, milli in unit.on.items()
            if n in self.free
        )
        return max(1, min(self.pods, gained))


class Scan:
    """Rooms for a pod set, in the whole pool and in the groups that the cheapest units open.

    `free_of`: the GPU-milli that a node has left; None if the pods may not go there. `idle`: nodes
    that take a pod as they are. `group_of`: the group of a node at each of `levels`.
    """

    def __init__(
        self,
        milli: int,
        pods: int,
        free_of: Callable[[str], int | None],
        idle: Mapping[str, int],
        levels: tuple[str, ...],
        group_of: Callable[[str, str], str],
    ) -> None:
        self.room = Room(milli, pods, dict(idle))
        self._free_of = free_of
        self._levels = levels
        self._group_of = group_of
        self._slots: dict[tuple[str, str], int] = {}
        self._freed: dict[str, int] = {}
        self._opened = 0
        self.complete: dict[str, list[str]] = {level: [] for level in levels}
        for node in idle:
            self._more(node, self.room.fits(node, 0))

    def read(self, units: Iterable[EvictionCandidate]) -> None:
        """Take in the cheapest units until enough nodes and groups are open."""
        room = self.room
        limit = max(NODES_AT_LEAST, NODES_PER_POD * room.pods)
        for unit in sorted(units, key=lambda u: (price_of(u), u.order)):
            if self._opened >= limit and all(
                len(groups) >= GROUPS_PER_LEVEL for groups in self.complete.values()
            ):
                return
            for node, amount in unit.on.items():
                if node not in room.free:
                    left = self._free_of(node)
                    if left is None:
                        continue
                    room.free[node] = left
                room.units.setdefault(node, []).append(unit)
                before = self._freed.get(node, 0)
                self._freed[node] = before + amount
                more = room.fits(node, before + amount) - room.fits(node, before)
                if more:
                    self._more(node, more)

    def _more(self, node: str, slots: int) -> None:
        self._opened += 1
        for level in self._levels:
            group = self._group_of(level, node)
            if group:
                had = self._slots.get((level, group), 0)
                self._slots[level, group] = had + slots
                if had < self.room.pods <= had + slots:
                    self.complete[level].append(group)

    def rooms(self, level: str) -> list[Room]:
        """Return the first groups of a level that hold all pods; level "" is the whole pool."""
        if not level:
            return [self.room]
        found = []
        for group in self.complete[level][:GROUPS_PER_LEVEL]:
            nodes = {n: m for n, m in self.room.free.items() if self._group_of(level, n) == group}
            units = {n: us for n, us in self.room.units.items() if n in nodes}
            found.append(Room(self.room.milli, self.room.pods, nodes, units))
        return found


def cheapest(
    room: Room, already: frozenset[EvictionCandidate] = frozenset()
) -> list[EvictionCandidate] | None:
    """Return units whose eviction makes room for all pods; `already` evicted ones cost nothing."""
    best = _best_of(room, already)
    if best is None:
        return None
    units = sorted(room.price(True), key=lambda u: (room.price(True)[u], u.order))
    tries = EXCHANGES
    better = True
    while better and tries > 0:
        better = False
        without = sorted(best, key=lambda u: u.order, reverse=True)[:8]
        steps = [(frozenset((u,)), _NONE) for u in without]
        if len(units) <= FEW_UNITS:
            steps += [(_NONE, frozenset((u,))) for u in units if u not in best]
        for refused, seed in steps:
            tries -= 1
            other = _best_of(room, already, refused, seed)
            if other is not None and _total(other) < _total(best):
                best, better = other, True
                break
    return best


def others(
    joint: Sequence[Room],
    chosen: Iterable[EvictionCandidate],
    already: frozenset[EvictionCandidate] = frozenset(),
) -> Iterator[list[EvictionCandidate]]:
    """Yield, for each of the dearest chosen units, a cheap choice without it, for all rooms."""
    for unit in sorted(chosen, key=lambda u: u.order, reverse=True)[:DISPENSED_WITH]:
        without, found = frozenset((unit,)), list[EvictionCandidate]()
        for room in joint:
            more = _best_of(room, already.union(found), without)
            if more is None:
                break
            found += more
        else:
            yield found


_NONE: frozenset[EvictionCandidate] = frozenset()


def price_of(unit: EvictionCandidate) -> int:
    """Return the weight of the unit per GPU that it gives back."""
    return unit.weight * MILLI // sum(unit.on.values())


def _total(units: Iterable[EvictionCandidate]) -> tuple[int, int]:
    chosen = list(units)
    return sum(u.weight for u in chosen), len(chosen)


def _best_of(
    room: Room,
    already: frozenset[EvictionCandidate],
    without: frozenset[EvictionCandidate] = _NONE,
    seed: frozenset[EvictionCandidate] = _NONE,
) -> list[EvictionCandidate] | None:
    tries = [_Greedy(room, already, without, seed, shared).run() for shared in (True, False)]
    found = [units for units in tries if units is not None]
    return min(found, key=_total) if found else None


class _Greedy:
    """One pass: open nodes until all pods have room, then take back what is not needed."""

    def __init__(
        self,
        room: Room,
        already: frozenset[EvictionCandidate],
        without: frozenset[EvictionCandidate],
        seed: frozenset[EvictionCandidate],
        shared: bool,
    ) -> None:
        self.room = room
        self.out: set[EvictionCandidate] = set(already | seed)
        self.already = already
        self.without = without
        self.shared = shared
        self.price = room.price(shared)
        self.freed: dict[str, int] = {}
        for unit in self.out:
            self._note(unit, 1)
        self.taken: dict[str, int] = {}

    def _note(self, unit: EvictionCandidate, sign: int) -> None:
        for node, milli in unit.on.items():
            if node in self.room.free:
                self.freed[node] = self.freed.get(node, 0) + sign * milli

    def run(self) -> list[EvictionCandidate] | None:
        # Most nodes are unchanged: their offers are worked out only when it is their turn.
        first = self.room.first_offers(self.shared)
        changed = {node for unit in self.out | self.without for node in unit.on}
        heap = self.offers_of(node for node in changed if node in self.room.free)
        heapify(heap)
        left, at = self.room.pods, 0
        while left:
            while at < len(first) and first[at][1] in changed:
                at += 1
            if at < len(first) and (not heap or first[at] < heap[0]):
                price, node = first[at]
                at += 1
            elif heap:
                price, node = heappop(heap)
            else:
                return None
            offer = self._offer(node)
            if offer is None:
                continue
            if offer[0] != price:
                heappush(heap, (offer[0], node))
                continue
            self.taken[node] = self.taken.get(node, 0) + 1
            left -= 1
            again = {node}
            for unit in offer[1]:
                self.out.add(unit)
                self._note(unit, 1)
                again.update(n for n in unit.on if n in self.room.free)
            for name in sorted(again):
                if (more := self._offer(name)) is not None:
                    heappush(heap, (more[0], name))
        return self._pruned()

    def offers_of(self, nodes: Iterable[str]) -> list[tuple[int, str]]:
        """Return (price of one more pod, node) for each of these nodes that can take one."""
        found = []
        for node in nodes:
            if (offer := self._offer(node)) is not None:
                found.append((offer[0], node))
        return found

    def _offer(self, node: str) -> Offer | None:
        """Return price and units of one more pod on a node; None if the node cannot take one."""
        room = self.room
        need = (self.taken.get(node, 0) + 1) * room.milli
        need -= room.free[node] + self.freed.get(node, 0)
        if need <= 0:
            return 0, []
        units = [u for u in room.units.get(node, ()) if u not in self.out and u not in self.without]
        units.sort(key=lambda u: (self.price[u] * MILLI // u.on[node], u.order))
        picked, have = [], 0
        for unit in units:
            if have >= need:
                break
            picked.append(unit)
            have += unit.on[node]
        if have < need:
            return None
        for unit in sorted(picked, key=lambda u: -self.price[u]):
            if have - unit.on[node] >= need:
                picked.remove(unit)
                have -= unit.on[node]
        alone = [u for u in units if u.on[node] >= need]
        if alone:
            single = min(alone, key=lambda u: (self.price[u], u.order))
            if self.price[single] < sum(self.price[u] for u in picked):
                picked = [single]
        return sum(self.price[u] for u in picked), picked

    def _pruned(self) -> list[EvictionCandidate]:
        """Return the units that are left after taking back those not needed, dearest first."""
        room = self.room
        capacity = room.fitting()
        for node, freed in self.freed.items():
            capacity += room.fits(node, freed) - room.fits(node, 0)
        kept = [u for u in self.out if u not in self.already]
        for unit in sorted(kept, key=lambda u: u.order, reverse=True):
            less = sum(
                room.fits(n, self.freed[n]) - room.fits(n, self.freed[n] - milli)
                for n, milli in unit.on.items()
                if n in room.free
            )
            if capacity - less >= room.pods:
                capacity -= less
                self._note(unit, -1)
                kept.remove(unit)
        return sorted(kept, key=lambda u: u.order)
