"""Which devices exist, and which of them each node may use."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from msgspec.structs import replace

from scheduling.engine.cluster.affinity import matches
from scheduling.engine.types import Device, Node
from scheduling.kube.dra.allocation import NodeDevices, OfferedDevice
from scheduling.kube.dra.extended import OF_CLASS
from scheduling.kube.dra.facts import (
    ClassFacts,
    DeviceFacts,
    DeviceId,
    SliceFacts,
    TaintRuleFacts,
    model_of,
)
from scheduling.kube.translate.quantities import GPU_RESOURCES

PoolName = tuple[str, str]  # driver and pool
NO_NODE = "it is a GPU of no one node, for which there is no quota"


class DevicePool(NamedTuple):
    """The newest known generation of a pool. `whole`: all of its slices are known."""

    slices: tuple[SliceFacts, ...]
    whole: bool


class NodeGpus(NamedTuple):
    """GPUs of a node that a device driver reports.

    `resource`: the name by which pods may also ask for them, "" = none. `shares`: claims may hold
    parts of some.
    """

    model: str = ""
    devices: tuple[Device, ...] = ()
    resource: str = ""
    shares: bool = False


class Inventory:
    """Slices, classes, taint rules and nodes.

    - `version`: differs after each change of these, except nodes.
    - `changed`: nodes whose devices may have changed.
    - `divided`: the cluster has several schedulers, and only one may give away a device.
    - `advertised`: by node, the resources that device plugins serve there, and how much; all GPUs
      count, healthy or not.
    - `to_come`: by name, the nodes that an autoscaler may add; nobody knows their devices yet.
    """

    def __init__(self) -> None:
        self.version = 0
        self.changed: set[str] = set()
        self.divided = False
        self.classes: dict[str, ClassFacts] = {}
        self.nodes: dict[str, Node] = {}
        self.advertised: dict[str, Mapping[str, int]] = {}
        self.to_come: Mapping[str, Node] = {}
        self._taint_rules: dict[str, TaintRuleFacts] = {}
        self._by_resource: dict[str, ClassFacts] = {}
        self._by_driver_only: tuple[int, bool] = (-1, False)  # and the version it is for
        self._shared_by_driver: tuple[int, frozenset[str]] = (-1, frozenset())
        self._slices: dict[PoolName, dict[str, SliceFacts]] = defaultdict(dict)  # by uid
        self._pools: dict[PoolName, DevicePool] = {}
        self._local: dict[str, set[PoolName]] = defaultdict(set)  # by node
        self._shared: set[PoolName] = set()  # with devices that several nodes may use
        self._device: dict[DeviceId, DeviceFacts] = {}
        self._node_of: dict[DeviceId, str] = {}
        self._offers: dict[str, tuple[int, NodeDevices]] = {}  # by node, with the version it is for

    # --- observations -----------------------------------------------------------------------------
    def slice_seen(self, facts: SliceFacts) -> None:
        self._slices[facts.driver, facts.pool][facts.uid] = facts
        self._build((facts.driver, facts.pool))

    def slice_gone(self, facts: SliceFacts) -> None:
        self._slices[facts.driver, facts.pool].pop(facts.uid, None)
        self._build((facts.driver, facts.pool))

    def taint_rule_seen(self, facts: TaintRuleFacts) -> None:
        self._taint_rules[facts.name] = facts
        self._build_all()

    def taint_rule_gone(self, facts: TaintRuleFacts) -> None:
        known = self._taint_rules.get(facts.name)
        if known is not None and known.uid == facts.uid:
            del self._taint_rules[facts.name]
            self._build_all()

    def _build_all(self) -> None:
        for name in list(self._slices):
            self._build(name)

    def class_seen(self, facts: ClassFacts) -> None:
        self.classes[facts.name] = facts
        self._classes_change()

    def class_gone(self, facts: ClassFacts) -> None:
        if facts.name in self.classes and self.classes[facts.name].uid == facts.uid:
            del self.classes[facts.name]
            self._classes_change()

    def _classes_change(self) -> None:
        self.version += 1
        self.changed.update(self.nodes_with_devices())
        # If several classes back a resource, the newest wins, then the first by name.
        older_first = sorted(
            sorted(self.classes.values(), key=lambda c: c.name, reverse=True),
            key=lambda c: c.created_at,
        )
        self._by_resource = {each.resource: each for each in older_first if each.resource}

    def node_seen(self, node: Node, told: Node | None = None) -> None:
        """Take in a node. `told`: the node without what device drivers report, if that differs."""
        before = self.nodes.get(node.name), self.advertised.get(node.name)
        self.nodes[node.name] = node
        self.advertised[node.name] = _advertised(told or node)
        of_node = before[0] and (before[0].labels, before[0].gpu_model, before[1])
        if of_node != (node.labels, node.gpu_model, self.advertised[node.name]):
            self._offers.pop(node.name, None)
            if self._shared or node.name in self._local:
                self.version += 1
            if self._pools:
                self.changed.add(node.name)

    def nodes_may_come(self, nodes: Mapping[str, Node]) -> None:
        if nodes is not self.to_come and nodes != self.to_come:
            self.to_come = nodes
            self.version += 1

    def node_gone(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.advertised.pop(name, None)
        self._offers.pop(name, None)

    def _build(self, name: PoolName) -> None:
        """Rebuild the pool."""
        before = self._pools.pop(name, None)
        for each in before.slices if before is not None else ():
            self._forget(name, each)
        self._shared.discard(name)
        of = self._slices[name]
        if not of:
            del self._slices[name]
        newest = max((each.generation for each in of.values()), default=0)
        found = sorted(
            (each for each in of.values() if each.generation == newest), key=lambda s: s.name
        )
        found = [self._tainted(each) for each in found]
        names = Counter(device.name for each in found for device in each.devices)
        whole = bool(found) and len(found) == found[0].slices and max(names.values(), default=1) < 2
        if found:
            self._pools[name] = DevicePool(tuple(found), whole)
        for each in found:
            self._learn(name, each)
        self.version += 1

    def _tainted(self, of: SliceFacts) -> SliceFacts:
        """Return the slice with the taints that rules add to its devices."""
        if not self._taint_rules:
            return of
        rules = [rule for _, rule in sorted(self._taint_rules.items())]
        devices = []
        for device in of.devices:
            more = tuple(rule.taint for rule in rules if rule.means(of, device))
            devices.append(replace(device, taints=device.taints + more) if more else device)
        return replace(of, devices=tuple(devices))

    def _learn(self, name: PoolName, of: SliceFacts) -> None:
        if of.node:
            self._local[of.node].add(name)
            self.changed.add(of.node)
        elif of.devices:
            self._shared.add(name)
        for device in of.devices:
            known = DeviceId(*name, device.name)
            self._device[known] = device
            if node := of.node or device.node:
                self._node_of[known] = node
                self.changed.add(node)

    def _forget(self, name: PoolName, of: SliceFacts) -> None:
        if of.node:
            self._local[of.node].discard(name)
            self.changed.add(of.node)
            if not self._local[of.node]:
                del self._local[of.node]
        for device in of.devices:
            known = DeviceId(*name, device.name)
            self._device.pop(known, None)
            if node := self._node_of.pop(known, ""):
                self.changed.add(node)

    # --- what there is ----------------------------------------------------------------------------
    def __bool__(self) -> bool:
        return bool(self._pools)

    def facts(self, device: DeviceId) -> DeviceFacts | None:
        return self._device.get(device)

    def node_of(self, device: DeviceId) -> str:
        """Return the only node that may use the device; "" = several may, or it is unknown."""
        return self._node_of.get(device, "")

    @property
    def devices(self) -> Iterable[tuple[DeviceId, DeviceFacts]]:
        return self._device.items()

    def nodes_with_devices(self) -> Iterable[str]:
        """Return the nodes that may use any device."""
        if self._shared:
            return self.nodes
        return [name for name in self._local if name in self.nodes]

    def class_of(self, resource: str) -> str:
        """Return the device class that backs an extended resource; "" = none does."""
        named = resource.removeprefix(OF_CLASS)
        if named != resource:
            return named if named in self.classes else ""
        of = self._by_resource.get(resource)
        return of.name if of is not None else ""

    @property
    def gpus_by_driver_only(self) -> bool:
        """Whether some node has GPUs without a device plugin.

        A pod that asks for GPUs by resource name gets them there by a claim, or not at all.
        """
        if self._by_driver_only[0] != self.version:
            found = any(
                not self.has_gpu_plugin(name) and self.gpus(name).devices for name in self._local
            )
            self._by_driver_only = self.version, found
        return self._by_driver_only[1]

    @property
    def shared_by_driver(self) -> frozenset[str]:
        """Nodes whose GPUs no device plugin serves, and whose GPUs claims may share."""
        if self._shared_by_driver[0] != self.version:
            found = (n for n in self._local if not self.has_gpu_plugin(n) and self.gpus(n).shares)
            self._shared_by_driver = self.version, frozenset(found)
        return self._shared_by_driver[1]

    def has_gpu_plugin(self, node: str) -> bool:
        return any(name in GPU_RESOURCES for name in self.advertised.get(node, ()))

    def offers(self, node: Node) -> NodeDevices:
        """Return what the node may use, ordered by driver and pool."""
        known = self._offers.get(node.name)
        if known is None or known[0] != self.version:
            known = self._offers[node.name] = self.version, self._offered(node)
        return known[1]

    def _offered(self, node: Node) -> NodeDevices:
        found: list[OfferedDevice] = []
        updating: list[str] = []
        for name in sorted(self._local.get(node.name, set()) | self._shared):
            pool, here = self._pools[name], list[OfferedDevice]()
            for of in pool.slices:
                here += _of_node(of, node, divided=self.divided)
            if here and not pool.whole:
                updating.append("/".join(name))
            elif here:
                found += here
        return NodeDevices(found, tuple(updating))

    def counters(self, pools: Iterable[PoolName]) -> dict[tuple[str, str, str, str], Fraction]:
        """Return the shared counters of these pools, as if no device were in use."""
        return {
            (*name, each.counter_set, each.counter): each.amount
            for name in pools
            if name in self._pools
            for of in self._pools[name].slices
            for each in of.counters
        }

    def gpus(self, name: str) -> NodeGpus:
        """Return the node's own GPUs. Of several models, only the first counts."""
        found: dict[str, list[str]] = defaultdict(list)
        bad, several = set[str](), set[str]()
        for pool in sorted(self._local.get(name, ())):
            for of in self._pools[pool].slices:
                for device in of.devices if of.node == name else ():
                    if not device.unusable and (model := model_of(of.driver, device)):
                        found[model].append(device.name)
                        if device.several:
                            several.add(device.name)
                        if any(taint.effect == "NoExecute" for taint in device.taints):
                            bad.add(device.name)
        if not found:
            return NodeGpus()
        model = min(found)
        names = sorted(found[model], key=_natural)
        return NodeGpus(
            model,
            tuple(Device(n, each, healthy=each not in bad) for n, each in enumerate(names)),
            shares=not several.isdisjoint(names),
        )


