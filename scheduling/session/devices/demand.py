"""What the claims of a pod ask for, in the units that the engine counts.

GPUs of a claim count as GPUs of the pod. Each requested kind of device is counted on nodes like an
extended resource, so that the engine adds up what the pods of one cycle and gangs need together.
Counts cannot express constraints, all devices, alternatives, or devices shared by nodes; these
limit the nodes that the pod may use, by which devices are free now.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from scheduling.engine.types import MILLI, Node, NodeTerm
from scheduling.engine.verdict import Reason
from scheduling.kube.dra.allocation import tolerated
from scheduling.kube.dra.capacity import consumed_of, part_of
from scheduling.kube.dra.extended import NOTHING
from scheduling.kube.dra.facts import (
    ClaimAsks,
    DeviceAsk,
    DeviceClaimFacts,
    DeviceFacts,
    DeviceId,
    ExtendedAsks,
    ExtendedRequest,
)
from scheduling.kube.dra.requests import MOST_CONSUMERS
from scheduling.kube.dra.selectors import WrongSelector, selector
from scheduling.kube.seam import OwnClaim, PodClaim, Unclear
from scheduling.kube.translate.quantities import GPU_RESOURCES
from scheduling.session.devices.inventory import Inventory, gpu_model

# Devices, and how much of each is held; None = all of it.
Held = Mapping[DeviceId, Mapping[str, Fraction] | None]
PREFIX = "devices/"  # of the names by which the engine counts devices
# The resource that Kant's own pods ask for: GPUs, whatever their node calls them.
ANY_GPU = "any/gpu"
REMEMBERED = 1024  # sets of equal claims
SHOWN = 160  # characters of a selector shown in such a name
NOT_READY, NOT_HONOURED, WRONG = "ClaimNotReady", "NotHonoured", "WrongSelector"
# On a growing cluster: the reason that makes autoscalers notice the pod.
NOT_THERE = Reason.WAITING_FOR_NODES.value


class DeviceRefusal(Exception):
    """Why the claims of a pod cannot be answered now; see `Unclear`."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.unclear = Unclear(reason, text, is_answer=True)


class DeviceKind(NamedTuple):
    """The devices open to requests of one class with these selectors and tolerations."""

    device_class: str
    selectors: tuple[str, ...]
    tolerations: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """What the claims of a pod ask for.

    - `pending`: the claims that have no devices yet.
    - `pinned`: for each claim that has devices, the nodes where they can be used.
    - `gpus` of one of `models`, or `gpu_milli` of one GPU.
    - `amounts`: devices by the name they are counted under.
    - `exact`: the counts say everything.
    - `gpus_of_all`: for a request for all GPUs of a node, how many the node must have.
    - `extended`: what the pod asks for by resource names that devices may back on some nodes.
    - `own`: for claims that do not exist yet, what to make them as, by stand-in uid.
    """

    claims: tuple[DeviceClaimFacts, ...] = ()
    pending: tuple[DeviceClaimFacts, ...] = ()
    pinned: tuple[tuple[NodeTerm, ...], ...] = ()
    gpus: int = 0
    gpu_milli: int = MILLI
    models: tuple[str, ...] = ()
    amounts: Mapping[str, int] = field(default_factory=dict)
    exact: bool = True
    gpus_of_all: tuple[tuple[DeviceAsk, int], ...] = ()
    extended: ExtendedAsks = NOTHING
    own: Mapping[str, OwnClaim] = field(default_factory=dict)

    @property
    def shape(self) -> str:
        """A key that is equal for interchangeable pods."""
        pinned = sorted(f"{c.namespace}/{c.name}" for c in self.claims if c not in self.pending)
        return repr((tuple(claim.asks for claim in self.pending), pinned, self.extended.requests))


