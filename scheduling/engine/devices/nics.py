"""Choose the NICs of a node for a pod: those nearest to its GPUs."""

from functools import lru_cache

from scheduling.engine.devices.tables import numa_by_index
from scheduling.engine.types import Node


class NicTable:
    """The nearest NICs for one layout of GPUs and NICs; answers are cached.

    Nearest means: same PCIe switch, then same NUMA node, then the lowest index. Kubernetes does not
    report PCIe switches, so GPUs and NICs are assumed to be spread over them in index order, as in
    the reference designs of GPU servers (with 8 of each, NIC i is next to GPU i).
    """

    def __init__(self, gpu_numa: tuple[int, ...], nic_numa: tuple[int, ...]) -> None:
        self.size = len(nic_numa)
        gpus, switches = len(gpu_numa), min(len(gpu_numa), len(nic_numa))

        def distance(gpu: int, nic: int) -> int:
            if gpu_numa[gpu] != nic_numa[nic]:
                return 2
            return int(gpu * switches // gpus != nic * switches // self.size)

        self._paths = sorted(
            (distance(gpu, nic), gpu, nic) for gpu in range(gpus) for nic in range(self.size)
        )
        self._pair = lru_cache(maxsize=4096)(self._search)

    def pair(self, devices: tuple[int, ...], usable: int, count: int = 0) -> tuple[int, ...] | None:
        """Return the NICs nearest to the GPUs `devices`, ascending; None if there are too few.

        `usable`: bit set of healthy NICs. `count` == 0: NICs are not counted; each GPU shares its
        nearest one. `count` > 0: the pod gets that many NICs to itself, first one per GPU; then
        `usable` must only contain NICs that no other pod has.
        """
        return self._pair(devices, usable, count)

    def _search(self, devices: tuple[int, ...], usable: int, count: int) -> tuple[int, ...] | None:
        paths = [(gpu, nic) for _, gpu, nic in self._paths if gpu in devices and usable >> nic & 1]
        if not count:
            nearest = dict(reversed(paths))  # the nearest comes last and wins
            return tuple(sorted(set(nearest.values())))
        if usable.bit_count() < count or not devices:
            return None
        taken: set[int] = set()
        while len(taken) < count:
            served: set[int] = set()
            for gpu, nic in paths:
                if gpu not in served and nic not in taken and len(taken) < count:
                    served.add(gpu)
                    taken.add(nic)
        return tuple(sorted(taken))


@lru_cache(maxsize=256)
def _nic_table(gpu_numa: tuple[int, ...], nic_numa: tuple[int, ...]) -> NicTable:
    return NicTable(gpu_numa, nic_numa)


def nics_for(node: Node) -> NicTable:
    """Return the NIC table of a node; nodes of the same layout share it."""
    return _nic_table(numa_by_index(node.devices), numa_by_index(node.nics))
