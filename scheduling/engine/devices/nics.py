"""Which NICs of a node a pod gets: those nearest to its GPUs."""

from functools import lru_cache

from scheduling.engine.devices.tables import numa_by_index
from scheduling.engine.types import Node


class NicTable:
    """Nearest NICs for one layout of GPUs and NICs; answers are kept, so a repeat is a look-up.

    Nearest: same PCIe switch, then same NUMA node, then the lowest index. Kubernetes names no
    PCIe switches, so GPUs and NICs are taken to be spread over them in index order, as in the
    reference designs of GPU servers (NIC i beside GPU i where there are 8 of each).
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
        """NICs nearest to the GPUs `devices` among the mask `usable` (healthy ones), ascending.

        `count` == 0: NICs are not counted, each GPU shares its nearest one. `count` > 0: that
        many NICs held by this pod alone, at first one per GPU; `usable` then holds only those
        that no other pod has, and None says that they are too few.
        """
        return self._pair(devices, usable, count)

    def _search(self, devices: tuple[int, ...], usable: int, count: int) -> tuple[int, ...] | None:
        paths = [(gpu, nic) for _, gpu, nic in self._paths if gpu in devices and usable >> nic & 1]
        if not count:
            nearest = dict(reversed(paths))  # the nearest comes last and stays
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
    """The NIC table of a node, shared by all nodes of the same layout."""
    return _nic_table(numa_by_index(node.devices), numa_by_index(node.nics))
