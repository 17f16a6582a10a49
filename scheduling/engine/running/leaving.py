"""Pods that were evicted and are not gone yet.

Their places are booked anew at once, first of all for their preemptor. Until they are gone they
still hold them on the node: who is placed there starts only then.
"""

from collections.abc import Iterable

from scheduling.engine.cluster.cluster import ClusterState, PodKey
from scheduling.engine.cluster.columns import Booking
from scheduling.engine.placement.fit import amounts_fit
from scheduling.engine.types import JobRequest, PodPlacement


class LeavingPods:
    """What pods that leave still hold, by node."""

    def __init__(self) -> None:
        self._on: dict[str, dict[PodKey, Booking]] = {}

    def add(self, key: PodKey, booking: Booking) -> None:
        self._on.setdefault(booking.placement.node, {})[key] = booking

    def remove(self, key: PodKey, booking: Booking) -> None:
        on = self._on[booking.placement.node]
        del on[key]
        if not on:
            del self._on[booking.placement.node]

    def nodes(self) -> frozenset[str]:
        return frozenset(self._on)

    def is_on(self, node: str) -> bool:
        """Whether any of them is still on the node."""
        return node in self._on

    def in_the_way(
        self, cluster: ClusterState, job: JobRequest, places: Iterable[PodPlacement]
    ) -> set[PodKey]:
        """Pods without whose end the job cannot run on these places, which are booked for it: they
        hold a device or a NIC of them, or the node has too little of all else for both."""
        found: set[PodKey] = set()
        for p in places if self._on else ():
            on = self._on.get(p.node)
            if on is None:
                continue
            for device in p.devices:
                on_it = {key: b for key, b in on.items() if device in b.placement.devices}
                wanted = sum(b.placement.milli for b in on_it.values())
                beyond = sum(cluster.beyond_milli(b) for b in on_it.values())
                if not cluster.has_left(p.node, device, wanted, beyond):
                    found.update(on_it)
            if job.pod_sets[p.pod_set].nics:
                nics = set(p.nics)
                found |= {key for key, b in on.items() if _owns(b) and nics & set(b.placement.nics)}
            if not amounts_fit(cluster, cluster.slot_of[p.node], [b.pod_set for b in on.values()]):
                found.update(on)
        return found


def _owns(booking: Booking) -> bool:
    """Whether the pod has its NICs for itself."""
    return booking.pod_set.nics > 0
