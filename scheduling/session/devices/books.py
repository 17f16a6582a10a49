"""Device claims and who holds which device: what claims say, and what was chosen for claims whose
status does not say it yet.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from scheduling.engine.cluster.affinity import NAME
from scheduling.engine.types import Node, NodeExpression, NodeTerm
from scheduling.kube.dra.allocation import NodeDevices, TooComplex, allocate, nodes_of
from scheduling.kube.dra.extended import NOTHING
from scheduling.kube.dra.facts import (
    ClaimAsks,
    ClassFacts,
    DeviceAsk,
    DeviceClaimFacts,
    DeviceObject,
    ExtendedAsks,
    GivenDevice,
    PodClaim,
    SliceFacts,
    TaintRuleFacts,
    TemplateFacts,
)
from scheduling.kube.seam import NewClaim, OwnClaim
from scheduling.kube.translate.quantities import GPU_RESOURCES
from scheduling.session.devices.demand import (
    NOT_READY,
    Demands,
    DeviceDemand,
    DeviceRefusal,
    Held,
    is_gpu,
)
from scheduling.session.devices.holders import DeviceHolders
from scheduling.session.devices.inventory import Inventory, NodeGpus, gpu_model

ClaimName = tuple[str, str]  # namespace and name


class PodNames(NamedTuple):
    """A pod's namespace, name and uid; uid "" = the pod does not exist yet."""

    namespace: str
    name: str
    uid: str


class ChosenDevices(NamedTuple):
    """The devices chosen for a claim, usable on `node`, or on `nodes` if `node` is "".

    `new`: the claim has yet to be made for a pod; its uid here is a stand-in.
    """

    claim: DeviceClaimFacts
    given: tuple[GivenDevice, ...]
    node: str
    nodes: tuple[NodeTerm, ...]
    new: NewClaim | OwnClaim | None = None


@dataclass(frozen=True, slots=True)
class Assumed:
    """Devices chosen for a claim that does not say so yet. `of`: the place of its pod."""

    chosen: ChosenDevices
    of: tuple[str, int, int, int]  # as effects name the place


class DeviceAmounts(NamedTuple):
    """The devices of one node, in the units that the engine counts."""

    gpus: int = 0
    amounts: Mapping[str, int] = {}