def gpu_model(node: Node | None, driver: str, device: DeviceFacts) -> str:
    """Return the GPU model the device counts as on its node; "" = it is no GPU."""
    own = model_of(driver, device)
    return (node.gpu_model or own) if own and node is not None else own


def _advertised(node: Node) -> Mapping[str, int]:
    found = {name: amount for name, amount in node.extended.items() if amount}
    if node.devices or node.gpu_parts:
        found[node.gpu_resource or GPU_RESOURCES[0]] = len(node.devices)
    return found


def _of_node(of: SliceFacts, node: Node, *, divided: bool) -> Iterable[OfferedDevice]:
    if of.node and of.node != node.name:
        return
    if not of.by_device and not of.node and not of.everywhere and not matches(node, of.nodes):
        return
    for device in of.devices:
        local, nodes = bool(of.node), of.nodes
        if of.by_device:
            local, nodes = bool(device.node), device.nodes
            if local and device.node != node.name:
                continue
            if not local and not device.everywhere and not matches(node, device.nodes):
                continue
        # Several schedulers might give away a device that several nodes may use.
        if device.unusable or (not local and (divided or model_of(of.driver, device))):
            continue
        yield OfferedDevice(DeviceId(of.driver, of.pool, device.name), device, local, nodes)


def _natural(name: str) -> tuple[str, int, str]:
    """Sort key that puts gpu-2 before gpu-10."""
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return head, int(digits or 0), digits