class Demands:
    """Reads claims.

    - `kinds`: what is counted under each name.
    - `resources`: for a name, the extended resources it covers.
    - `new_kinds`: a name was added since somebody looked.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.kinds: dict[str, DeviceKind] = {}
        self.resources: dict[str, tuple[str, ...]] = {}
        self.new_kinds = False
        self._names: dict[DeviceKind, str] = {}
        self._readings: dict[object, tuple[int, _AskReading | DeviceRefusal]] = {}
        self._fits: dict[object, dict[DeviceId, tuple[DeviceFacts, bool]]] = {}

    # --- which devices a request may have ---------------------------------------------------------
    def fits(self, ask: DeviceAsk, device: DeviceId) -> bool:
        """Whether the device is of the class and satisfies all selectors. Raises DeviceRefusal."""
        of = self.inventory.classes.get(ask.device_class)
        facts = self.inventory.facts(device)
        if of is None:
            text = f"There is no device class {ask.device_class}. Create the class."
            raise DeviceRefusal(NOT_READY, text)
        if facts is None:
            return False
        key = of.selectors, ask.selectors
        known = self._fits.setdefault(key, {})
        found = known.get(device)
        if found is None or found[0] is not facts:
            found = known[device] = facts, self._satisfies(ask, of.selectors, device, facts)
        return found[1]

    def _satisfies(
        self, ask: DeviceAsk, of_class: tuple[str, ...], device: DeviceId, facts: DeviceFacts
    ) -> bool:
        parts = [(f"device class {ask.device_class}", e) for e in of_class]
        parts += [(f"request {ask.name}", e) for e in ask.selectors]
        for where, expression in parts:
            try:
                if not selector(expression).matches(device.driver, facts):
                    return False
            except WrongSelector as wrong:
                text = f"{where}: the expression {expression!r} fails: {wrong}. Correct it."
                raise DeviceRefusal(WRONG, text) from None
        return True

    def matched(self, ask: DeviceAsk) -> list[DeviceId]:
        """Return all devices that fit the request, whoever holds them. Raises DeviceRefusal."""
        return [
            device
            for device, facts in self.inventory.devices
            if not facts.unusable
            and self.fits(ask, device)
            and consumed_of(facts, ask.capacity) is not None
        ]

    def unusable_for(self, ask: DeviceAsk) -> str:
        """Return why Kant withholds the first device that otherwise fits the request.

        "" = there is none. Raises DeviceRefusal.
        """
        for device, facts in self.inventory.devices:
            if facts.unusable and self.fits(ask, device):
                return f"{device.device} of pool {device.pool}: {facts.unusable}"
        return ""

    def counts(self, node: Node, devices: Held) -> dict[str, int]:
        """Count these devices of the node by kind. A share of None = the whole device.

        A resource that a device plugin serves on the node counts 0. A device that several claims
        may share counts as often as claims may share it.
        """
        here = dict.fromkeys(devices)
        found = {name: self._of_kind(kind, here) for name, kind in self.kinds.items()}
        for name, resources in self.resources.items():
            device_class = self.class_on(node, resources)
            kind = DeviceKind(device_class, (), ())
            found[name] = self._of_kind(kind, devices, by_name=True) if device_class else 0
        return {name: count for name, count in found.items() if count}

    def _of_kind(self, kind: DeviceKind, devices: Held, *, by_name: bool = False) -> int:
        ask = DeviceAsk("", kind.device_class, kind.selectors, tolerations=kind.tolerations)  # type: ignore[arg-type]
        found = 0
        for device, share in devices.items():
            facts = self.inventory.facts(device)
            try:
                if facts is not None and self.fits(ask, device) and tolerated(facts, ask):
                    found += _times(facts, share) if by_name else 1
            except DeviceRefusal:
                return 0  # the pod that asks for it gets the reason
        return found

    def of_model(self, model: str) -> set[str]:
        """Return the names of the kinds that include GPUs of this model."""
        found = set()
        for name, kind in self.kinds.items():
            ask = DeviceAsk("", kind.device_class, kind.selectors, tolerations=kind.tolerations)  # type: ignore[arg-type]
            try:
                devices = self.matched(ask)
            except DeviceRefusal:
                continue  # the pod that asks for it gets the reason
            inventory = self.inventory
            for device in devices:
                facts = inventory.facts(device)
                node = inventory.nodes.get(inventory.node_of(device))
                if facts is not None and gpu_model(node, device.driver, facts) == model:
                    found.add(name)
                    break
        return found

    def name_of(self, ask: DeviceAsk) -> str:
        """Return the name under which the request's devices are counted."""
        kind = DeviceKind(ask.device_class, ask.selectors, ask.tolerations)
        if kind not in self._names:
            name = f"{PREFIX}{ask.device_class}"
            if ask.selectors:
                said = " and ".join(ask.selectors)
                name += f" where {said if len(said) <= SHOWN else said[:SHOWN] + '…'}"
            if ask.tolerations:
                name += " with tolerations"
            while name in self.kinds:
                name += "'"
            self._names[kind], self.kinds[name] = name, kind
            self.new_kinds = True
        return self._names[kind]

    # --- extended resources -----------------------------------------------------------------------
    def are_meant(self, extended: ExtendedAsks) -> bool:
        """Whether devices may back what a pod asks for by resource names."""
        by_driver = self.inventory.gpus_by_driver_only if extended.requests else False
        return any(
            by_driver if is_gpu(each.resource) else bool(self.inventory.class_of(each.resource))
            for each in extended.requests
        )

    def class_on(self, node: Node, resources: Iterable[str]) -> str:
        """Return the device class that backs the first of these resources on the node.

        "" = the node has none, or a device plugin serves one of them.
        """
        if not self.inventory.advertised.get(node.name, {}).keys().isdisjoint(resources):
            return ""
        for resource in resources:
            device_class = self.inventory.class_of(resource)
            ask = DeviceAsk("", device_class)
            offers = self.inventory.offers(node).devices if device_class else ()
            if any(self.fits(ask, offer.id) for offer in offers):
                return device_class
        return ""

    def requests_on(
        self, node: Node, extended: ExtendedAsks
    ) -> list[tuple[ExtendedRequest, str]] | None:
        """Return the requests that devices of the node must serve, with their classes.

        None = neither devices nor a device plugin can serve one of them. Raises DeviceRefusal.
        """
        found = []
        for each in extended.requests:
            resources = names_of(each.resource)
            if not self.inventory.advertised.get(node.name, {}).keys().isdisjoint(resources):
                continue
            device_class = self.class_on(node, resources)
            if not device_class:
                return None
            found.append((each, device_class))
        return found

    def resource_name(self, resource: str) -> str:
        """Return the name that counts the devices behind the resource.

        It also counts what a device plugin serves on other nodes.
        """
        name = f"{PREFIX}{resource}" if is_gpu(resource) else resource
        if name not in self.resources:
            self.resources[name] = names_of(resource)
            self.new_kinds = True
        return name

    # --- what a pod asks for ----------------------------------------------------------------------
    def of(
        self,
        namespace: str,
        uid: str,
        named: Iterable[PodClaim],
        claims: Mapping[tuple[str, str], DeviceClaimFacts],
        extended: ExtendedAsks = NOTHING,
        new: Iterable[tuple[DeviceClaimFacts, OwnClaim]] = (),
    ) -> DeviceDemand:
        """Return what the claims that a pod names ask for, with `new` claims and resource names.

        `new`: claims to make for the pod. Raises DeviceRefusal.
        """
        found: dict[str, DeviceClaimFacts] = {}
        for each in named:
            if each.claim != "":
                found[each.name] = _claim(namespace, uid, each, claims)
        to_make = dict[str, OwnClaim]()
        for claim, made_as in new:
            found[claim.name], to_make[claim.uid] = claim, made_as
        own = tuple({claim.uid: claim for claim in found.values()}.values())
        pending = tuple(claim for claim in own if claim.given is None)
        meant = extended if self.are_meant(extended) else NOTHING
        reading = self._read(pending, meant)
        return DeviceDemand(
            claims=own,
            pending=pending,
            pinned=tuple(claim.nodes for claim in own if claim.given is not None and claim.nodes),
            gpus=reading.gpus,
            gpu_milli=reading.gpu_milli,
            models=tuple(sorted(reading.models or ())),
            amounts=dict(reading.amounts),
            exact=reading.exact,
            gpus_of_all=tuple(reading.gpus_of_all),
            extended=meant,
            own=to_make,
        )

    def _read(self, claims: tuple[DeviceClaimFacts, ...], extended: ExtendedAsks) -> "_AskReading":
        """Read claims; equal claims are read once."""
        asks = tuple(claim.asks for claim in claims), extended.requests
        known = self._readings.get(asks)
        if known is None or known[0] != self.inventory.version:
            found: _AskReading | DeviceRefusal
            try:
                found = _AskReading(self, *asks)
            except DeviceRefusal as refusal:
                found = refusal
            if len(self._readings) > REMEMBERED:
                self._readings.clear()
            known = self._readings[asks] = self.inventory.version, found
        if isinstance(known[1], DeviceRefusal):
            reason, text, _ = known[1].unclear
            names = ", ".join(claim.name for claim in claims)
            of = f"Resource claim {names}: " if names else ""
            raise DeviceRefusal(reason, f"{of}{text}")
        return known[1]


