"""Pods that were evicted and are not gone yet.

Their places are free for new bookings at once, usually for their preemptor. But on the node they
still hold these places until they are gone; a job that is placed there starts only then.
"""

from collections.abc import Iterable

from scheduling.engine.cluster.cluster import ClusterState, PodKey
from scheduling.engine.cluster.columns import Booking
from scheduling.engine.placement.fit import amounts_fit
from scheduling.engine.types import JobRequest, PodPlacement


class LeavingPods:
    """What leaving pods still hold, by node."""

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
        """Whether any leaving pod is still on the node."""
        return node in self._on

    def in_the_way(
        self, cluster: ClusterState, job: JobRequest, places: Iterable[PodPlacement]
    ) -> set[PodKey]:
        """Return the leaving pods that must be gone before the job can run on its booked places.

        They hold a device or a NIC of these places, or the node has too little of anything else for
        both.
        """
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
    """Whether the pod has its NICs to itself."""
    return booking.pod_set.nics > 0
