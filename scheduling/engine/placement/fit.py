"""Whether a pod fits on a node as it is now, and which devices and NICs it then gets."""

from collections.abc import Sequence
from functools import lru_cache

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.devices.nics import NicTable, nics_for
from scheduling.engine.devices.tables import DeviceTable, FirstFree, table_for
from scheduling.engine.types import BEYOND, MILLI, PodSetSpec


def share_milli(device_memory_mib: int, pod_set: PodSetSpec) -> int:
    """Return the GPU-milli that a pod is charged for each device of this memory; 0 = too small.

    A share by memory is charged its whole thousandths, at least one, so the pods on a device are
    never charged more than 1000 together. Whether it fits is up to `share_units`.
    """
    if not pod_set.gpu_memory_mib:
        return pod_set.gpu_milli
    if device_memory_mib < pod_set.gpu_memory_mib:
        return 0
    return max(pod_set.gpu_memory_mib * MILLI // device_memory_mib, 1)


def share_beyond(device_memory_mib: int, pod_set: PodSetSpec) -> int:
    """Return how much more than `share_milli` of a device a pod holds; 0 unless by memory.

    The unit is a billionth of a thousandth of a GPU, rounded up.
    """
    if pod_set.gpu_memory_mib * MILLI <= device_memory_mib:
        return 0
    exact = pod_set.gpu_memory_mib * MILLI * BEYOND
    return -(-exact // device_memory_mib) - exact // BEYOND // device_memory_mib * BEYOND


def share_units(device_memory_mib: int, pod_set: PodSetSpec) -> int:
    """Return exactly what a pod takes of each device, in units of 1/(1000 x MiB of the device).

    A share by memory is at least 1/1000 of the device.
    """
    if not pod_set.gpu_memory_mib:
        return pod_set.gpu_milli * device_memory_mib
    return max(MILLI * pod_set.gpu_memory_mib, device_memory_mib)


def units_left(state: ClusterState, slot: int) -> list[tuple[int, int]]:
    """Return (units left, device) for each partly used device; units as in `share_units`."""
    node = state.facts[slot]
    assert node is not None
    memory, remainders = node.gpu_memory_mib, state.remainders.get(slot, {})
    return [(m * memory + remainders.get(d, 0), d) for d, m in state.partial[slot].items()]


def free_on(state: ClusterState, slot: int) -> int:
    """Return what is free on all GPUs of a node, in billionths of a GPU-milli, rounded down."""
    node = state.facts[slot]
    whole = state.free[slot] * MILLI + sum(state.partial[slot].values())
    over = sum(state.remainders.get(slot, {}).values())
    return whole * BEYOND + (over * BEYOND // node.gpu_memory_mib if node and over else 0)


def shares_by_memory(state: ClusterState, slot: int, pod_set: PodSetSpec) -> int:
    """Return how many pods with a share by memory fit on a node's partly used and free devices."""
    node = state.facts[slot]
    assert node is not None
    each = share_units(node.gpu_memory_mib, pod_set)
    whole = MILLI * node.gpu_memory_mib // each if each else 0
    return sum(left // each for left, _ in units_left(state, slot)) + state.free[slot] * whole


def rest_fits(state: ClusterState, slot: int, pod_set: PodSetSpec, pods: int = 1) -> bool:
    """Whether the node has CPU, memory, pod slots, extended resources and NICs for these pods."""
    if (
        state.cpu[slot] < pod_set.cpu_milli * pods
        or state.memory[slot] < pod_set.memory_mib * pods
        or state.pods[slot] < pods
    ):
        return False
    if pod_set.nics or pod_set.extended:
        return pods_of_rest(state, slot, pod_set) >= pods
    return True


def amounts_fit(state: ClusterState, slot: int, pods: Sequence[PodSetSpec]) -> bool:
    """Whether CPU, memory, pod slots and extended resources suffice for one pod of each set."""
    if (
        state.cpu[slot] < sum(s.cpu_milli for s in pods)
        or state.memory[slot] < sum(s.memory_mib for s in pods)
        or state.pods[slot] < len(pods)
    ):
        return False
    left = state.extended[slot]
    names = {name for s in pods for name in s.extended}
    return all(left.get(n, 0) >= sum(s.extended.get(n, 0) for s in pods) for n in names)


def pods_of_rest(state: ClusterState, slot: int, pod_set: PodSetSpec) -> int:
    """Return for how many pods the node's extended resources and NICs suffice."""
    room = 1 << 30
    if pod_set.nics:
        nics = free_nics(state, slot) if state.rails else state.nic_mask[slot]
        room = nics.bit_count() // pod_set.nics
    left = state.extended[slot]
    for name, amount in pod_set.extended.items():
        if amount > 0:
            room = min(room, left.get(name, 0) // amount)
    return room


def free_nics(state: ClusterState, slot: int) -> int:
    """Return the NICs that a pod may have to itself, as a bit set.

    If NICs are an extended resource, other people's pods, and pods that request it by name, hold
    some of them without saying which. They are assumed to hold the last ones.
    """
    free = state.nic_mask[slot]
    for resource, mask in state.rails.get(slot, ()):
        here = free & mask
        for _ in range(here.bit_count() - max(state.extended[slot].get(resource, 0), 0)):
            last = 1 << here.bit_length() - 1
            here ^= last
            free ^= last
    return free


def devices_on(
    state: ClusterState, slot: int, pod_set: PodSetSpec, milli: int
) -> tuple[int, ...] | None:
    """Return the device indices for one pod; None if too few are free.

    A share goes to the partly used device where it leaves the least; it opens a whole device only
    if no partly used one fits.
    """
    if not pod_set.gpus:
        return ()
    if milli < MILLI:
        if pod_set.gpu_memory_mib:
            fits = opened_by_memory(state, slot, pod_set)
        else:
            fits = [(left, device) for device, left in state.partial[slot].items() if left >= milli]
        if fits:
            return (min(fits)[1],)
    if state.free[slot] < pod_set.gpus:
        return None
    mask = tables(state, slot)[0].best(state.free_mask[slot], pod_set.gpus)
    return bits(mask)


def opened_by_memory(state: ClusterState, slot: int, pod_set: PodSetSpec) -> list[tuple[int, int]]:
    """Return (units left, device) for the partly used devices with room for a share by memory."""
    node = state.facts[slot]
    assert node is not None
    each = share_units(node.gpu_memory_mib, pod_set)
    return [(left, device) for left, device in units_left(state, slot) if left >= each]


def nics_on(
    state: ClusterState, slot: int, pod_set: PodSetSpec, devices: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the NIC indices for one pod; None if it requests more than are left."""
    node = state.facts[slot]
    assert node is not None
    if not devices or not node.nics:
        return () if not pod_set.nics else None
    if pod_set.nics:
        return tables(state, slot)[1].pair(devices, free_nics(state, slot), pod_set.nics)
    return tables(state, slot)[1].pair(devices, state.nic_healthy[slot], 0)


def tables(state: ClusterState, slot: int) -> tuple[DeviceTable | FirstFree, NicTable]:
    """Return the device table and the NIC table of a node."""
    found = state.tables[slot]
    if found is None:
        node = state.facts[slot]
        assert node is not None
        found = state.tables[slot] = (table_for(node), nics_for(node))
    return found  # type: ignore[return-value]


@lru_cache(maxsize=1 << 16)
def bits(mask: int) -> tuple[int, ...]:
    """Return the positions of the set bits, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)
