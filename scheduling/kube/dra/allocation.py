"""Chooses the devices of one node that claims get: all of them or none. Pure.

The search is exhaustive, like kube-scheduler's (dynamic-resource-allocation/structured of 1.36):
claim by claim, request by request, device by device in the order in which they are offered. Of
devices that are alike for all requests and constraints only one is tried. If several claims may
share a device, each gets a part of its capacity. `distinctAttribute` makes all devices differ;
kube-scheduler compares only with the last one of each request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from fractions import Fraction
from typing import NamedTuple

from scheduling.engine.cluster.constraints import blocking_taint
from scheduling.engine.types import NodeExpression, NodeTerm, Taint
from scheduling.kube.dra.capacity import NOTHING_USED, consumed_of, is_left
from scheduling.kube.dra.facts import (
    Amounts,
    ClaimAsks,
    Constraint,
    DeviceAsk,
    DeviceFacts,
    DeviceId,
    GivenDevice,
)

MOST = 32  # devices per claim, as the API validates it
STEPS = 20_000  # the search is given up after this many

CounterName = tuple[str, str, str, str]  # driver, pool, counter set, counter
Used = Mapping[DeviceId, Mapping[str, Fraction]]
NOBODY_USES: Used = {}
Fits = Callable[[DeviceAsk, DeviceId], bool]


class OfferedDevice(NamedTuple):
    """A device that a node may use.

    `local`: only that node may use it; otherwise nodes that match one of `nodes`, () = all.
    """

    id: DeviceId
    facts: DeviceFacts
    local: bool = True
    nodes: tuple[NodeTerm, ...] = ()


class NodeDevices(NamedTuple):
    """What a node may use: `devices` of complete pools, in order.

    `updating`: pools that are being updated. `counters`: how much is left of each counter.
    """

    devices: Sequence[OfferedDevice]
    updating: tuple[str, ...] = ()
    counters: Mapping[CounterName, Fraction] = {}


class TooComplex(Exception):
    """The search was given up."""


def allocate(
    claims: Sequence[ClaimAsks],
    offers: NodeDevices,
    taken: Set[DeviceId],
    fits: Fits,
    used: Used = NOBODY_USES,
) -> list[tuple[GivenDevice, ...]] | None:
    """Return the devices of each claim; None = there are not enough.

    `taken`: devices that other claims have whole. `used`: how much other claims use of shared
    devices. `fits`: whether a device is of the request's class and satisfies its expressions.
    Raises TooComplex, and whatever `fits` raises.
    """
    search = _DeviceSearch(claims, offers, taken, fits, used)
    return search.found if search.claim(0) else None


def tolerated(facts: DeviceFacts, ask: DeviceAsk) -> bool:
    """Whether the request tolerates the device's taints."""
    taints = (Taint(taint.key, taint.value, taint.effect) for taint in facts.taints)
    return blocking_taint(taints, ask.tolerations) is None


