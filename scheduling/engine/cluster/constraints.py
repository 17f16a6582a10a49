"""Which nodes a pod may use at all.

That follows from its `NodeRules` (Kubernetes semantics), from whether nodes give the shares that it
needs, and from whether they have GPUs that it must leave alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from scheduling.engine.cluster.affinity import both, matches, said, wrong_expression
from scheduling.engine.types import (
    Node,
    NodeRules,
    NodeTerm,
    PodRules,
    PodSetSpec,
    Taint,
    Toleration,
)

# PreferNoSchedule only expresses a preference.
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
    """Return the first taint that keeps a new pod away, or None."""
    for taint in taints:
        if taint.effect in BLOCKING_EFFECTS and not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None


def lasting(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """Return the taints, except those by which Kubernetes marks a passing state.

    Such states are: not ready, unreachable, under pressure, cordoned.
    """
    return tuple(taint for taint in taints if not taint.key.startswith(PASSING))


def in_order(node: Node) -> Node:
    """Return the node as it would be if all its parts worked and passing states were over."""
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
    """Whether the selector matches these labels of a node."""
    return all(labels.get(key) == value for key, value in selector.items())


def admits(node: Node, pod_set: PodSetSpec) -> bool:
    """Whether the node admits pods of this set: by selector, affinity, taints, shares and GPUs.

    It must give shares if the pods need them, and have no GPUs if the pods must avoid them.
    """
    return lets_in(node, node.taints, pod_set.nodes, pod_set.is_share, pod_set.avoids_gpus)


def will_admit(node: Node, pod_set: PodSetSpec) -> bool:
    """Whether the node admits the pods now, or will once passing states are over."""
    taints = lasting(node.taints)
    return lets_in(node, taints, pod_set.nodes, pod_set.is_share, pod_set.avoids_gpus)


def lets_in(
    node: Node, taints: Iterable[Taint], rules: NodeRules, is_share: bool, avoids_gpus: bool
) -> bool:
    """Whether the node, with these taints, admits a pod with these rules.

    `is_share`: the pod needs a share of a GPU. `avoids_gpus`: it must not use nodes with GPUs.
    """
    return (
        (node.gives_shares or not is_share)
        and (node.without_gpus or not avoids_gpus)
        and selected(node.labels, rules.node_selector)
        and matches(node, rules.node_affinity)
        and blocking_taint(taints, rules.tolerations) is None
    )


def barriers(node: Node, taints: Iterable[Taint], rules: NodeRules) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of everything that keeps pods with these rules from the node.

    That is each missing label (`key=value`), the affinity (its terms), and the first taint
    (`key=value:effect`).
    """
    for key, value in sorted(rules.node_selector.items()):
        if node.labels.get(key) != value:
            yield "label", f"{key}={value}"
    if not matches(node, rules.node_affinity):
        yield "affinity", said(rules.node_affinity)
    taint = blocking_taint(taints, rules.tolerations)
    if taint is not None:
        yield "taint", f"{taint.key}={taint.value}:{taint.effect}"


def narrowed(rules: NodeRules, terms: tuple[NodeTerm, ...]) -> NodeRules:
    """Return the rules, restricted to nodes that also match one of the terms."""
    return replace(rules, node_affinity=both(rules.node_affinity, terms))


def spread_over(rules: PodRules, nodes: NodeRules) -> PodRules:
    """Make spread constraints count nodes by the pods' own affinity, whatever narrows it later."""
    return rules._replace(affinity=nodes.node_affinity)


def counted_nodes(pod_set: PodSetSpec, by_affinity: bool) -> NodeRules:
    """Return the rules for nodes that count for a spread constraint.

    `by_affinity`: whether selector and affinity decide.
    """
    if not by_affinity:
        return NodeRules(tolerations=pod_set.nodes.tolerations)
    own = pod_set.rules.affinity if pod_set.rules is not None else ()
    return replace(pod_set.nodes, node_affinity=own)


def texts_of(rules: NodeRules) -> list[str]:
    """Describe the rules for people: one text for each label, and one for the affinity terms."""
    labels = [f"{key} = {value}" for key, value in rules.node_selector.items()]
    return [*labels, *filter(None, [said(rules.node_affinity)])]


def wrong_rules(rules: NodeRules) -> str:
    """Say in a clause what is wrong with the rules; "" if nothing is."""
    for term in rules.node_affinity:
        if not term:
            return "a term of its node affinity has no expression and matches no node; leave it out"
        for expression in term:
            if wrong := wrong_expression(expression):
                return f"its node affinity for {expression.key} is wrong: {wrong.rstrip('.')}"
    return ""
