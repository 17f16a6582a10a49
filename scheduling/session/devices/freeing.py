"""Which pods must go to free devices on a node, for requests that counts cannot express.

The engine gets the smallest such sets of pods. It decides by priority, quota and cost whether any
of them go.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import combinations
from typing import NamedTuple

from scheduling.engine.types import FreeableDevices, Node
from scheduling.session.devices.books import DeviceBooks
from scheduling.session.devices.demand import DeviceDemand

Pod = tuple[str, int, int]  # job, pod set, ordinal
Steps = tuple[tuple[tuple[Pod, ...], ...], ...]
PodsOf = Callable[[str], tuple[Pod, ...]]  # holders of a claim, by uid; () = it stays

# Limits: nodes searched, pods on one of them, and sets of pods tried for one more pod.
MOST_NODES, MOST_PODS, MOST_TRIED = 64, 16, 200
FREE_NOW: Steps = (((),),)


class _Known(NamedTuple):
    stamp: object
    steps: Steps


class Freeing:
    """Remembers what it found on a node while the holders of its devices stay the same."""

    def __init__(self, books: DeviceBooks) -> None:
        self._books = books
        self._known: dict[tuple[str, str], _Known] = {}  # by shape and node

    def nodes_of(
        self, demand: DeviceDemand, now: Collection[str], count: int, pods_of: PodsOf
    ) -> tuple[FreeableDevices, ...]:
        """Return for each node which pods must go to fit 1, 2, … of `count` pods.

        `now`: nodes with devices for one such pod. () = no other node may have any. Raises
        DeviceRefusal.
        """
        pods, left = min(count, MOST_PODS), MOST_NODES
        found = []
        for name in self._books.nodes_to_search(demand):
            steps = FREE_NOW * pods if name in now else ()
            if left > 0 and (pods > 1 or not steps):
                left -= 1
                node = self._books.inventory.nodes[name]
                steps = self._steps(demand, node, pods, pods_of)
            if steps:
                found.append(FreeableDevices(name, steps))
        plain = pods == 1 and all(of.steps == FREE_NOW for of in found)
        return () if plain else tuple(found)

    def _steps(self, demand: DeviceDemand, node: Node, pods: int, pods_of: PodsOf) -> Steps:
        claims: dict[tuple[Pod, ...], set[str]] = defaultdict(set)
        for claim in self._books.holders(node):
            if of := pods_of(claim):
                claims[of].add(claim)
        holders = sorted((of, frozenset(theirs)) for of, theirs in claims.items())
        stamp = self._books.stamp_of(node.name), pods, tuple(holders)
        known = self._known.get((demand.shape, node.name))
        if known is None or known.stamp != stamp:
            steps = tuple(self._found(demand, node, pods, holders))
            known = self._known[demand.shape, node.name] = _Known(stamp, steps)
        return known.steps

    def _found(
        self,
        demand: DeviceDemand,
        node: Node,
        pods: int,
        holders: list[tuple[tuple[Pod, ...], frozenset[str]]],
    ) -> Iterator[tuple[tuple[Pod, ...], ...]]:
        each_its_own = all(c.owner or c.uid in demand.own for c in demand.pending)
        for number in range(1, pods + 1):
            found: list[frozenset[int]] = []
            for chosen in _choices(len(holders), _most_devices(demand, number)):
                if any(smaller <= chosen for smaller in found):
                    continue
                without = frozenset[str]().union(*(holders[n][1] for n in chosen))
                if self._books.suffices(demand, node, without, number if each_its_own else 1):
                    found.append(chosen)
                    if not chosen:
                        break
            if not found:
                return
            yield tuple(
                tuple(sorted({pod for n in chosen for pod in holders[n][0]})) for chosen in found
            )


def _choices(holders: int, most: int | None) -> Iterable[frozenset[int]]:
    """Yield the subsets of holders to try, small ones first; `most` None = none or all of them."""
    if most is None:
        return (frozenset(), frozenset(range(holders)))
    sizes = range(min(most, holders) + 1)
    every = (frozenset(c) for size in sizes for c in combinations(range(holders), size))
    return (chosen for chosen, _ in zip(every, range(MOST_TRIED), strict=False))


def _most_devices(demand: DeviceDemand, pods: int) -> int | None:
    """Return how many claims may be in the way: one per device asked for; None = all of them."""
    amounts = [
        [ask.amount for ask in alternatives]
        for claim in demand.pending
        for alternatives in claim.asks.requests
    ]
    if any(amount is None for of in amounts for amount in of):
        return None
    asked = sum(max(filter(None, of), default=0) for of in amounts)
    return pods * (asked + sum(each.amount for each in demand.extended.requests))
