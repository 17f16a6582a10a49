"""What keeps pods of a set from nodes, however much is free there.

That is missing labels, node affinity that nodes do not match, and taints that are not tolerated.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.constraints import barriers, lasting
from scheduling.engine.types import Node, PodSetSpec
from scheduling.engine.verdict import counted

# How many barriers and label values to report.
MAX_TOLD, MAX_VALUES = 3, 4


class Barrier(NamedTuple):
    """One thing that keeps the pods from `nodes` nodes; `kind` is label, affinity or taint."""

    kind: str
    name: str
    nodes: int


class KeptOut(NamedTuple):
    """What keeps the pods from some of the `nodes` nodes that have the requested GPUs.

    The barrier that excludes the most nodes comes first.
    """

    nodes: int
    barriers: tuple[Barrier, ...]
    values: str  # the values that exist of the label that most nodes lack, as a clause

    def text(self, where: str) -> str:
        """ "no node with such GPUs has the label zone=mars; zone is a or b there"."""
        parts = [self._said(barrier, where) for barrier in self.barriers[:MAX_TOLD]]
        if self.values and self.barriers[0].kind == "label":
            parts.insert(1, self.values)
        return "; ".join(parts)

    def evidence(self) -> dict[str, int | float | str]:
        """Return, for each kind of barrier, its name and the number of nodes that it excludes."""
        found: dict[str, int | float | str] = {}
        for kind, name, nodes in self.barriers[:MAX_TOLD]:
            found.setdefault(_NAMES[kind], name)
            found.setdefault(_COUNTS[kind], nodes)
        return found

    def _said(self, barrier: Barrier, where: str) -> str:
        kind, name, nodes = barrier
        if nodes == self.nodes:
            return f"{_NO_NODE[kind].format(name=name, where=where)}"
        some = counted(nodes, where, where.replace("node", "nodes", 1))
        one = nodes == 1
        match kind:
            case "label":
                return f"{some} {'does' if one else 'do'} not have the label {name}"
            case "affinity":
                return f"{some} {'does' if one else 'do'} not match the node affinity {name}"
        return f"{some} {'has' if one else 'have'} the taint {name}, which it does not tolerate"


_NAMES = {
    "label": "missing_label",
    "affinity": "unmatched_affinity",
    "taint": "untolerated_taint",
}
_COUNTS = {
    "label": "nodes_without_label",
    "affinity": "nodes_unmatched",
    "taint": "tainted_nodes",
}
_NO_NODE = {
    "label": "no {where} has the label {name}",
    "affinity": "no {where} matches the node affinity {name}",
    "taint": "every {where} has the taint {name}, which it does not tolerate",
}


def kept_out(state: ClusterState, pod_set: PodSetSpec) -> KeptOut | None:
    """Return what keeps the set from nodes with the GPUs it requests; None = nothing does."""
    nodes = [node for node in state.facts if node is not None and _is_meant(node, pod_set)]
    counts: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        counts.update(barriers(node, lasting(node.taints), pod_set.nodes))
    if not counts:
        return None
    order = {"label": 0, "affinity": 1, "taint": 2}
    most = sorted(counts.items(), key=lambda it: (-it[1], order[it[0][0]], it[0][1]))
    found = tuple(Barrier(kind, name, n) for (kind, name), n in most)
    first = found[0]
    values = _values(nodes, first.name.partition("=")[0]) if first.kind == "label" else ""
    return KeptOut(len(nodes), found, values)


def _is_meant(node: Node, pod_set: PodSetSpec) -> bool:
    if pod_set.gpus:
        return bool(node.devices) and (
            not pod_set.gpu_models or node.gpu_model in pod_set.gpu_models
        )
    return node.without_gpus or not pod_set.avoids_gpus


def _values(nodes: Sequence[Node], key: str) -> str:
    """Say in a clause which values a label has on these nodes."""
    values = sorted({node.labels[key] for node in nodes if key in node.labels})
    if not values:
        return f"none has a label {key}"
    if len(values) > MAX_VALUES:
        return f"{key} has {len(values)} values there, {values[0]} and {values[1]} among them"
    return f"{key} is {' or '.join(values)} there"
