"""ClusterState: the one mutable model of capacity and of what is placed where.

Facts about a node sit in flat columns, one slot a node, so that booking or releasing a pod
changes a handful of integers and a what-if `copy()` is a copy of flat lists. The live loop never
copies the cluster (paper 3.4.3): it applies deltas.
"""

from array import array
from collections.abc import Iterable, Mapping
from copy import copy
from typing import NamedTuple

from scheduling.engine.constraints import evicting_taint
from scheduling.engine.facts import sane
from scheduling.engine.index import CapacityIndex
from scheduling.engine.types import (
    DEFAULT_LEVELS,
    MILLI,
    JobRequest,
    Node,
    PodPlacement,
    PodSet,
)

PodKey = tuple[str, int, int]  # (job id, pod set, ordinal)


class Booking(NamedTuple):
    """A pod that holds its place, and the pod set it came from."""

    placement: PodPlacement
    pod_set: PodSet


class OtherPod(NamedTuple):
    """What a pod that is not Kant's takes from its node; its devices are unknown."""

    node: str
    gpus: int
    cpu_milli: int
    memory_mib: int


class PoolTotals:
    """GPU-milli of one GPU model; `free` is what is available and not allocated."""

    __slots__ = ("allocated", "available", "capacity")

    def __init__(self, capacity: int = 0, available: int = 0, allocated: int = 0) -> None:
        self.capacity = capacity
        self.available = available
        self.allocated = allocated


def mask_of(indices: Iterable[int]) -> int:
    """The bit set of these indices."""
    mask = 0
    for index in indices:
        mask |= 1 << index
    return mask


