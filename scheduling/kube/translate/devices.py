"""The GPUs and NICs of a node, made from their numbers.

They are kept, so that thousands of equal nodes share one tuple.
"""

from functools import lru_cache

from scheduling.engine.types import Device, Nic


@lru_cache(maxsize=4096)
def devices_of(
    total: int, bad: tuple[int, ...], memory: int, ids: tuple[str, ...]
) -> tuple[Device, ...]:
    """`total` GPUs of `memory` MiB each, half of them at each socket."""
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
    """`total` NICs, half of them at each socket of a node with so many GPUs. `counts`: of which
    extended resource so many of them are, in this order; () = of none."""
    halves = sockets(gpus)
    resources = [name for name, count in counts for _ in range(count)] or [""] * total
    return tuple(
        Nic(i, numa=i * halves // total, healthy=i not in bad, resource=resource)
        for i, resource in enumerate(resources)
    )


def sockets(gpus: int) -> int:
    """CPU sockets of a node with so many GPUs."""
    # Servers with four GPUs or more have two sockets, half of the GPUs at each (HGX, DGX, PCIe).
    return 2 if gpus >= 4 else 1
