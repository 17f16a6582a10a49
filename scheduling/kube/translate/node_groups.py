"""Nodes that an autoscaler may add to a cluster: what its node groups can still give, as nodes that
take no pods because they are not there yet (docs/decisions/0080)."""

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
    """`example`: a node of the group that is not there. `labels`: which all of its nodes have; with
    the GPU model and the number of GPUs they say which nodes are of the group. `by_model`: the
    label that tells the model, {} of nodes without GPUs."""

    name: str
    most: int
    labels: Mapping[str, str]
    by_model: Mapping[str, str]
    example: Node

    def has(self, node: Node) -> bool:
        """Whether the node is of the group, and has told what pods may ask for: while it registers
        it holds less than it will."""
        mine = self.example
        if not (node.cpu_milli and node.memory_mib):
            return False
        alike = node.gpu_model == mine.gpu_model and len(node.devices) == len(mine.devices)
        return alike and all(node.labels.get(key) == it for key, it in self.labels.items())

    @property
    def term(self) -> NodeTerm:
        """What of a node says that it is of the group, where pods do not say which GPUs they
        want."""
        marks = self.labels or self.by_model
        return tuple(NodeExpression(key, "In", (it,)) for key, it in sorted(marks.items()))

    def to_come(self, there: int) -> Iterator[Node]:
        """The nodes that it may still get when it has so many."""
        for number in range(1, self.most - there + 1):
            # No node that is there can have such a name.
            name = f"{self.name}/{number}"
            labels = {**self.example.labels, HOSTNAME: name}
            yield replace(self.example, name=name, labels=labels)


def groups_of(
    document: Mapping[str, Mapping[str, Any]], label_map: Mapping[str, Any]
) -> tuple[NodeGroup, ...]:
    """The groups of a cluster, of its `node_groups` (checked by services/clusters/node_groups.py).
    Raises WrongRow for a row of `label_map` that cannot be used."""
    return tuple(_group(name, document[name], label_map) for name in sorted(document))


def nodes_to_come(groups: Iterable[NodeGroup], there: Iterable[Node]) -> dict[str, Node]:
    """By name, what the groups may still give a cluster that has these nodes."""
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
    """Labels and amounts are read as those of a node that is there."""
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