def is_gpu(resource: str) -> bool:
    return resource == ANY_GPU or resource in GPU_RESOURCES


def names_of(resource: str) -> tuple[str, ...]:
    return GPU_RESOURCES if resource == ANY_GPU else (resource,)


def _claim(
    namespace: str,
    uid: str,
    named: PodClaim,
    claims: Mapping[tuple[str, str], DeviceClaimFacts],
) -> DeviceClaimFacts:
    if named.claim is None:
        text = (
            f"Its resource claim {named.name} has not been created from template "
            f"{named.template} yet. If this does not change, see the events of the pod."
        )
        raise DeviceRefusal(NOT_READY, text)
    claim = claims.get((namespace, named.claim))
    if claim is None:
        text = f"There is no resource claim {named.claim} in namespace {namespace}. Create it."
        raise DeviceRefusal(NOT_READY, text)
    if claim.problem:
        raise DeviceRefusal(NOT_HONOURED, f"Resource claim {claim.name}: {claim.problem}.")
    if claim.failed:
        text = (
            f"Resource claim {claim.name}: {claim.failed}. It gets other devices when no pod "
            "uses it."
        )
        raise DeviceRefusal(NOT_READY, text)
    if claim.given is None and claim.deleting:
        text = f"Resource claim {claim.name} is being deleted. Create it again when it is gone."
        raise DeviceRefusal(NOT_READY, text)
    if len(claim.reserved_for) >= MOST_CONSUMERS and uid not in claim.reserved_for:
        text = f"{MOST_CONSUMERS} pods use resource claim {claim.name}, which is the limit."
        raise DeviceRefusal(NOT_READY, text)
    return claim


