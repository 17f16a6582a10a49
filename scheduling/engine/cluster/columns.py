"""What is free on every node, in flat columns: derived from bookings, updated by deltas."""

from array import array
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from scheduling.engine.cluster.facts import bounded
from scheduling.engine.cluster.index import CapacityIndex, index_of
from scheduling.engine.types import MILLI, Nic, Node, PodPlacement, PodRules, PodSetSpec

PodKey = tuple[str, int, int]  # (job id, pod set, ordinal)


class Booking(NamedTuple):
    """The place that a pod holds, and its pod set."""

    placement: PodPlacement
    pod_set: PodSetSpec


class OtherPod(NamedTuple):
    """What a pod of others takes from its node; its devices are unknown."""

    node: str
    gpus: int
    cpu_milli: int
    memory_mib: int
    extended: Mapping[str, int]
    rules: PodRules | None = None


class PoolTotals:
    """GPU-milli of one GPU model; what is available and not allocated is free."""

    __slots__ = ("allocated", "available", "capacity")

    def __init__(self, capacity: int = 0, available: int = 0, allocated: int = 0) -> None:
        self.capacity = capacity
        self.available = available
        self.allocated = allocated


@lru_cache(maxsize=1 << 16)
def mask_of(indices: tuple[int, ...]) -> int:
    """Return the bit set of these indices."""
    mask = 0
    for index in indices:
        mask |= 1 << index
    return mask


@lru_cache(maxsize=1024)
def advertised(nics: tuple[Nic, ...]) -> tuple[tuple[str, int], ...]:
    """Return the NICs of each extended resource as bit sets; () if pods request none of them."""
    masks: dict[str, int] = {}
    for nic in nics:
        if nic.resource:
            masks[nic.resource] = masks.get(nic.resource, 0) | 1 << nic.index
    return tuple(masks.items())


def extended_of(node: Node, p: PodPlacement, spec: PodSetSpec) -> Mapping[str, int]:
    """Return the extended resources that a pod takes at its place.

    They are those that it requests, and those of the NICs that it got for itself. If it requests
    the resource of its NICs by name, too, the larger amount counts for both.
    """
    if not (spec.nics and p.nics):
        return spec.extended
    amounts, mask = dict(spec.extended), mask_of(p.nics)
    for resource, nics in advertised(node.nics):
        taken = (nics & mask).bit_count()
        if taken:
            amounts[resource] = max(taken, amounts.get(resource, 0))
    return amounts


def beyond_milli(node: Node, p: PodPlacement, spec: PodSetSpec) -> int:
    """Return what a pod takes of its device beyond `milli` thousandths.

    The unit is 1/(1000 x MiB of the device). It is 0 unless the pod requests a share by memory that
    is not a whole number of thousandths.
    """
    memory = node.gpu_memory_mib
    if spec.gpu_memory_mib > memory:
        return 0
    return max(MILLI * spec.gpu_memory_mib - p.milli * memory, 0)


