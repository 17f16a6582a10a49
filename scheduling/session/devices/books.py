"""Claims for devices, and who has which device: what claims say, and what was chosen for claims
that do not say it yet."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from scheduling.engine.cluster.affinity import NAME
from scheduling.engine.types import Node, NodeExpression, NodeTerm
from scheduling.kube.dra.allocation import NodeDevices, TooComplex, allocate, nodes_of
from scheduling.kube.dra.facts import (
    ClassFacts,
    DeviceClaimFacts,
    DeviceId,
    DeviceObject,
    GivenDevice,
    PodClaim,
    SliceFacts,
)
from scheduling.session.devices.demand import (
    Demands,
    DeviceDemand,
)
from scheduling.session.devices.inventory import Inventory, gpu_model

ClaimName = tuple[str, str]  # namespace and name


class ChosenDevices(NamedTuple):
    """Devices for a claim, and where they can be used: on `node`, or, "" , on `nodes`."""

    claim: DeviceClaimFacts
    given: tuple[GivenDevice, ...]
    node: str
    nodes: tuple[NodeTerm, ...]


@dataclass(frozen=True, slots=True)
class Assumed:
    """What was chosen for a claim, for a pod; the claim does not say so yet."""

    chosen: ChosenDevices
    pod: str


class DeviceAmounts(NamedTuple):
    """Devices of one node, in what the engine counts."""

    gpus: int = 0
    amounts: Mapping[str, int] = {}


class DeviceBooks:
    """`version`: another one after each change. `changed`: claims that are not as they were."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.demands = Demands(self.inventory)
        self.claims: dict[ClaimName, DeviceClaimFacts] = {}
        self.changed: set[ClaimName] = set()
        self.assumed: dict[str, Assumed] = {}  # by uid of the claim
        self._holders: dict[DeviceId, set[str]] = defaultdict(set)  # uids of claims
        self._held: dict[str, frozenset[DeviceId]] = {}  # by uid of the claim
        self._amounts_of: dict[str, tuple[object, list[tuple[str, DeviceAmounts]]]] = {}
        self._taken_version = 0
        self._can: dict[tuple[str, str], tuple[object, bool]] = {}  # by shape and node
        self._stamps: Counter[str] = Counter()  # by node, changes of who has its devices

    @property
    def version(self) -> tuple[int, int]:
        return self.inventory.version, self._taken_version

    def __bool__(self) -> bool:
        """Whether there is anything to be counted."""
        return bool(self.inventory) or bool(self.claims)

    # --- what is told -----------------------------------------------------------------------------
    def seen(self, facts: DeviceObject) -> None:
        match facts:
            case SliceFacts():
                self.inventory.slice_seen(facts)
            case ClassFacts():
                self.inventory.class_seen(facts)
            case DeviceClaimFacts():
                self._take(facts, comes=True)

    def gone(self, facts: DeviceObject) -> None:
        match facts:
            case SliceFacts():
                self.inventory.slice_gone(facts)
            case ClassFacts():
                self.inventory.class_gone(facts)
            case DeviceClaimFacts():
                self._take(facts, comes=False)

    def _take(self, facts: DeviceClaimFacts, *, comes: bool) -> None:
        name = facts.namespace, facts.name
        before = self.claims.get(name)
        if before is not None and not comes and before.uid != facts.uid:
            return
        if before is not None and (not comes or before.uid != facts.uid):
            del self.claims[name]
            self.assumed.pop(before.uid, None)
            self._hold(before.uid, ())
        if comes:
            self.claims[name] = facts
            if facts.given is not None:
                self.assumed.pop(facts.uid, None)
            assumed = self.assumed.get(facts.uid)
            given = assumed.chosen.given if assumed is not None else facts.given
            self._hold(facts.uid, given or ())
        self.changed.add(name)
        self._taken_version += 1

    def _hold(self, claim: str, given: Iterable[GivenDevice]) -> None:
        """The claim has these devices, and no others."""
        before = self._held.pop(claim, frozenset())
        after = frozenset(each.device for each in given if not each.admin)
        if after:
            self._held[claim] = after
        for device in before ^ after:
            (self._holders[device].add if device in after else self._holders[device].discard)(claim)
            if not self._holders[device]:
                del self._holders[device]
            self._stamps[self.inventory.node_of(device)] += 1

    # --- what a pod asks for ----------------------------------------------------------------------
    def demand(self, namespace: str, uid: str, named: Iterable[PodClaim]) -> DeviceDemand:
        """Raises DeviceRefusal."""
        return self.demands.of(namespace, uid, named, self.claims)

    def nodes_for(self, demand: DeviceDemand) -> tuple[NodeTerm, ...] | None:
        """The nodes on which there are devices for all of its claims now; None = numbers say it.
        Raises DeviceRefusal."""
        if demand.exact or not demand.pending:
            return None
        shape = demand.shape
        names = [
            name
            for name in self.inventory.nodes_with_devices()
            if self._can_be_had(demand, shape, self.inventory.nodes[name])
        ]
        return (by_name(names),)

    def _can_be_had(self, demand: DeviceDemand, shape: str, node: Node) -> bool:
        stamp = self.inventory.version, self._stamps[node.name], self._stamps[""]
        known = self._can.get((shape, node.name))
        if known is None or known[0] != stamp:
            found = self.choose(demand, node) is not None
            known = self._can[shape, node.name] = stamp, found
        return known[1]

    def choose(
        self, demand: DeviceDemand, node: Node, liked: Iterable[str] = ()
    ) -> list[ChosenDevices] | None:
        """Devices of the node for each claim that has none; None = there are not enough. `liked`:
        names of those that are tried first. Raises DeviceRefusal."""
        offers = self.inventory.offers(node)
        rank = {name: n for n, name in enumerate(liked)}
        if rank:
            ordered = sorted(offers.devices, key=lambda o: rank.get(o.id.device, len(rank)))
            offers = offers._replace(devices=ordered)
        for ask, gpus in demand.gpus_of_all:
            if sum(self.demands.fits(ask, o.id) for o in offers.devices) != gpus:
                return None
        if any(o.facts.consumes for o in offers.devices):
            offers = offers._replace(counters=self._counters(offers))
        try:
            found = allocate(demand.asks, offers, self._holders.keys(), self.demands.fits)
        except TooComplex:
            return None
        if found is None:
            return None
        chosen = []
        for claim, given in zip(demand.pending, found, strict=True):
            nodes = nodes_of(given, offers)
            here = node.name if nodes is None else ""
            chosen.append(ChosenDevices(claim, given, here, nodes or ()))
        return chosen

    def _counters(self, offers: NodeDevices) -> dict[tuple[str, str, str, str], Fraction]:
        pools = {(o.id.driver, o.id.pool) for o in offers.devices}
        left = self.inventory.counters(pools)
        for device in self._holders:
            facts = self.inventory.facts(device)
            if facts is None or (device.driver, device.pool) not in pools:
                continue
            for each in facts.consumes:
                counter = (device.driver, device.pool, each.counter_set, each.counter)
                if counter in left:
                    left[counter] -= each.amount
        return left

    # --- what was chosen --------------------------------------------------------------------------
    def assume(self, chosen: ChosenDevices, pod: str) -> None:
        """The claim is to get these devices."""
        self.assumed[chosen.claim.uid] = Assumed(chosen, pod)
        self._hold(chosen.claim.uid, chosen.given)
        self._taken_version += 1

    def drop(self, claim: str) -> None:
        """The claim will not get what was chosen for it."""
        assumed = self.assumed.pop(claim, None)
        if assumed is not None:
            of = assumed.chosen.claim
            now = self.claims.get((of.namespace, of.name))
            self._hold(claim, (now.given or ()) if now is not None and now.uid == claim else ())
            self._taken_version += 1

    # --- what the engine counts -------------------------------------------------------------------
    def on_node(self, name: str) -> Mapping[str, int]:
        """How many devices of each kind the node has of its own, by the names of the kinds."""
        node = self.inventory.nodes.get(name)
        if node is None or not self.inventory.has_own(name):
            return {}
        devices = [o.id for o in self.inventory.offers(node).devices if o.local]
        counted = ((kind, self.demands.counted(kind, devices)) for kind in self.demands.kinds)
        return {kind: count for kind, count in counted if count}

    def held(self) -> Iterable[tuple[DeviceClaimFacts, str, DeviceAmounts]]:
        """Claims that have devices of a node, that node, and how many."""
        stamp = self.inventory.version, len(self.demands.kinds)
        for claim in self.claims.values():
            devices = self._held.get(claim.uid)
            if devices is None:
                continue
            known = self._amounts_of.get(claim.uid)
            if known is None or known[0] != (devices, stamp):
                nodes = sorted({self.inventory.node_of(device) for device in devices} - {""})
                found = [(node, self._amounts(devices, node)) for node in nodes]
                known = self._amounts_of[claim.uid] = (devices, stamp), found
            for node, amounts in known[1]:
                yield claim, node, amounts
        if len(self._amounts_of) > 2 * len(self._held) + 64:
            of = self._amounts_of
            self._amounts_of = {uid: of[uid] for uid in self._held if uid in of}

    def _amounts(self, devices: Iterable[DeviceId], name: str) -> DeviceAmounts:
        here = sorted(device for device in devices if self.inventory.node_of(device) == name)
        node = self.inventory.nodes.get(name)
        facts = ((device, self.inventory.facts(device)) for device in here)
        gpus = sum(bool(f is not None and gpu_model(node, d.driver, f)) for d, f in facts)
        counted = ((kind, self.demands.counted(kind, here)) for kind in self.demands.kinds)
        return DeviceAmounts(gpus, {kind: count for kind, count in counted if count})


def by_name(names: Iterable[str]) -> NodeTerm:
    """A term that these nodes match, and no others."""
    return (NodeExpression(NAME, "In", tuple(sorted(names)), of_name=True),)