class AskedGpus(NamedTuple):
    """A number of GPUs of one of these models. `milli`: the part of each, at most."""

    gpus: int
    models: set[str]
    milli: int = MILLI


class _AskReading:
    """Adds up what claims and requests for extended resources ask for. Raises DeviceRefusal."""

    def __init__(
        self, demands: Demands, claims: Iterable[ClaimAsks], requests: Iterable[ExtendedRequest]
    ) -> None:
        self.gpus, self.gpu_milli = 0, MILLI
        self.models: set[str] | None = None  # None = any model
        self.amounts: Counter[str] = Counter()
        self.exact = True
        self.gpus_of_all: list[tuple[DeviceAsk, int]] = []
        self._demands = demands
        self._seen: list[tuple[DeviceKind, frozenset[DeviceId]]] = []
        for asks in claims:
            self._add(asks)
        totals: Counter[str] = Counter()
        for each in requests:
            totals[each.resource] += each.amount
        for resource, count in totals.items():
            self._by_name(resource, count)

    def _by_name(self, resource: str, count: int) -> None:
        """Add an amount of an extended resource that devices back on some nodes."""
        demands = self._demands
        if is_gpu(resource):
            # Already counted as GPUs of the pod.
            self.amounts[demands.resource_name(resource)] += count
        for name in names_of(resource):
            device_class = demands.inventory.class_of(name)
            ask = DeviceAsk(name, device_class, (), count)
            devices = demands.matched(ask) if device_class else []
            if not devices:
                continue
            if not is_gpu(resource):
                demands.resource_name(resource)
                self._add_gpus(self._gpus(ask, devices))
            self._note(DeviceKind(name, (), ()), frozenset(devices))

    def _add(self, asks: ClaimAsks) -> None:
        if asks.constraints:
            self.exact = False
        for alternatives in asks.requests:
            for ask in alternatives:
                if ask.problem:
                    raise DeviceRefusal(NOT_HONOURED, f"request {ask.name}: {ask.problem}.")
            self._request(alternatives)

    def _request(self, alternatives: tuple[DeviceAsk, ...]) -> None:
        found = [(ask, self._demands.matched(ask)) for ask in alternatives]
        if not any(devices for _, devices in found):
            names = ", ".join(ask.name for ask, _ in found)
            if why := next(filter(None, map(self._demands.unusable_for, alternatives)), ""):
                text = f"request {names} asks for devices that Kant does not give, as {why}."
                raise DeviceRefusal(NOT_HONOURED, text)
            text = f"no device of the cluster matches request {names}"
            if self._demands.inventory.to_come:
                text = f"{text}. A node added by an autoscaler may have one."
                raise DeviceRefusal(NOT_THERE, text)
            raise DeviceRefusal(NOT_READY, f"{text}. Add one, or change it.")
        counted = [self._gpus(ask, devices) for ask, devices in found if devices]
        numbers = sorted({each.gpus for each in counted})
        if len(numbers) > 1:
            text = (
                f"its alternatives ask for {' or '.join(map(str, numbers))} GPUs, but quota is "
                "counted before one is chosen. Give all of them the same number."
            )
            raise DeviceRefusal(
                NOT_HONOURED, f"request {alternatives[0].name.partition('/')[0]}: {text}"
            )
        models = {model for each in counted for model in each.models}
        self._add_gpus(AskedGpus(numbers[0], models, max(each.milli for each in counted)))
        if len(alternatives) > 1:
            self.exact = False
            return
        ask, devices = found[0]
        self._count(ask, frozenset(devices))

    def _add_gpus(self, asked: AskedGpus) -> None:
        if not asked.gpus:
            return
        self.gpus += asked.gpus
        self.gpu_milli = min(self.gpu_milli, asked.milli)
        if self.gpus > 1 and self.gpu_milli < MILLI:
            text = "a pod can have a part of one GPU, and no other GPU. Ask for one in each pod."
            raise DeviceRefusal(NOT_HONOURED, text)
        self.models = asked.models if self.models is None else self.models & asked.models
        if not self.models:
            text = "its requests ask for GPUs of different models. Ask for one in each pod."
            raise DeviceRefusal(NOT_HONOURED, text)

    def _count(self, ask: DeviceAsk, devices: frozenset[DeviceId]) -> None:
        if ask.admin:
            self.exact = False
            return
        counts = self._note(DeviceKind(ask.device_class, ask.selectors, ask.tolerations), devices)
        if not counts or ask.amount is None:
            self.exact = False
            return
        self.amounts[self._demands.name_of(ask)] += ask.amount

    def _note(self, kind: DeviceKind, devices: frozenset[DeviceId]) -> bool:
        """Note the devices of a request; return whether a count can say how many are left."""
        inventory = self._demands.inventory
        facts = (inventory.facts(device) for device in devices)
        shared = any(each is not None and (each.consumes or each.several) for each in facts)
        if shared or not all(inventory.node_of(device) for device in devices):
            self.exact = False
            return False
        for other, theirs in self._seen:
            if other != kind and not devices.isdisjoint(theirs):
                self.exact = False  # a device might count twice
        self._seen.append((kind, devices))
        return True

    def _gpus(self, ask: DeviceAsk, devices: list[DeviceId]) -> AskedGpus:
        """Return how many GPUs the request asks for, and of which models.

        Admin access only looks at devices of others and uses none.
        """
        inventory = self._demands.inventory
        models, without, milli = set[str](), False, 1
        by_node: Counter[str] = Counter()
        for device in devices:
            node, facts = inventory.node_of(device), inventory.facts(device)
            assert facts is not None
            model = gpu_model(inventory.nodes.get(node), device.driver, facts)
            if model:
                models.add(model)
                by_node[node] += 1
                milli = max(milli, _milli_of(facts, ask))
            else:
                without = True
        if ask.admin or not models:
            return AskedGpus(0, set())
        if without:
            text = (
                f"request {ask.name}: it may get GPUs or other devices, but quota is counted "
                "before that is known. Select one kind with its selectors."
            )
            raise DeviceRefusal(NOT_HONOURED, text)
        if ask.amount is not None:
            return AskedGpus(ask.amount, models, milli)
        (most, _), *_ = sorted(Counter(by_node.values()).items(), key=lambda n: (-n[1], -n[0]))
        self.gpus_of_all.append((ask, most))
        return AskedGpus(most, models, milli)


def _times(facts: DeviceFacts, share: Mapping[str, Fraction] | None) -> int:
    """Return how many requests without sizes (those by name) this share of the device can serve.

    None = the whole device. Rounded down, so that nobody waits for what other sizes leave over.
    """
    consumed = consumed_of(facts, ())
    if not facts.several or consumed is None:
        return 1
    whole = {name: capacity.value for name, capacity in facts.capacity.items()}
    has = whole if share is None else share
    times = (has.get(name, Fraction(0)) // amount for name, amount in consumed if amount)
    return min(times, default=MOST_CONSUMERS)


def _milli_of(facts: DeviceFacts, ask: DeviceAsk) -> int:
    """Return the GPU-milli that the request gets, rounded down: the driver keeps exact amounts."""
    consumed = consumed_of(facts, ask.capacity)
    if not facts.several or consumed is None:
        return MILLI
    return max(1, math.floor(part_of(facts, consumed) * MILLI))
