"""Make contradictory node facts usable: mistakes become warnings, never exceptions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from scheduling.engine.types import Device, Nic, Node

# Devices may be MIG slices or replicas of shared GPUs, but no kubelet runs more pods than this. No
# server has more NICs.
MAX_GPUS, MAX_NICS = 256, 16
# Amounts stay well inside 64-bit integers.
MAX_AMOUNT = 1 << 52

Part = TypeVar("Part", Device, Nic)


def sane(node: Node) -> Node:
    """Return the node with impossible facts corrected; `problems` names what was wrong."""
    problems: list[str] = []
    devices = _distinct(node.devices, "GPU", MAX_GPUS, problems)
    nics = _distinct(node.nics, "NIC", MAX_NICS, problems)
    cpu_milli = _amount("cpu_milli", node.cpu_milli, problems)
    memory_mib = _amount("memory_mib", node.memory_mib, problems)
    max_pods = _amount("max_pods", node.max_pods, problems)
    if not problems:
        return node
    return replace(
        node,
        devices=tuple(devices),
        nics=tuple(nics),
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        max_pods=max_pods,
        problems=(*node.problems, *problems),
    )


def bounded(amount: int) -> int:
    """Limit a sum of requests of other people's pods, which may be anything, to a sane range."""
    return min(max(amount, 0), MAX_AMOUNT)


def _amount(name: str, value: int, problems: list[str]) -> int:
    if 0 <= value <= MAX_AMOUNT:
        return value
    problems.append(f"{name} {value} is impossible; counted as 0")
    return 0


def _distinct(parts: Sequence[Part], noun: str, most: int, problems: list[str]) -> list[Part]:
    """Return the parts with distinct indices below `most`."""
    kept: dict[int, Part] = {}
    for part in parts:
        if not 0 <= part.index < most:
            problems.append(f"{noun} index {part.index} is not within 0-{most - 1}; ignored")
        elif part.index in kept:
            problems.append(f"{noun} index {part.index} appears twice; the second is ignored")
        else:
            kept[part.index] = part
    return list(kept.values())
