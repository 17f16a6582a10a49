"""Whether pods that were evicted on a statement could stay where they are after all."""

from collections.abc import Iterable

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.columns import Booking, beyond_milli
from scheduling.engine.placement.fit import amounts_fit, free_nics
from scheduling.engine.types import MILLI, PodSetSpec


def can_return(state: ClusterState, bookings: Iterable[Booking]) -> bool:
    """Return whether all these places are still free beside everything that is booked now."""
    masks: dict[int, int] = {}
    shares: dict[tuple[int, int], int] = {}
    beyond: dict[tuple[int, int], int] = {}
    nics: dict[int, int] = {}
    pods: dict[int, list[PodSetSpec]] = {}
    for p, spec in bookings:
        slot = state.slot_of.get(p.node)
        node = None if slot is None else state.facts[slot]
        if slot is None or node is None:
            return False
        if p.milli == MILLI:
            for device in p.devices:
                masks[slot] = masks.get(slot, 0) | 1 << device
        else:
            at = (slot, p.devices[0])
            shares[at] = shares.get(at, 0) + p.milli
            if spec.gpu_memory_mib:
                beyond[at] = beyond.get(at, 0) + beyond_milli(node, p, spec)
        if spec.nics:
            for nic in p.nics:
                nics[slot] = nics.get(slot, 0) | 1 << nic
        pods.setdefault(slot, []).append(spec)
    opened = {slot: mask.bit_count() for slot, mask in masks.items()}
    for (slot, device), milli in shares.items():
        if state.free_mask[slot] >> device & 1:
            opened[slot] = opened.get(slot, 0) + 1
        elif state.partial[slot].get(device, 0) < milli:
            return False
        more = beyond.get((slot, device), 0)
        if more and not state.has_left(state.names[slot], device, milli, more):
            return False
    return (
        all(state.free_mask[slot] & mask == mask for slot, mask in masks.items())
        and all(state.free[slot] >= n for slot, n in opened.items())
        and all(state.nic_mask[slot] & mask == mask for slot, mask in nics.items())
        and all(free_nics(state, slot).bit_count() >= m.bit_count() for slot, m in nics.items())
        and all(amounts_fit(state, slot, specs) for slot, specs in pods.items())
    )