class Columns:
    """The slots and columns of a cluster, and its bookings.

    Columns by slot; a node keeps its slot as long as its name is known:
    `facts`: the node; None = it is gone. `usable`: whether new pods may go there at all.
    `total`: installed GPUs.
    `free_mask`: healthy devices without bookings. `free`: how many of them pods may still get; GPUs
    of other people's pods, and GPUs out of service that nothing names, take an unknown device each.
    `partial`: what is left of healthy, partly used devices, in whole GPU-milli. `remainders`: what
    is left besides, if anything, in units of 1/(1000 x MiB of the device); it makes shares by
    memory exact.
    `cpu`, `memory`, `pods`, `extended`: what is left.
    `nic_mask`: healthy NICs that no pod has to itself. `nic_healthy`: all healthy NICs.
    `allocated`, `available`: GPU-milli. `small`: GPU-milli of pods smaller than the node.
    `tables`: the node's device tables, cached by placement.
    `rails`: for nodes that have them, the NICs of each extended resource as bit sets.
    """

    def __init__(self, levels: tuple[str, ...]) -> None:
        self.levels = levels
        self.slot_of: dict[str, int] = {}
        self.names: list[str] = []
        self.facts: list[Node | None] = []
        self.usable: list[bool] = []
        self.total = array("q")
        self.free_mask: list[int] = []
        self.free = array("q")
        self.partial: list[dict[int, int]] = []
        self.remainders: dict[int, dict[int, int]] = {}
        self.cpu = array("q")
        self.memory = array("q")
        self.pods = array("q")
        self.extended: list[Mapping[str, int]] = []
        self.nic_mask = array("q")
        self.nic_healthy = array("q")
        self.tables: list[object] = []
        self.rails: dict[int, tuple[tuple[str, int], ...]] = {}
        self.allocated = array("q")
        self.available = array("q")
        self.small = array("q")
        # Slots where bookings contradict the devices: a faulty or missing device, one booked beyond
        # its size, or more pods of others and unnamed faults than unbooked devices. There, every
        # release derives the columns again from the bookings.
        self.irregular: set[int] = set()
        self._totals: dict[str, PoolTotals] = {}
        self._jobs: dict[str, dict[tuple[int, int], Booking]] = {}
        self._on_node: dict[str, tuple[PodKey, ...]] = {}
        self._others: dict[str, OtherPod] = {}
        self._others_on: dict[str, tuple[str, ...]] = {}
        self._index: CapacityIndex | None = None

    @property
    def index(self) -> CapacityIndex:
        """The free-capacity index; rebuilt when nodes come or go, else updated by each change."""
        if self._index is None:
            self._index = index_of(self)
        return self._index

    def _add_slot(self, name: str) -> int:
        slot = len(self.names)
        self.slot_of[name] = slot
        self.names.append(name)
        self.facts.append(None)
        self.usable.append(False)
        self.free_mask.append(0)
        self.partial.append({})
        self.extended.append({})
        for column in (self.total, self.free, self.cpu, self.memory, self.pods):
            column.append(0)
        for column in (self.nic_mask, self.nic_healthy, self.allocated, self.available, self.small):
            column.append(0)
        self.tables.append(None)
        self._index = None
        return slot

    def _derive_again(self, name: str) -> None:
        slot = self.slot_of.get(name)
        if slot is not None and self.facts[slot] is not None:
            self._derive(slot, self.facts[slot])

    def _derive(self, slot: int, node: Node | None) -> None:
        """Set all columns of a slot from the node's facts and the bookings on it."""
        before = self.facts[slot]
        if before is not None:
            pool = self._totals[before.gpu_model]
            pool.capacity -= self.total[slot] * MILLI
            pool.available -= self.available[slot]
            pool.allocated -= self.allocated[slot]
        if before is not node:
            self.tables[slot] = None
            self.rails.pop(slot, None)
            if node is not None and (rails := advertised(node.nics)):
                self.rails[slot] = rails
        self.facts[slot] = node
        self.irregular.discard(slot)
        if node is None:
            self.usable[slot] = False
            self.total[slot] = self.free[slot] = self.free_mask[slot] = 0
            self.allocated[slot] = self.available[slot] = self.small[slot] = 0
            self.partial[slot] = {}
            self.remainders.pop(slot, None)
            return
        self._derive_devices(slot, node)
        self._derive_rest(slot, node)
        if self._index is not None:
            self._index.refresh(self, slot)
        pool = self._totals.setdefault(node.gpu_model, PoolTotals())
        pool.capacity += self.total[slot] * MILLI
        pool.available += self.available[slot]
        pool.allocated += self.allocated[slot]

    def _derive_devices(self, slot: int, node: Node) -> None:
        used: dict[int, int] = {}
        beyond: dict[int, int] = {}
        holds: list[int] = []
        for key in self._on_node.get(node.name, ()):
            p, spec = self._jobs[key[0]][key[1], key[2]]
            holds.append(p.milli * len(p.devices))
            if spec.gpu_memory_mib and (more := beyond_milli(node, p, spec)):
                for device in p.devices:
                    beyond[device] = beyond.get(device, 0) + more
            for device in p.devices:
                used[device] = used.get(device, 0) + p.milli
        healthy = mask_of(tuple(d.index for d in node.devices if d.healthy))
        installed = mask_of(tuple(d.index for d in node.devices))
        whole = installed.bit_count() * MILLI
        free_mask, partial, allocated, on_bad = healthy, dict[int, int](), 0, 0
        remainders: dict[int, int] = {}
        for device, milli in used.items():
            free_mask &= ~(1 << device)
            if not healthy >> device & 1:
                self.irregular.add(slot)
                if installed >> device & 1:
                    on_bad += min(milli, MILLI)
                continue
            allocated += min(milli, MILLI)
            left = MILLI - milli
            if device in beyond:
                carry, remainder = divmod(-beyond[device], node.gpu_memory_mib)
                left += carry
                if remainder and left >= 0:
                    remainders[device] = remainder
            if left > 0:
                partial[device] = left
            elif left < 0:
                self.irregular.add(slot)
        others = sum(self._others[uid].gpus for uid in self._others_on.get(node.name, ()))
        unbooked = free_mask.bit_count()
        if others + node.unnamed_unhealthy > unbooked:
            self.irregular.add(slot)
        others = min(others, unbooked)
        # Assume that an unnamed fault is on an unused GPU, as long as there is one.
        unnamed = min(node.unnamed_unhealthy, unbooked - others)
        allocated += on_bad + others * MILLI
        self.usable[slot] = node.schedulable
        self.total[slot] = installed.bit_count()
        self.small[slot] = sum(milli for milli in holds if milli < whole)
        self.free_mask[slot] = free_mask
        self.free[slot] = unbooked - others - unnamed
        self.partial[slot] = partial
        self._set_remainders(slot, remainders)
        self.allocated[slot] = allocated
        self.available[slot] = (
            (healthy.bit_count() - unnamed) * MILLI + on_bad if node.schedulable else allocated
        )

    def _derive_rest(self, slot: int, node: Node) -> None:
        cpu, memory, pods = node.cpu_milli, node.memory_mib, node.max_pods
        extended = dict(node.extended)
        nics = self.nic_healthy[slot] = mask_of(tuple(n.index for n in node.nics if n.healthy))
        for key in self._on_node.get(node.name, ()):
            p, spec = self._jobs[key[0]][key[1], key[2]]
            cpu -= spec.cpu_milli
            memory -= spec.memory_mib
            pods -= 1
            if spec.nics:
                nics &= ~mask_of(p.nics)
            for name, amount in extended_of(node, p, spec).items():
                extended[name] = extended.get(name, 0) - amount
        others = [self._others[uid] for uid in self._others_on.get(node.name, ())]
        cpu -= bounded(sum(other.cpu_milli for other in others))
        memory -= bounded(sum(other.memory_mib for other in others))
        pods -= len(others)
        for name in {name for other in others for name in other.extended}:
            taken = bounded(sum(other.extended.get(name, 0) for other in others))
            extended[name] = extended.get(name, 0) - taken
        self.cpu[slot], self.memory[slot], self.pods[slot] = cpu, memory, pods
        self.extended[slot] = extended
        self.nic_mask[slot] = nics

    def take(self, slot: int, p: PodPlacement, spec: PodSetSpec) -> None:
        free_mask = self.free_mask[slot]
        if p.milli == MILLI:
            mask = mask_of(p.devices)
            if free_mask & mask != mask or self.free[slot] < len(p.devices):
                self._derive(slot, self.facts[slot])
                return
            self.free_mask[slot] = free_mask ^ mask
            self.free[slot] -= len(p.devices)
        else:
            device = p.devices[0]
            partial = self.partial[slot]
            opens = free_mask >> device & 1
            left, remainder = partial.get(device, MILLI * opens) - p.milli, 0
            if spec.gpu_memory_mib:
                left, remainder = self._exactly(slot, p, spec, left, 1)
            if left < 0 or len(p.devices) != 1 or self.free[slot] < opens:
                self._derive(slot, self.facts[slot])
                return
            if opens:
                self.free_mask[slot] = free_mask ^ (1 << device)
                self.free[slot] -= 1
            self.partial[slot] = {d: m for d, m in partial.items() if d != device}
            if left:
                self.partial[slot][device] = left
            if spec.gpu_memory_mib:
                self._keep_remainder(slot, device, remainder)
        self._count(slot, p, spec, 1)

    def give_back(self, slot: int, p: PodPlacement, spec: PodSetSpec) -> None:
        if slot in self.irregular:
            self._derive(slot, self.facts[slot])
            return
        if p.milli == MILLI:
            self.free_mask[slot] |= mask_of(p.devices)
            self.free[slot] += len(p.devices)
        else:
            device = p.devices[0]
            left = self.partial[slot].get(device, 0) + p.milli
            if spec.gpu_memory_mib:
                left, remainder = self._exactly(slot, p, spec, left, -1)
                self._keep_remainder(slot, device, remainder)
            self.partial[slot] = {d: m for d, m in self.partial[slot].items() if d != device}
            if left == MILLI:
                self.free_mask[slot] |= 1 << device
                self.free[slot] += 1
            elif left:
                self.partial[slot][device] = left
        self._count(slot, p, spec, -1)

    def _exactly(
        self, slot: int, p: PodPlacement, spec: PodSetSpec, left: int, sign: int
    ) -> tuple[int, int]:
        """Return what is left of a device after taking (+1) or releasing (-1) a share by memory.

        The result is whole GPU-milli and the remainder. `left`: the GPU-milli left before the
        part that the pod takes beyond its own GPU-milli is counted.
        """
        node = self.facts[slot]
        assert node is not None
        before = self.remainders.get(slot, {}).get(p.devices[0], 0)
        more = before - sign * beyond_milli(node, p, spec)
        carry, remainder = divmod(more, max(node.gpu_memory_mib, 1))
        return left + carry, remainder

    def _keep_remainder(self, slot: int, device: int, remainder: int) -> None:
        known = self.remainders.get(slot, {})
        if known.get(device, 0) != remainder:
            others = {d: r for d, r in known.items() if d != device}
            self._set_remainders(slot, {**others, device: remainder} if remainder else others)

    def _set_remainders(self, slot: int, remainders: dict[int, int]) -> None:
        if remainders:
            self.remainders[slot] = remainders
        else:
            self.remainders.pop(slot, None)

    def _count(self, slot: int, p: PodPlacement, spec: PodSetSpec, sign: int) -> None:
        """Book (+1) or release (-1) everything of a pod except its devices."""
        held = p.milli * len(p.devices)
        milli = sign * held
        self.allocated[slot] += milli
        if held < self.total[slot] * MILLI:
            self.small[slot] += milli
        node = self.facts[slot]
        assert node is not None
        pool = self._totals[node.gpu_model]
        pool.allocated += milli
        if not self.usable[slot]:
            self.available[slot] += milli
            pool.available += milli
        self.cpu[slot] -= sign * spec.cpu_milli
        self.memory[slot] -= sign * spec.memory_mib
        self.pods[slot] -= sign
        asked = extended_of(node, p, spec) if self.rails else spec.extended
        if asked:
            extended = dict(self.extended[slot])
            for name, amount in asked.items():
                extended[name] = extended.get(name, 0) - sign * amount
            self.extended[slot] = extended
        if spec.nics:
            if sign > 0:
                self.nic_mask[slot] &= ~mask_of(p.nics)
            else:
                self.nic_mask[slot] |= mask_of(p.nics) & self.nic_healthy[slot]
        if self._index is not None:
            self._index.refresh(self, slot)


# The columns that a copy of the state must copy.
COLUMNS = (
    "slot_of",
    "names",
    "facts",
    "usable",
    "total",
    "free_mask",
    "free",
    "partial",
    "remainders",
    "cpu",
    "memory",
    "pods",
    "extended",
    "nic_mask",
    "nic_healthy",
    "tables",
    "rails",
    "allocated",
    "available",
    "small",
    "irregular",
)
