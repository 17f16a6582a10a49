"""Find the resource of which a pod requests more than any node has."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from scheduling.engine.types import Node, PodSetSpec
from scheduling.engine.verdict import AMOUNT_WORDS


class Excess(NamedTuple):
    """A resource of which a pod requests more (`asked`) than any node has (`most`)."""

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
    """Return the first resource besides GPUs of which no node has enough for one pod.

    None if no single resource is to blame, or if the GPUs themselves are too many.
    """
    if all(len(node.devices) < pod_set.gpus for node in nodes):
        return None
    for resource, words, asked, has in _amounts(pod_set):
        most = max(has(node) for node in nodes)
        if asked > most:
            return Excess(resource, words, asked, most)
    return None


def excess_over(pod_set: PodSetSpec, most: Mapping[str, int]) -> Excess | None:
    """Return the first resource besides GPUs that exceeds `most`, the most that any node has."""
    for resource, words, asked, _ in _amounts(pod_set):
        if resource != "gpu_memory_mib" and asked > most.get(resource, 0):
            return Excess(resource, words, asked, most.get(resource, 0))
    return None


def _amounts(s: PodSetSpec) -> Iterator[tuple[str, str, int, Callable[[Node], int]]]:
    """Yield what a pod requests besides whole GPUs: name, words, amount, and a node's amount."""
    yield "gpu_memory_mib", "MiB of GPU memory", s.gpu_memory_mib, lambda node: node.gpu_memory_mib
    for name, words in AMOUNT_WORDS.items():
        yield name, words, getattr(s, name), attrgetter(name)
    yield "nics", "NICs", s.nics, lambda node: len(node.nics)
    for name, amount in s.extended.items():
        words = name if "/" in name else f"MiB of {name}"
        yield name, words, amount, partial(_extended, name)


def _extended(name: str, node: Node) -> int:
    return node.extended.get(name, 0)