class ClusterState:
    """Nodes, what is free on them, and every placement, changed by small deltas only.

    Columns, by slot (a node keeps its slot while its name is known):
    `facts` the node, None when it is gone; `usable` whether new pods may go there at all;
    `total` installed GPUs; `free_mask` devices that are healthy and hold nothing; `free` how many
    of them pods may still get (pods of others take an unknown device each); `partial` what is
    left, in GPU-milli, of healthy devices that are partly used; `cpu`, `memory`, `pods`,
    `extended` what is left; `nic_mask` healthy NICs nobody holds alone, `nic_healthy` all healthy
    ones; `allocated`, `available` GPU-milli; `small` GPU-milli of pods of less than the node;
    `tables` the node's device tables, kept here by
    placement.
    """

    def __init__(self, levels: tuple[str, ...] = DEFAULT_LEVELS) -> None:
        self.levels = levels
        self.version = 0
        self._clock = 0
        self.slot_of: dict[str, int] = {}
        self.names: list[str] = []
        self.facts: list[Node | None] = []
        self.usable: list[bool] = []
        self.total = array("q")
        self.free_mask = array("q")
        self.free = array("q")
        self.partial: list[dict[int, int]] = []
        self.cpu = array("q")
        self.memory = array("q")
        self.pods = array("q")
        self.extended: list[Mapping[str, int]] = []
        self.nic_mask = array("q")
        self.nic_healthy = array("q")
        self.tables: list[object] = []
        self.allocated = array("q")
        self.available = array("q")
        self.small = array("q")
        # Slots where what is booked contradicts the devices (a bad or missing device, one booked
        # beyond its size, more pods of others than devices): what is given back there is derived
        # again from the bookings.
        self.irregular: set[int] = set()
        self._totals: dict[str, PoolTotals] = {}
        self._jobs: dict[str, dict[tuple[int, int], Booking]] = {}
        self._own_jobs: set[str] = set()
        self._on_node: dict[str, tuple[PodKey, ...]] = {}
        self._others: dict[str, OtherPod] = {}
        self._others_on: dict[str, tuple[str, ...]] = {}
        self._bad: set[PodKey] = set()
        # Shapes found infeasible: the version at which they were, the pod set that did not fit.
        self.infeasible: dict[object, tuple[int, int]] = {}
        self._index: CapacityIndex | None = None

    # --- nodes ------------------------------------------------------------------------------
    def upsert_node(self, node: Node) -> tuple[PodKey, ...]:
        """Add a node or replace its facts; returns the pods that newly lost node or device."""
        node = sane(node)
        slot = self.slot_of.get(node.name)
        if slot is None:
            slot = self._add_slot(node.name)
        before = self.facts[slot]
        if before == node:
            return ()
        if before is None or place_in_layout(before) != place_in_layout(node):
            self._index = None
        self._derive(slot, node)
        if self._index is not None:
            self._index.facts_changed(self, slot)
        self.tick()
        return self._newly_bad(node)

    def remove_node(self, name: str) -> tuple[PodKey, ...]:
        """Forget a node; returns the pods that were on it and were not reported before."""
        slot = self.slot_of.get(name)
        if slot is None or self.facts[slot] is None:
            return ()
        self._derive(slot, None)
        self.tick()
        lost = tuple(key for key in self._on_node.get(name, ()) if key not in self._bad)
        self._bad.update(lost)
        return lost

    def upsert_other_pod(
        self, uid: str, node: str, gpus: int, cpu_milli: int, memory_mib: int
    ) -> None:
        """Count what a pod of somebody else takes; a second call replaces the first."""
        known = self._others.get(uid)
        pod = OtherPod(node, gpus, cpu_milli, memory_mib)
        if known == pod:
            return
        if known is not None:
            self.remove_other_pod(uid)
        self._others[uid] = pod
        self._others_on[node] = (*self._others_on.get(node, ()), uid)
        self._derive_again(node)

    def remove_other_pod(self, uid: str) -> None:
        pod = self._others.pop(uid, None)
        if pod is None:
            return
        left = tuple(other for other in self._others_on[pod.node] if other != uid)
        if left:
            self._others_on[pod.node] = left
        else:
            del self._others_on[pod.node]
        self._derive_again(pod.node)
        self.tick()

    # --- placements -------------------------------------------------------------------------
    def book(self, job: JobRequest, p: PodPlacement) -> None:
        """Note that a pod holds its place; a known pod moves to the new place."""
        self.restore(job.id, p, job.pod_sets[p.pod_set])

    def restore(self, job_id: str, p: PodPlacement, pod_set: PodSet) -> None:
        """`book` for a job of which only the pod's own set is at hand."""
        if (p.pod_set, p.ordinal) in self._jobs.get(job_id, ()):
            self.release(job_id, p.pod_set, p.ordinal)
        self.register(job_id, p, pod_set)
        slot = self.slot_of.get(p.node)
        if slot is not None and self.facts[slot] is not None:
            self.take(slot, p, pod_set)

    def register(self, job_id: str, p: PodPlacement, pod_set: PodSet) -> None:
        """Note who holds what; the columns are changed by `take`."""
        held = self._jobs.get(job_id)
        if held is None:
            held = self._jobs[job_id] = {}
            self._own_jobs.add(job_id)
        elif job_id not in self._own_jobs:
            held = self._jobs[job_id] = dict(held)
            self._own_jobs.add(job_id)
        held[p.pod_set, p.ordinal] = Booking(p, pod_set)
        key = (job_id, p.pod_set, p.ordinal)
        others = self._on_node.get(p.node)
        self._on_node[p.node] = (key,) if others is None else (*others, key)

    def release(self, job_id: str, pod_set: int, ordinal: int) -> None:
        """Give a pod's place back; an unknown pod is nothing to give back."""
        held = self._jobs.get(job_id)
        if held is None or (pod_set, ordinal) not in held:
            return
        if job_id not in self._own_jobs:
            held = self._jobs[job_id] = dict(held)
            self._own_jobs.add(job_id)
        p, spec = held.pop((pod_set, ordinal))
        if not held:
            del self._jobs[job_id]
            self._own_jobs.discard(job_id)
        key = (job_id, pod_set, ordinal)
        left = tuple(other for other in self._on_node[p.node] if other != key)
        if left:
            self._on_node[p.node] = left
        else:
            del self._on_node[p.node]
        self._bad.discard(key)
        slot = self.slot_of.get(p.node)
        if slot is not None and self.facts[slot] is not None:
            self.give_back(slot, p, spec)
        self.tick()

    def release_job(self, job_id: str) -> None:
        for pod_set, ordinal in tuple(self._jobs.get(job_id, ())):
            self.release(job_id, pod_set, ordinal)

    def placements_of(self, job_id: str) -> tuple[PodPlacement, ...]:
        """The places a job holds, by pod set and ordinal."""
        held = self._jobs.get(job_id)
        if not held:
            return ()
        return tuple(held[where].placement for where in sorted(held))

    def booking(self, key: PodKey) -> Booking | None:
        return self._jobs.get(key[0], {}).get((key[1], key[2]))

    def pods_on(self, node: str) -> tuple[PodKey, ...]:
        """Kant's pods on a node, sorted."""
        return tuple(sorted(self._on_node.get(node, ())))

    def held_by(self, job_id: str) -> Mapping[tuple[int, int], Booking]:
        """(pod set, ordinal) -> booking of what a job holds; not to be changed by the caller."""
        return self._jobs.get(job_id, {})

    # --- totals -----------------------------------------------------------------------------
    def gpu_models(self) -> tuple[str, ...]:
        return tuple(sorted(model for model, pool in self._totals.items() if pool.capacity))

    def capacity_milli(self, model: str) -> int:
        """GPU-milli installed in the pool."""
        return self._totals[model].capacity if model in self._totals else 0

    def available_milli(self, model: str) -> int:
        """GPU-milli of healthy schedulable nodes, and what is allocated elsewhere (metrics.md)."""
        return self._totals[model].available if model in self._totals else 0

    def allocated_milli(self, model: str) -> int:
        return self._totals[model].allocated if model in self._totals else 0

    def free_milli(self, model: str) -> int:
        """GPU-milli that are available and not allocated."""
        pool = self._totals.get(model)
        return pool.available - pool.allocated if pool is not None else 0

    @property
    def index(self) -> CapacityIndex:
        """The free-capacity index; built anew when nodes appeared, else kept by every change."""
        if self._index is None:
            self._index = CapacityIndex(self)
        return self._index

    def node(self, name: str) -> Node | None:
        """The facts of a node as the engine uses them, `problems` included; None when unknown."""
        slot = self.slot_of.get(name)
        return None if slot is None else self.facts[slot]

    def topology_problems(self) -> Mapping[str, str]:
        """By node name, what contradicts another node's topology labels."""
        return self.index.problems

    def tick(self) -> None:
        """More may be possible than before; versions are never used twice."""
        self._clock += 1
        self.version = self._clock

    def copy(self) -> "ClusterState":
        """An independent what-if; facts and bookings are shared until one side changes them."""
        twin = ClusterState.__new__(ClusterState)
        twin.__dict__.update(self.__dict__)
        for column in COLUMNS:
            setattr(twin, column, copy(getattr(self, column)))
        twin._totals = {
            model: PoolTotals(pool.capacity, pool.available, pool.allocated)
            for model, pool in self._totals.items()
        }
        self._own_jobs = set()
        twin._own_jobs = set()
        if self._index is not None:
            twin._index = self._index.copy()
        return twin

    # --- columns ----------------------------------------------------------------------------
    def _add_slot(self, name: str) -> int:
        slot = len(self.names)
        self.slot_of[name] = slot
        self.names.append(name)
        self.facts.append(None)
        self.usable.append(False)
        self.partial.append({})
        self.extended.append({})
        for column in (self.total, self.free_mask, self.free, self.cpu, self.memory, self.pods):
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
        self.facts[slot] = node
        self.irregular.discard(slot)
        if node is None:
            self.usable[slot] = False
            self.total[slot] = self.free[slot] = self.free_mask[slot] = 0
            self.allocated[slot] = self.available[slot] = self.small[slot] = 0
            self.partial[slot] = {}
            if self._index is not None:
                self._index.refresh(self, slot)
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
        holds: list[int] = []
        for key in self._on_node.get(node.name, ()):
            p = self._jobs[key[0]][key[1], key[2]].placement
            holds.append(p.milli * len(p.devices))
            for device in p.devices:
                used[device] = used.get(device, 0) + p.milli
        healthy = mask_of(d.index for d in node.devices if d.healthy)
        installed = mask_of(d.index for d in node.devices)
        whole = installed.bit_count() * MILLI
        free_mask, partial, allocated, on_bad = healthy, dict[int, int](), 0, 0
        for device, milli in used.items():
            free_mask &= ~(1 << device)
            if not healthy >> device & 1:
                self.irregular.add(slot)
                if installed >> device & 1:
                    on_bad += min(milli, MILLI)
                continue
            allocated += min(milli, MILLI)
            if milli < MILLI:
                partial[device] = MILLI - milli
            elif milli > MILLI:
                self.irregular.add(slot)
        others = sum(self._others[uid].gpus for uid in self._others_on.get(node.name, ()))
        if others > free_mask.bit_count():
            self.irregular.add(slot)
            others = free_mask.bit_count()
        allocated += on_bad + others * MILLI
        self.usable[slot] = node.schedulable
        self.total[slot] = installed.bit_count()
        self.small[slot] = sum(milli for milli in holds if milli < whole)
        self.free_mask[slot] = free_mask
        self.free[slot] = free_mask.bit_count() - others
        self.partial[slot] = partial
        self.allocated[slot] = allocated
        self.available[slot] = (
            healthy.bit_count() * MILLI + on_bad if node.schedulable else allocated
        )

    def _derive_rest(self, slot: int, node: Node) -> None:
        cpu, memory, pods = node.cpu_milli, node.memory_mib, node.max_pods
        extended = dict(node.extended)
        nics = self.nic_healthy[slot] = mask_of(n.index for n in node.nics if n.healthy)
        for key in self._on_node.get(node.name, ()):
            p, spec = self._jobs[key[0]][key[1], key[2]]
            cpu -= spec.cpu_milli
            memory -= spec.memory_mib
            pods -= 1
            if spec.nics:
                nics &= ~mask_of(p.nics)
            for name, amount in spec.extended.items():
                extended[name] = extended.get(name, 0) - amount
        for uid in self._others_on.get(node.name, ()):
            other = self._others[uid]
            cpu -= other.cpu_milli
            memory -= other.memory_mib
            pods -= 1
        self.cpu[slot], self.memory[slot], self.pods[slot] = cpu, memory, pods
        self.extended[slot] = extended
        self.nic_mask[slot] = nics

    def take(self, slot: int, p: PodPlacement, spec: PodSet) -> None:
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
            left = partial.get(device, MILLI * opens) - p.milli
            if left < 0 or len(p.devices) != 1 or self.free[slot] < opens:
                self._derive(slot, self.facts[slot])
                return
            if opens:
                self.free_mask[slot] = free_mask ^ (1 << device)
                self.free[slot] -= 1
            self.partial[slot] = {d: m for d, m in partial.items() if d != device}
            if left:
                self.partial[slot][device] = left
        self._count(slot, p, spec, 1)

    def give_back(self, slot: int, p: PodPlacement, spec: PodSet) -> None:
        if slot in self.irregular:
            self._derive(slot, self.facts[slot])
            return
        if p.milli == MILLI:
            self.free_mask[slot] |= mask_of(p.devices)
            self.free[slot] += len(p.devices)
        else:
            device = p.devices[0]
            left = self.partial[slot].get(device, 0) + p.milli
            self.partial[slot] = {d: m for d, m in self.partial[slot].items() if d != device}
            if left == MILLI:
                self.free_mask[slot] |= 1 << device
                self.free[slot] += 1
            else:
                self.partial[slot][device] = left
        self._count(slot, p, spec, -1)

    def _count(self, slot: int, p: PodPlacement, spec: PodSet, sign: int) -> None:
        """Book (+1) or give back (-1) everything of a pod that is a plain amount."""
        milli = sign * p.milli * len(p.devices)
        self.allocated[slot] += milli
        if p.milli * len(p.devices) < self.total[slot] * MILLI:
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
        if spec.extended:
            extended = dict(self.extended[slot])
            for name, amount in spec.extended.items():
                extended[name] = extended.get(name, 0) - sign * amount
            self.extended[slot] = extended
        if spec.nics:
            if sign > 0:
                self.nic_mask[slot] &= ~mask_of(p.nics)
            else:
                self.nic_mask[slot] |= mask_of(p.nics) & self.nic_healthy[slot]
        if self._index is not None:
            self._index.refresh(self, slot)

    def _newly_bad(self, node: Node) -> tuple[PodKey, ...]:
        """Pods on the node whose device went bad or that an evicting taint drives away."""
        healthy = mask_of(d.index for d in node.devices if d.healthy)
        newly: list[PodKey] = []
        for key in self._on_node.get(node.name, ()):
            p, spec = self._jobs[key[0]][key[1], key[2]]
            lost = any(not healthy >> device & 1 for device in p.devices)
            if lost or evicting_taint(node.taints, spec.tolerations) is not None:
                if key not in self._bad:
                    newly.append(key)
                    self._bad.add(key)
            else:
                self._bad.discard(key)
        return tuple(newly)


def place_in_layout(node: Node) -> tuple[object, ...]:
    """The facts that the order and the domains of the index come from."""
    devices = tuple((device.index, device.memory_mib) for device in node.devices)
    return node.gpu_model, node.topology, node.hyper_node, node.zone, devices


COLUMNS = (
    "slot_of",
    "names",
    "facts",
    "usable",
    "total",
    "free_mask",
    "free",
    "partial",
    "cpu",
    "memory",
    "pods",
    "extended",
    "nic_mask",
    "nic_healthy",
    "tables",
    "allocated",
    "available",
    "small",
    "irregular",
    "infeasible",
    "_jobs",
    "_on_node",
    "_others",
    "_others_on",
    "_bad",
)
