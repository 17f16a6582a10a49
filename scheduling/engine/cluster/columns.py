"""What is free on every node, in flat columns: derived from the bookings, kept by deltas."""

from array import array
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from scheduling.engine.cluster.facts import bounded
from scheduling.engine.cluster.index import CapacityIndex, index_of
from scheduling.engine.types import MILLI, Nic, Node, PodPlacement, PodRules, PodSetSpec

PodKey = tuple[str, int, int]  # (job id, pod set, ordinal)


class Booking(NamedTuple):
    """A pod that holds its place, and the pod set it came from."""

    placement: PodPlacement
    pod_set: PodSetSpec


class OtherPod(NamedTuple):
    """What a pod that is not Kant's takes from its node; its devices are unknown."""

    node: str
    gpus: int
    cpu_milli: int
    memory_mib: int
    extended: Mapping[str, int]
    rules: PodRules | None = None


class PoolTotals:
    """GPU-milli of one GPU model; `free` is what is available and not allocated."""

    __slots__ = ("allocated", "available", "capacity")

    def __init__(self, capacity: int = 0, available: int = 0, allocated: int = 0) -> None:
        self.capacity = capacity
        self.available = available
        self.allocated = allocated


@lru_cache(maxsize=1 << 16)
def mask_of(indices: tuple[int, ...]) -> int:
    """The bit set of these indices."""
    mask = 0
    for index in indices:
        mask |= 1 << index
    return mask


@lru_cache(maxsize=1024)
def advertised(nics: tuple[Nic, ...]) -> tuple[tuple[str, int], ...]:
    """Which NICs are of which extended resource, as bit sets; () where pods ask for none."""
    masks: dict[str, int] = {}
    for nic in nics:
        if nic.resource:
            masks[nic.resource] = masks.get(nic.resource, 0) | 1 << nic.index
    return tuple(masks.items())


def extended_of(node: Node, p: PodPlacement, spec: PodSetSpec) -> Mapping[str, int]:
    """Extended resources that a pod asks for at its place: its own, and those of the NICs that it
    got for itself; where it names these too, the larger amount is both."""
    if not (spec.nics and p.nics):
        return spec.extended
    amounts, mask = dict(spec.extended), mask_of(p.nics)
    for resource, nics in advertised(node.nics):
        taken = (nics & mask).bit_count()
        if taken:
            amounts[resource] = max(taken, amounts.get(resource, 0))
    return amounts


def beyond_milli(node: Node, p: PodPlacement, spec: PodSetSpec) -> int:
    """What a pod takes of its device beyond `milli` thousandths of it, in units of 1/(1000 x MiB of
    the device); 0 unless it asks for a share by memory that is no whole number of thousandths."""
    memory = node.gpu_memory_mib
    if spec.gpu_memory_mib > memory:
        return 0
    return max(MILLI * spec.gpu_memory_mib - p.milli * memory, 0)


class Columns:
    """Slots and columns of a cluster, and who is booked where.

    Columns, by slot (a node keeps its slot while its name is known):
    `facts` the node, None when it is gone; `usable` whether new pods may go there at all;
    `total` installed GPUs; `free_mask` devices that are healthy and hold nothing; `free` how many
    of them pods may still get (pods of others take an unknown device each, as does each GPU out of
    service that nothing names); `partial` what is left, in whole GPU-milli, of healthy devices that
    are partly used; `remainders` what is left of them beside that, where it is not nothing, in
    units of 1/(1000 x MiB of the device): shares by memory are exact; `cpu`, `memory`, `pods`,
    `extended` what is left; `nic_mask` healthy NICs nobody holds alone, `nic_healthy` all healthy
    ones; `allocated`, `available` GPU-milli; `small` GPU-milli of pods of less than the node;
    `tables` the node's device tables, kept here by placement; `rails` of the nodes that have any,
    which NICs are of which extended resource, as bit sets.
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
        # Slots where what is booked contradicts the devices (a bad or missing device, one booked
        # beyond its size, pods of others or unnamed faults on more devices than nobody has booked):
        # what is given back there is derived again from the bookings.
        self.irregular: set[int] = set()
        self._totals: dict[str, PoolTotals] = {}
        self._jobs: dict[str, dict[tuple[int, int], Booking]] = {}
        self._on_node: dict[str, tuple[PodKey, ...]] = {}
        self._others: dict[str, OtherPod] = {}
        self._others_on: dict[str, tuple[str, ...]] = {}
        self._index: CapacityIndex | None = None

    @property
    def index(self) -> CapacityIndex:
        """The free-capacity index; built anew when nodes come or go, else kept by each change."""
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
        """Set every column of a slot from the facts and from all that is booked there."""
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
        # A fault that nothing names is taken to be on a GPU that nobody uses, while there is one.
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
        """What is left of the device of a share by memory that is taken (+1) or given back (-1):
        whole GPU-milli, `left` of them but for what the pod takes beyond its own, and the
        remainder."""
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
        """Book (+1) or give back (-1) everything of a pod that is a plain amount."""
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


# What a copy of the state needs its own of.
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
