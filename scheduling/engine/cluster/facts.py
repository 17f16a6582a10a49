"""Contradictory node facts made usable: what is wrong becomes a warning, never an exception."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from scheduling.engine.types import Device, Nic, Node

# MIG slices and replicas of shared GPUs: no kubelet runs more pods than that. Of NICs no server
# has more than 16.
MAX_GPUS, MAX_NICS = 256, 16
# Amounts stay well inside 64-bit integers.
MAX_AMOUNT = 1 << 52

Part = TypeVar("Part", Device, Nic)


def sane(node: Node) -> Node:
    """The node as the engine can use it; `problems` then names what was wrong with it."""
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
    """The nearest amount that a node can have: pods of others may ask for any, and add up."""
    return min(max(amount, 0), MAX_AMOUNT)


def _amount(name: str, value: int, problems: list[str]) -> int:
    if 0 <= value <= MAX_AMOUNT:
        return value
    problems.append(f"{name} {value} is impossible; counted as 0")
    return 0


def _distinct(parts: Sequence[Part], noun: str, most: int, problems: list[str]) -> list[Part]:
    """Parts with an index of their own below `most`."""
    kept: dict[int, Part] = {}
    for part in parts:
        if not 0 <= part.index < most:
            problems.append(f"{noun} index {part.index} is not within 0-{most - 1}; ignored")
        elif part.index in kept:
            problems.append(f"{noun} index {part.index} appears twice; the second is ignored")
        else:
            kept[part.index] = part
    return list(kept.values())
