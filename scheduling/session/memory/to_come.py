"""The nodes that an autoscaler may still add, as the engine of a scope hears of them.

These are the nodes that would be at home in the scope.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from scheduling.engine.deltas import NodeChanged, NodeRemoved
from scheduling.engine.types import Node
from scheduling.kube.translate.node_groups import NodeGroup, nodes_to_come

# By model and number of GPUs: how many devices of each kind such a node will have.
Devices = Callable[[str, int], Mapping[str, int]]


class NodesToCome:
    """Follows the nodes that may come; `nodes`: all of them by name, of whatever scope."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._groups: tuple[NodeGroup, ...] = ()
        self._stale = False

    def node_changed(self) -> None:
        """Recompute next time: a node came, went or changed, or other devices are asked for."""
        self._stale = bool(self._groups)

    def changes(
        self,
        groups: tuple[NodeGroup, ...],
        there: Callable[[], Iterable[Node]],
        devices: Devices,
    ) -> Iterator[NodeChanged | NodeRemoved]:
        """Yield what is new since the last call. `there`: the nodes that the cluster has."""
        if groups == self._groups and not self._stale:
            return
        self._groups, self._stale = groups, False
        before, self.nodes = self.nodes, nodes_to_come(_with(groups, devices), there())
        yield from changed(before, self.nodes)


def changed(
    before: Mapping[str, Node], after: Mapping[str, Node]
) -> Iterator[NodeChanged | NodeRemoved]:
    """Yield the changes that lead from `before` to `after`."""
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
