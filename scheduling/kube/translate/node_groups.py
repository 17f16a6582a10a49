"""Nodes that an autoscaler may add to a cluster.

What its node groups can still provide appears as nodes that take no pods, because they do not exist
yet (docs/decisions/0080).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from scheduling.engine.types import Node, NodeExpression, NodeTerm
from scheduling.kube.translate.labels import label_table
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.objects import KubeNode, Meta, NodeSpec, NodeStatus, NodeTaint
from scheduling.kube.translate.quantities import GPU_RESOURCES

HOSTNAME = "kubernetes.io/hostname"
NOT_THERE = "not there yet"


class NodeGroup(NamedTuple):
    """A node group of an autoscaler; `most`: the largest number of its nodes.

    `example`: one of its nodes, not yet existing. `labels`: those that all its nodes have; with the
    GPU model and the number of GPUs they identify nodes of the group. `by_model`: the label that
    gives the model, {} for nodes without GPUs.
    """

    name: str
    most: int
    labels: Mapping[str, str]
    by_model: Mapping[str, str]
    example: Node

    def has(self, node: Node) -> bool:
        """Whether the node is in the group and has reported its resources.

        While a node registers it reports less than it will have.
        """
        mine = self.example
        if not (node.cpu_milli and node.memory_mib):
            return False
        alike = node.gpu_model == mine.gpu_model and len(node.devices) == len(mine.devices)
        return alike and all(node.labels.get(key) == it for key, it in self.labels.items())

    @property
    def term(self) -> NodeTerm:
        """The node affinity term that selects the group for pods that do not name a GPU model."""
        marks = self.labels or self.by_model
        return tuple(NodeExpression(key, "In", (it,)) for key, it in sorted(marks.items()))

    def to_come(self, there: int) -> Iterator[Node]:
        """Yield the nodes that the group may still get when it already has `there`."""
        for number in range(1, self.most - there + 1):
            # No existing node can have such a name.
            name = f"{self.name}/{number}"
            labels = {**self.example.labels, HOSTNAME: name}
            yield replace(self.example, name=name, labels=labels)


def groups_of(
    document: Mapping[str, Mapping[str, Any]], label_map: Mapping[str, Any]
) -> tuple[NodeGroup, ...]:
    """Return a cluster's groups from its `node_groups`.

    Those were checked by services/clusters/node_groups.py. Raises WrongRow for a row
    of `label_map` that cannot be used.
    """
    return tuple(_group(name, document[name], label_map) for name in sorted(document))


def nodes_to_come(groups: Iterable[NodeGroup], there: Iterable[Node]) -> dict[str, Node]:
    """Return, by name, the nodes that the groups may still add to a cluster with these nodes."""
    groups = tuple(groups)
    if not groups:
        return {}
    has: Counter[str] = Counter()
    for node in there:
        mine = next((group.name for group in groups if group.has(node)), None)
        if mine is not None:
            has[mine] += 1
    return {node.name: node for group in groups for node in group.to_come(has[group.name])}


def _group(name: str, given: Mapping[str, Any], label_map: Mapping[str, Any]) -> NodeGroup:
    """Make a group; labels and amounts are read as those of an existing node."""
    labels = dict(given.get("labels", {}))
    model, gpus = given.get("gpu_type", ""), given.get("gpus", 0)
    amounts = {
        **{resource: str(amount) for resource, amount in given.get("extended", {}).items()},
        "cpu": f"{given['cpu_milli']}m",
        "memory": f"{given['memory_mib']}Mi",
    }
    by_model = {}
    if gpus:
        amounts[GPU_RESOURCES[0]] = str(gpus)
        by_model = {label_table(label_map)["gpu_model"][0].label: model}
    taints = [NodeTaint(**taint) for taint in given.get("taints", ())]
    raw = KubeNode(
        metadata=Meta(name=name, labels={**by_model, **labels}),
        spec=NodeSpec(taints=taints),
        status=NodeStatus(capacity=amounts, allocatable=amounts),
    )
    node = NodeTranslator(label_map).translate(raw).node
    example = replace(
        node,
        gpu_model=model if gpus else "",
        schedulable=False,
        out_of_service=NOT_THERE,
        problems=(),
        to_come=True,
    )
    return NodeGroup(name, given["max_nodes"], labels, by_model, example)
