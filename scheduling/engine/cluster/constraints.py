"""Which nodes a pod may use at all: selectors, affinity, taints and tolerations (Kubernetes
semantics), and whether they give shares of a GPU, or have GPUs where the pod is to take nothing
from those."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduling.engine.cluster.affinity import matches
from scheduling.engine.types import Node, PodSetSpec, Taint, Toleration

# PreferNoSchedule is a wish, not a rule.
BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
# https://kubernetes.io/docs/reference/labels-annotations-taints/
PASSING = "node.kubernetes.io/"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration covers one taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def blocking_taint(taints: Iterable[Taint], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first taint that keeps a new pod away, or None."""
    for taint in taints:
        if taint.effect in BLOCKING_EFFECTS and not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None


def lasting(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """The taints without those by which Kubernetes itself marks a state that passes (not ready,
    unreachable, under pressure, cordoned)."""
    return tuple(taint for taint in taints if not taint.key.startswith(PASSING))


def in_order(node: Node) -> Node:
    """The node when everything of it works, and the state that passes has passed."""
    fine = node.schedulable and not node.unnamed_unhealthy and lasting(node.taints) == node.taints
    if fine and all(gpu.healthy for gpu in node.devices) and all(n.healthy for n in node.nics):
        return node
    return replace(
        node,
        devices=tuple([replace(device, healthy=True) for device in node.devices]),
        nics=tuple([replace(nic, healthy=True) for nic in node.nics]),
        taints=lasting(node.taints),
        schedulable=True,
        unnamed_unhealthy=0,
        out_of_service="",
    )


def selected(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node with these labels is meant by this selector."""
    return all(labels.get(key) == value for key, value in selector.items())


def admits(node: Node, pod_set: PodSetSpec) -> bool:
    """Whether selector, affinity and taints let pods of this set onto the node, and it gives shares
    if they need them, or has no GPUs if they are to avoid these."""
    return _lets_in(node, node.taints, pod_set)


def will_admit(node: Node, pod_set: PodSetSpec) -> bool:
    """Whether they do, or will when the state of the node that passes has passed."""
    return _lets_in(node, lasting(node.taints), pod_set)


def _lets_in(node: Node, taints: Iterable[Taint], pod_set: PodSetSpec) -> bool:
    return (
        (node.gives_shares or not pod_set.is_share)
        and (node.without_gpus or not pod_set.avoids_gpus)
        and selected(node.labels, pod_set.node_selector)
        and matches(node, pod_set.node_affinity)
        and blocking_taint(taints, pod_set.tolerations) is None
    )
