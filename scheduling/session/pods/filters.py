"""How many nodes cannot take a pod, by the first filter that rejects it. Pure.

The order is that of an administrator who inspects one node: whether it is in service, whether the
pod may be there, whether it has such GPUs and enough free ones, then its other resources, and last
the rules about other pods.
"""

from collections import Counter
from collections.abc import Sequence

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.constraints import barriers
from scheduling.engine.placement.fit import devices_on, rest_fits, share_milli
from scheduling.engine.placement.pod_rules import Around, Nodes, kept_from
from scheduling.engine.types import Node, PodSetSpec

TOLD = 5  # filters that a text names, most nodes first
HAS_ROOM = ""
# Texts by kind of barrier; a taint's value and effect are left out.
BARRED = {
    "label": "no label {}",
    "affinity": "not in node affinity",
    "taint": "untolerated taint {}",
}


def nodes_by_filter(state: ClusterState, pod_set: PodSetSpec) -> str:
    """Return how many nodes can take the pod, and what rejects it on the others.

    For example "0/500 nodes can take it: 480 too few free GPUs, 12 out of service, 8 no label a=b".
    """
    closed = list(kept_from(Around(state), pod_set))
    found = Counter(
        _filter(state, slot, node, pod_set, closed)
        for slot, node in enumerate(state.facts)
        if node is not None and not node.to_come
    )
    total, room = found.total(), found.pop(HAS_ROOM, 0)
    text = f"{room}/{total} nodes can take it"
    kept = sorted(found.items(), key=lambda each: (-each[1], each[0]))
    parts = [f"{nodes} {name}" for name, nodes in kept[:TOLD]]
    if rest := sum(nodes for _, nodes in kept[TOLD:]):
        parts.append(f"{rest} other reasons")
    return f"{text}: {', '.join(parts)}" if parts else text


def _filter(
    state: ClusterState,
    slot: int,
    node: Node,
    pod_set: PodSetSpec,
    closed: Sequence[tuple[str, Nodes]],
) -> str:
    """Return what keeps a pod of the set from the node; HAS_ROOM = nothing."""
    if not node.schedulable or node.out_of_service:
        return "out of service"
    for kind, name in barriers(node, node.taints, pod_set.nodes):
        return BARRED[kind].format(name.partition("=")[0] if kind == "taint" else name)
    if not state.usable[slot]:
        return "out of service"
    if pod_set.gpus and pod_set.gpu_models and node.gpu_model not in pod_set.gpu_models:
        return f"no {' or '.join(pod_set.gpu_models)}"
    if pod_set.avoids_gpus and not node.without_gpus:
        return "kept for GPUs"
    milli = share_milli(node.gpu_memory_mib, pod_set)
    if pod_set.gpus and (not milli or devices_on(state, slot, pod_set, milli) is None):
        return "too few free GPUs"
    if not rest_fits(state, slot, pod_set):
        return "too little CPU, memory or others"
    for words, nodes in closed:
        if nodes[slot]:
            return words
    return HAS_ROOM