class DeviceBooks:
    """Who holds which device. `version` differs after each change; `changed`: changed claims."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.demands = Demands(self.inventory)
        self.claims: dict[ClaimName, DeviceClaimFacts] = {}
        self.templates: dict[ClaimName, TemplateFacts] = {}
        self._domains: Counter[tuple[str, str]] = Counter()  # by namespace and uid
        self.changed: set[ClaimName] = set()
        self.assumed: dict[str, Assumed] = {}  # by uid of the claim
        self.made: dict[str, DeviceClaimFacts] = {}  # by uid of the pod it was made for
        self._by_uid: dict[str, DeviceClaimFacts] = {}
        self._holders = DeviceHolders()
        self._amounts_of: dict[str, tuple[object, list[tuple[str, DeviceAmounts]]]] = {}
        self._taken_version = 0
        self._can: dict[tuple[str, str], tuple[object, bool]] = {}  # by shape and node
        self._stamps: Counter[str] = Counter()  # by node: changes of its holders

    @property
    def version(self) -> tuple[int, int]:
        return self.inventory.version, self._taken_version

    def __bool__(self) -> bool:
        """Whether there is anything to count."""
        return bool(self.inventory) or bool(self.claims)

    # --- observations -----------------------------------------------------------------------------
    def seen(self, facts: DeviceObject) -> None:
        match facts:
            case SliceFacts():
                self.inventory.slice_seen(facts)
            case TaintRuleFacts():
                self.inventory.taint_rule_seen(facts)
            case ClassFacts():
                self.inventory.class_seen(facts)
            case TemplateFacts():
                self._know(facts, 1)
            case DeviceClaimFacts():
                self._take(facts, comes=True)

    def gone(self, facts: DeviceObject) -> None:
        match facts:
            case SliceFacts():
                self.inventory.slice_gone(facts)
            case TaintRuleFacts():
                self.inventory.taint_rule_gone(facts)
            case ClassFacts():
                self.inventory.class_gone(facts)
            case TemplateFacts():
                name = facts.namespace, facts.name
                if name in self.templates and self.templates[name].uid == facts.uid:
                    self._know(facts, -1)
            case DeviceClaimFacts():
                self._take(facts, comes=False)

    def _know(self, facts: TemplateFacts, sign: int) -> None:
        """Add a template (`sign` 1) or remove it (-1)."""
        name = facts.namespace, facts.name
        before = self.templates.pop(name, None)
        if before is not None and not before.deleting:
            self._domains[before.namespace, before.domain] -= 1
        if sign > 0:
            self.templates[name] = facts
            if not facts.deleting:
                self._domains[facts.namespace, facts.domain] += 1
        self._taken_version += 1

    def _take(self, facts: DeviceClaimFacts, *, comes: bool) -> None:
        name = facts.namespace, facts.name
        before = self.claims.get(name)
        if before is not None and not comes and before.uid != facts.uid:
            return
        if before is not None and (not comes or before.uid != facts.uid):
            del self.claims[name]
            self._by_uid.pop(before.uid, None)
            self.assumed.pop(before.uid, None)
            self._hold(before.uid, ())
            if before.made_for is not None:
                self.made.pop(before.made_for[1], None)
        if comes:
            self.claims[name] = self._by_uid[facts.uid] = facts
            if facts.made_for is not None:
                self.made[facts.made_for[1]] = facts
                if facts.given is not None:
                    self._forget(_new_uid(facts.namespace, facts.made_for[0]))
            if facts.given is not None:
                self._forget(uid_of_new(facts.namespace, facts.name))
                self.assumed.pop(facts.uid, None)
            assumed = self.assumed.get(facts.uid)
            given = assumed.chosen.given if assumed is not None else facts.given
            self._hold(facts.uid, given or ())
        self.changed.add(name)
        self._taken_version += 1

    def _forget(self, claim: str) -> None:
        if self.assumed.pop(claim, None) is not None:
            self._hold(claim, ())

    def _hold(self, claim: str, given: Iterable[GivenDevice]) -> None:
        """Set the devices of the claim to exactly these."""
        for device in self._holders.hold(claim, given):
            self._stamps[self.inventory.node_of(device)] += 1

    # --- what a pod asks for ----------------------------------------------------------------------
    def demand(
        self,
        namespace: str,
        uid: str,
        named: Iterable[PodClaim],
        extended: ExtendedAsks = NOTHING,
        own: Iterable[tuple[DeviceClaimFacts, OwnClaim]] = (),
    ) -> DeviceDemand:
        """Return what a pod asks for. Raises DeviceRefusal.

        `own`: claims to make for the pod if they do not exist.
        """
        named = tuple(named)
        for each in named:
            self._check(namespace, each)
        return self.demands.of(namespace, uid, named, self.claims, extended, own)

    def _check(self, namespace: str, named: PodClaim) -> None:
        """Raise DeviceRefusal if a claim cannot be made or used.

        Somebody has not made, or has deleted, what the claim is made from.
        """
        if named.claim is None:
            if (namespace, named.template) not in self.templates:
                text = f"There is no resource claim template {named.template} in namespace"
                remedy = "Create it, or what creates it, e.g. a ComputeDomain."
                raise DeviceRefusal(NOT_READY, f"{text} {namespace}. {remedy}")
            return
        claim = self.claims.get((namespace, named.claim))
        if claim is None or claim.given is not None:
            return
        for domain in claim.domains:
            if self._domains[namespace, domain] <= 0:
                text = f"Resource claim {claim.name} is for a channel of ComputeDomain {domain}"
                remedy = "Create the pod again when there is another one."
                raise DeviceRefusal(NOT_READY, f"{text}, which is gone or going. {remedy}")

    def nodes_for(self, demand: DeviceDemand) -> tuple[NodeTerm, ...] | None:
        """Return the nodes that have devices for all pending claims now.

        None = the counts say it all. Raises DeviceRefusal.
        """
        if demand.exact or not (demand.pending or demand.extended.requests):
            return None
        shape, nodes = demand.shape, self.inventory.nodes
        where = self.nodes_to_search(demand)
        return (by_name(n for n in where if self._can_be_had(demand, shape, nodes[n])),)

    def nodes_that_may_come(self, demand: DeviceDemand) -> list[str]:
        """Return the nodes that an autoscaler may add with enough GPUs of a matching model."""
        return [
            name
            for name, node in self.inventory.to_come.items()
            if 0 < demand.gpus <= len(node.devices) and node.gpu_model in demand.models
        ]

    def nodes_to_search(self, demand: DeviceDemand) -> Iterable[str]:
        """Return the nodes that may have the devices."""
        # On other nodes, a device plugin may serve what a pod asks for by resource name.
        inventory = self.inventory
        return inventory.nodes_with_devices() if demand.pending else inventory.nodes

    def stamp_of(self, node: str) -> tuple[int, int, int]:
        """Return a value that changes whenever the devices free on the node may have changed."""
        return self.inventory.version, self._stamps[node], self._stamps[""]

    def _can_be_had(self, demand: DeviceDemand, shape: str, node: Node) -> bool:
        stamp = self.stamp_of(node.name)
        known = self._can.get((shape, node.name))
        if known is None or known[0] != stamp:
            found = self.choose(demand, node, NOBODY) is not None
            known = self._can[shape, node.name] = stamp, found
        return known[1]

    def choose(
        self, demand: DeviceDemand, node: Node, pod: PodNames, liked: Iterable[str] = ()
    ) -> list[ChosenDevices] | None:
        """Return devices of the node for each claim of the pod that has none.

        None = too few are free. `liked`: names of devices to try first. Raises DeviceRefusal.
        """
        asked = self._claims_on(demand, node, pod)
        if asked is None:
            return None
        claims, new = asked
        made = self.made.get(pod.uid)
        # The pod may reuse devices from an attempt that was cut short.
        own = frozenset({made.uid} if made is not None else ())
        offers = self.inventory.offers(node)
        rank = {name: n for n, name in enumerate(liked)}
        if rank:
            ordered = sorted(offers.devices, key=lambda o: rank.get(o.id.device, len(rank)))
            offers = offers._replace(devices=ordered)
        found = self._found(demand, [claim.asks for claim in claims], offers, own)
        if found is None:
            return None
        chosen = []
        for index, (claim, given) in enumerate(zip(claims, found, strict=True)):
            nodes = nodes_of(given, offers)
            here = node.name if nodes is None else ""
            made_as = new if index == len(demand.pending) else demand.own.get(claim.uid)
            chosen.append(ChosenDevices(claim, given, here, nodes or (), made_as))
        return chosen

    def suffices(self, demand: DeviceDemand, node: Node, without: Set[str], pods: int = 1) -> bool:
        """Whether the node could serve `pods` such pods without the claims `without` (uids).

        Raises DeviceRefusal.
        """
        asked = self._claims_on(demand, node, NOBODY)
        if asked is None:
            return False
        asks = [claim.asks for claim in asked[0]] * pods
        return self._found(demand, asks, self.inventory.offers(node), without) is not None

    def claim_of(self, uid: str) -> DeviceClaimFacts | None:
        """Return the claim that has devices; None = no claim says so."""
        return self._by_uid.get(uid)

    def holders(self, node: Node) -> list[str]:
        """Return the claims (uids) that hold devices which the node may use."""
        devices = (offer.id for offer in self.inventory.offers(node).devices)
        return sorted({claim for device in devices for claim in self._holders.claims_of(device)})

    def _claims_on(
        self, demand: DeviceDemand, node: Node, pod: PodNames
    ) -> tuple[list[DeviceClaimFacts], NewClaim | None] | None:
        """Return the claims that need devices of the node, and what to make the last of them as.

        The latter is set if the last claim is for extended resources. None = the node lacks a
        resource that is asked for by name. Raises DeviceRefusal.
        """
        requested = self.demands.requests_on(node, demand.extended)
        if requested is None:
            return None
        if not requested:
            return [*demand.pending], None
        names = {request.name for request, _ in requested}
        mappings = (m for m in demand.extended.mappings if m.request in names)
        new = NewClaim(tuple(requested), tuple(mappings))
        return [*demand.pending, _claim_to_make(pod, new)], new

    def _found(
        self,
        demand: DeviceDemand,
        asks: list[ClaimAsks],
        offers: NodeDevices,
        without: Set[str],
    ) -> list[tuple[GivenDevice, ...]] | None:
        """Allocate from these offers as if the claims `without` had no devices."""
        for ask, gpus in demand.gpus_of_all:
            if sum(self.demands.fits(ask, o.id) for o in offers.devices) != gpus:
                return None
        if any(o.facts.consumes for o in offers.devices):
            offers = offers._replace(counters=self._counters(offers, without))
        holders = self._holders
        used = holders.used((o.id for o in offers.devices if o.facts.several), without)
        try:
            return allocate(asks, offers, holders.whole(without), self.demands.fits, used)
        except TooComplex:
            return None

    def _counters(
        self, offers: NodeDevices, without: Set[str]
    ) -> dict[tuple[str, str, str, str], Fraction]:
        pools = {(o.id.driver, o.id.pool) for o in offers.devices}
        left = self.inventory.counters(pools)
        for device in (*self._holders.whole(without), *self._holders.shared(without)):
            facts = self.inventory.facts(device)
            if facts is None or (device.driver, device.pool) not in pools:
                continue
            for each in facts.consumes:
                counter = (device.driver, device.pool, each.counter_set, each.counter)
                if counter in left:
                    left[counter] -= each.amount
        return left

    # --- what was chosen --------------------------------------------------------------------------
    def assume(self, chosen: ChosenDevices, of: tuple[str, int, int, int]) -> None:
        """Book these devices for the claim."""
        self.assumed[chosen.claim.uid] = Assumed(chosen, of)
        self._hold(chosen.claim.uid, chosen.given)
        self._taken_version += 1

    def drop(self, claim: str) -> None:
        """Drop what was chosen for the claim: it will not get it."""
        assumed = self.assumed.pop(claim, None)
        if assumed is not None:
            of = assumed.chosen.claim
            now = self.claims.get((of.namespace, of.name))
            self._hold(claim, (now.given or ()) if now is not None and now.uid == claim else ())
            self._taken_version += 1

    # --- what the engine counts -------------------------------------------------------------------
    def on_node(self, name: str) -> Mapping[str, int]:
        """Return how many devices of each kind the node has of its own, by kind name.

        Kinds that back an extended resource also count shared devices that the node may use.
        """
        node, demands = self.inventory.nodes.get(name), self.demands
        if node is None or not self:
            return {}
        offers = self.inventory.offers(node).devices
        found = demands.counts(node, {o.id: None for o in offers if o.local})
        if any(not o.local for o in offers):
            every = demands.counts(node, {o.id: None for o in offers})
            found |= {kind: n for kind, n in every.items() if kind in demands.resources}
        given = self.inventory.advertised.get(name, {})
        for kind, resources in demands.resources.items():
            if is_gpu(resources[0]) and (count := sum(given.get(r, 0) for r in resources)):
                found[kind] = count
        return found

    def on_nodes_to_come(self, model: str, gpus: int) -> Mapping[str, int]:
        """Return the devices of each kind on a node that does not exist yet.

        It has as many of a kind as it has GPUs, if GPUs of this model are of that kind elsewhere.
        """
        return dict.fromkeys(sorted(self.demands.of_model(model)), gpus) if model and self else {}

    def gpus(self, name: str) -> NodeGpus:
        """Return the GPUs of a node that device drivers report."""
        found, node = self.inventory.gpus(name), self.inventory.nodes.get(name)
        if node is None or not found.devices:
            return found
        resources = (r for r in GPU_RESOURCES if self.demands.class_on(node, (r,)))
        return found._replace(resource=next(resources, ""))

    def held(self) -> Iterable[tuple[DeviceClaimFacts, str, DeviceAmounts]]:
        """Yield each claim that holds devices of a node, the node, and how many it holds."""
        stamp = self.inventory.version, len(self.demands.kinds), len(self.demands.resources)
        to_make = (a.chosen.claim for a in self.assumed.values() if a.chosen.new is not None)
        for claim in (*self.claims.values(), *to_make):
            if claim.uid not in self._holders:
                continue
            devices = self._holders.of(claim.uid)
            known = self._amounts_of.get(claim.uid)
            if known is None or known[0] != (devices, stamp):
                nodes = sorted({self.inventory.node_of(device) for device in devices} - {""})
                found = [(node, self._amounts(devices, node)) for node in nodes]
                known = self._amounts_of[claim.uid] = (devices, stamp), found
            for node, amounts in known[1]:
                yield claim, node, amounts
        if len(self._amounts_of) > 2 * len(self._holders) + 64:
            of = self._amounts_of
            self._amounts_of = {uid: of[uid] for uid in of if uid in self._holders}

    def _amounts(self, devices: Held, name: str) -> DeviceAmounts:
        here = {d: share for d, share in devices.items() if self.inventory.node_of(d) == name}
        node = self.inventory.nodes.get(name) or Node(name)
        facts = ((device, self.inventory.facts(device)) for device in here)
        gpus = sum(bool(f is not None and gpu_model(node, d.driver, f)) for d, f in facts)
        return DeviceAmounts(gpus, self.demands.counts(node, here))


NOBODY = PodNames("", "", "")


def _new_uid(namespace: str, pod: str) -> str:
    """Return the stand-in uid of a claim that is yet to be made for a pod."""
    return f"new, for {namespace}/{pod}"


def uid_of_new(namespace: str, claim: str) -> str:
    """Return the stand-in uid of a claim that is yet to be made under this name."""
    return f"new, {namespace}/{claim}"


def _claim_to_make(pod: PodNames, new: NewClaim) -> DeviceClaimFacts:
    requests = tuple(
        (DeviceAsk(request.name, device_class, (), request.amount),)
        for request, device_class in new.requests
    )
    uid = _new_uid(pod.namespace, pod.name)
    return DeviceClaimFacts(pod.namespace, "", uid, ClaimAsks(requests))


def by_name(names: Iterable[str]) -> NodeTerm:
    """Return a term that matches exactly these nodes."""
    return (NodeExpression(NAME, "In", tuple(sorted(names)), of_name=True),)


def but_by_name(names: Iterable[str]) -> NodeTerm:
    """Return a term that matches all nodes except these."""
    return (NodeExpression(NAME, "NotIn", tuple(sorted(names)), of_name=True),)