class _DeviceSearch:
    """The state of one search."""

    def __init__(
        self,
        claims: Sequence[ClaimAsks],
        offers: NodeDevices,
        taken: Set[DeviceId],
        fits: Fits,
        used: Used,
    ) -> None:
        self.found: list[tuple[GivenDevice, ...]] = []
        self._claims, self._offers, self._fits = claims, offers, fits
        self._taken, self._used = taken, used
        self._allocating: dict[DeviceId, set[int]] = {}  # claims that get it whole
        self._shares: dict[DeviceId, list[Amounts]] = {}  # the parts of it that claims get
        self._consumed: dict[tuple[Amounts, DeviceId], Amounts | None] = {}
        self._counters = dict(offers.counters)
        self._attributes = {c.attribute for claim in claims for c in claim.constraints}
        self._asks = [ask for claim in claims for of in claim.requests for ask in of]
        self._kinds: dict[DeviceId, object] = {}
        self._steps = 0
        self._mine: list[tuple[GivenDevice, OfferedDevice]] = []  # devices of the current claim

    def claim(self, index: int) -> bool:
        if index == len(self._claims):
            return True
        before, self._mine = self._mine, []
        if self._request(index, 0):
            return True
        self._mine = before
        return False

    def _request(self, claim: int, index: int) -> bool:
        asks = self._claims[claim]
        if index == len(asks.requests):
            mine = self._mine
            self.found.append(tuple(given for given, _ in mine))
            if self.claim(claim + 1):
                return True
            self.found.pop()
            self._mine = mine
            return False
        return any(self._ask(claim, index, ask) for ask in asks.requests[index])

    def _ask(self, claim: int, index: int, ask: DeviceAsk) -> bool:
        if ask.amount is not None:
            return self._some(claim, index, ask, ask.amount, 0)
        if self._offers.updating:
            return False
        wanted = [o for o in self._offers.devices if self._fits(ask, o.id) and self._could(ask, o)]
        if not wanted or len(self._mine) + len(wanted) > MOST:
            return False
        added = 0
        for offer in wanted:
            if not self._add(claim, ask, offer):
                break
            added += 1
        if added == len(wanted) and self._request(claim, index + 1):
            return True
        for offer in reversed(wanted[:added]):
            self._remove(claim, offer)
        return False

    def _some(self, claim: int, index: int, ask: DeviceAsk, left: int, start: int) -> bool:
        """Find `left` more devices for the request, from position `start` on."""
        if not left:
            return self._request(claim, index + 1)
        if len(self._mine) + left > MOST:
            return False
        tried: set[object] = set()
        for at in range(start, len(self._offers.devices)):
            offer = self._offers.devices[at]
            if not self._is_free(claim, ask, offer) or not self._fits(ask, offer.id):
                continue
            shares = tuple(self._shares.get(offer.id, ()))
            kind = self._kind(offer), offer.id in self._allocating, shares
            if kind in tried:
                continue
            tried.add(kind)
            self._steps += 1
            if self._steps > STEPS:
                raise TooComplex
            if self._add(claim, ask, offer):
                if self._some(claim, index, ask, left - 1, at + 1):
                    return True
                self._remove(claim, offer)
        return False

    def _kind(self, offer: OfferedDevice) -> object:
        """Return a key that is equal for devices that all requests and constraints treat alike."""
        known = self._kinds.get(offer.id)
        if known is None:
            facts = offer.facts
            known = self._kinds[offer.id] = (
                tuple(self._fits(ask, offer.id) for ask in self._asks),
                tuple(_typed(facts.attributes.get(a)) for a in sorted(self._attributes)),
                tuple(tolerated(facts, ask) for ask in self._asks),
                (offer.id.driver, offer.id.pool) if facts.consumes else (),
                facts.consumes,
                offer.id in self._taken,
                (offer.local, offer.nodes),
                self._capacities(offer),
            )
        return known

    def _capacities(self, offer: OfferedDevice) -> object:
        """Return a key that is equal for devices with equal capacity for all requests."""
        asked = tuple(self._taken_by(ask, offer) for ask in self._asks)
        if not offer.facts.several:
            return tuple(each is not None for each in asked)
        used = self._used.get(offer.id, NOTHING_USED)
        has = tuple(sorted((n, c.value, used.get(n, 0)) for n, c in offer.facts.capacity.items()))
        return asked, has, offer.id in self._used

    def _taken_by(self, ask: DeviceAsk, offer: OfferedDevice) -> Amounts | None:
        """As `consumed_of`, with a cache."""
        key = ask.capacity, offer.id
        if key not in self._consumed:
            self._consumed[key] = consumed_of(offer.facts, ask.capacity)
        return self._consumed[key]

    def _could(self, ask: DeviceAsk, offer: OfferedDevice) -> bool:
        """Whether enough of the device is left by other claims."""
        consumed = self._taken_by(ask, offer)
        used = self._used.get(offer.id, NOTHING_USED)
        return consumed is not None and is_left(offer.facts, consumed, used)

    def _is_left(self, ask: DeviceAsk, offer: OfferedDevice) -> bool:
        """As `_could`, but also subtract what this search has given away."""
        consumed = self._taken_by(ask, offer)
        if consumed is None:
            return False
        used = dict(self._used.get(offer.id, NOTHING_USED))
        for share in self._shares.get(offer.id, ()):
            for name, amount in share:
                used[name] = used.get(name, Fraction(0)) + amount
        return is_left(offer.facts, consumed, used)

    def _is_free(self, claim: int, ask: DeviceAsk, offer: OfferedDevice) -> bool:
        allocating = self._allocating.get(offer.id, ())
        if ask.admin:
            return claim not in allocating
        # A shareable device is not free if one claim has it whole, from when it was not shareable.
        return offer.id not in self._taken and not allocating

    def _add(self, claim: int, ask: DeviceAsk, offer: OfferedDevice) -> bool:
        """Give the device to the request, unless something forbids it."""
        if not self._is_free(claim, ask, offer) or not tolerated(offer.facts, ask):
            return False
        if not self._is_left(ask, offer):
            return False
        share = self._taken_by(ask, offer) if offer.facts.several else None
        facts = offer.facts
        given = GivenDevice(ask.name, offer.id, ask.admin, share, facts.ready_by, facts.fails_by)
        constraints = self._claims[claim].constraints
        if not all(self._holds(c, given, offer) for c in constraints):
            return False
        # The first claim that gets a part of a device takes all its counters.
        if not self._is_shared(offer) and not self._consume(offer, 1):
            return False
        self._mine.append((given, offer))
        if share is not None:
            self._shares.setdefault(offer.id, []).append(share)
        else:
            self._allocating.setdefault(offer.id, set()).add(claim)
        return True

    def _is_shared(self, offer: OfferedDevice) -> bool:
        """Whether some claim already has a part of it."""
        shared = offer.id in self._used or offer.id in self._shares
        return offer.facts.several and shared

    def _remove(self, claim: int, offer: OfferedDevice) -> None:
        self._mine.pop()
        if offer.facts.several:
            self._shares[offer.id].pop()
            if not self._shares[offer.id]:
                del self._shares[offer.id]
        else:
            self._allocating[offer.id].discard(claim)
            if not self._allocating[offer.id]:
                del self._allocating[offer.id]
        if not self._is_shared(offer):
            self._consume(offer, -1)

    def _consume(self, offer: OfferedDevice, sign: int) -> bool:
        """Take from the counters what the device needs (`sign` 1) or give it back (-1).

        False, with nothing taken, if not enough is left.
        """
        of = offer.id.driver, offer.id.pool
        for each in offer.facts.consumes:
            counter = (*of, each.counter_set, each.counter)
            self._counters[counter] = self._counters.get(counter, Fraction(0)) - sign * each.amount
        used = ((*of, each.counter_set, each.counter) for each in offer.facts.consumes)
        if sign > 0 and any(self._counters[counter] < 0 for counter in used):
            self._consume(offer, -1)
            return False
        return True

    def _holds(self, constraint: Constraint, given: GivenDevice, offer: OfferedDevice) -> bool:
        if not _is_about(constraint, given.request):
            return True
        value = offer.facts.attributes.get(constraint.attribute)
        if value is None:
            return False
        others = (
            _typed(o.facts.attributes.get(constraint.attribute))
            for g, o in self._mine
            if _is_about(constraint, g.request)
        )
        same = (other == _typed(value) for other in others)
        return not any(same) if constraint.distinct else all(same)


def _is_about(constraint: Constraint, request: str) -> bool:
    named = constraint.requests
    return not named or request in named or request.partition("/")[0] in named


def _typed(value: object) -> tuple[str, object]:
    """Tag a value with its type, because True == 1 in Python."""
    return type(value).__name__, value


def nodes_of(given: Iterable[GivenDevice], offers: NodeDevices) -> tuple[NodeTerm, ...] | None:
    """Return where these devices can be used together: nodes that match one of the terms.

    () = everywhere, None = only on the node itself.
    """
    by_id = {offer.id: offer for offer in offers.devices}
    term: dict[NodeExpression, None] = {}
    for each in given:
        offer = by_id[each.device]
        if offer.local or offer.facts.binds_to_node:
            return None
        # The API server accepts only slices with a single term.
        term.update(dict.fromkeys(offer.nodes[0] if offer.nodes else ()))
    return (tuple(term),) if term else ()
