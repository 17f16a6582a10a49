"""The GPUs and NICs of a node, made from their numbers.

The tuples are cached, so that thousands of equal nodes share one.
"""

from functools import lru_cache

from scheduling.engine.types import Device, Nic


@lru_cache(maxsize=4096)
def devices_of(
    total: int, bad: tuple[int, ...], memory: int, ids: tuple[str, ...]
) -> tuple[Device, ...]:
    """Return `total` GPUs of `memory` MiB each, spread evenly over the sockets."""
    return tuple(
        Device(
            index=i,
            id=ids[i] if ids else "",
            numa=i * sockets(total) // total,
            healthy=i not in bad,
            memory_mib=memory,
        )
        for i in range(total)
    )


@lru_cache(maxsize=1024)
def nics_of(
    total: int, bad: tuple[int, ...], gpus: int, counts: tuple[tuple[str, int], ...] = ()
) -> tuple[Nic, ...]:
    """Return `total` NICs, spread evenly over the sockets of a node with `gpus` GPUs.

    `counts`: how many of them belong to which extended resource, in this order; () = to none.
    """
    halves = sockets(gpus)
    resources = [name for name, count in counts for _ in range(count)] or [""] * total
    return tuple(
        Nic(i, numa=i * halves // total, healthy=i not in bad, resource=resource)
        for i, resource in enumerate(resources)
    )


def sockets(gpus: int) -> int:
    """Return the number of CPU sockets of a node with this many GPUs."""
    # Servers with four or more GPUs have two sockets with half of the GPUs each (HGX, DGX, PCIe).
    return 2 if gpus >= 4 else 1
