"""The nodes that an autoscaler may still add to a cluster, as the engine of a scope is told of
them: those that are at home in it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from scheduling.engine.deltas import NodeChanged, NodeRemoved
from scheduling.engine.types import Node
from scheduling.kube.translate.node_groups import NodeGroup, nodes_to_come

# How many devices of which kinds a node of so many GPUs of a model will have.
Devices = Callable[[str, int], Mapping[str, int]]


class NodesToCome:
    """`nodes`: those that may come, by name, whichever scope they would be of."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._groups: tuple[NodeGroup, ...] = ()
        self._stale = False

    def node_changed(self) -> None:
        """A node came or went, or is another one; or other devices are asked for than before."""
        self._stale = bool(self._groups)

    def changes(
        self,
        groups: tuple[NodeGroup, ...],
        there: Callable[[], Iterable[Node]],
        devices: Devices,
    ) -> Iterator[NodeChanged | NodeRemoved]:
        """What is new since the last time. `there`: the nodes that the cluster has."""
        if groups == self._groups and not self._stale:
            return
        self._groups, self._stale = groups, False
        before, self.nodes = self.nodes, nodes_to_come(_with(groups, devices), there())
        yield from changed(before, self.nodes)


def changed(
    before: Mapping[str, Node], after: Mapping[str, Node]
) -> Iterator[NodeChanged | NodeRemoved]:
    """What tells of the nodes after who knows those before."""
    for name in before:
        if name not in after:
            yield NodeRemoved(name)
    for name, node in after.items():
        if before.get(name) != node:
            yield NodeChanged(node)


def _with(groups: Iterable[NodeGroup], devices: Devices) -> Iterator[NodeGroup]:
    for group in groups:
        node = group.example
        more = devices(node.gpu_model, len(node.devices))
        yield group._replace(example=replace(node, extended={**node.extended, **more}))
