"""Which amount of a pod is more than any node has."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from scheduling.engine.types import Node, PodSetSpec
from scheduling.engine.verdict import AMOUNT_WORDS


class Excess(NamedTuple):
    """A resource, in words too, of which a pod asks for more than the most that a node has."""

    resource: str
    words: str
    asked: int
    most: int

    @property
    def left(self) -> str:
        return f"at most {self.most}" if self.most else "none"

    @property
    def evidence(self) -> dict[str, int | str]:
        return {
            "resource": self.resource,
            "asked_per_pod": self.asked,
            "most_on_a_node": self.most,
        }

    @property
    def remedy(self) -> str:
        if not self.most:
            return f"ask for no {self.words}"
        return f"ask for at most {self.most} {self.words} per pod"


def excess_of(pod_set: PodSetSpec, nodes: Sequence[Node]) -> Excess | None:
    """The first amount beside the GPUs that none of these nodes has for one pod; None when no
    single one is to blame, or the GPUs themselves are too many."""
    if all(len(node.devices) < pod_set.gpus for node in nodes):
        return None
    for resource, words, asked, has in _amounts(pod_set):
        most = max(has(node) for node in nodes)
        if asked > most:
            return Excess(resource, words, asked, most)
    return None


def excess_over(pod_set: PodSetSpec, most: Mapping[str, int]) -> Excess | None:
    """The first amount beside the GPUs that is more than `most`, what the nodes have at most."""
    for resource, words, asked, _ in _amounts(pod_set):
        if resource != "gpu_memory_mib" and asked > most.get(resource, 0):
            return Excess(resource, words, asked, most.get(resource, 0))
    return None


def _amounts(s: PodSetSpec) -> Iterator[tuple[str, str, int, Callable[[Node], int]]]:
    """What a pod asks for beside whole GPUs, and how to read off what a node has of it."""
    yield "gpu_memory_mib", "MiB of GPU memory", s.gpu_memory_mib, lambda node: node.gpu_memory_mib
    for name, words in AMOUNT_WORDS.items():
        yield name, words, getattr(s, name), attrgetter(name)
    yield "nics", "NICs", s.nics, lambda node: len(node.nics)
    for name, amount in s.extended.items():
        words = name if "/" in name else f"MiB of {name}"
        yield name, words, amount, partial(_extended, name)


def _extended(name: str, node: Node) -> int:
    return node.extended.get(name, 0)
