"""Which nodes a pod may use or prefers: the fields of a pod's spec, and the engine's rules.

Only this module reads and writes node rules of pods. Sources: core/v1 PodSpec (nodeSelector,
affinity.nodeAffinity, tolerations, os).
"""

from typing import Any

import msgspec
from msgspec import Struct

from scheduling.engine.cluster.affinity import both
from scheduling.engine.types import NodeExpression, NodeRules, NodeTerm, NodeWish, Toleration
from scheduling.kube.translate.node_selectors import (
    NodeSelector,
    NodeSelectorTerm,
    node_selector,
    node_term,
    node_terms,
)
from scheduling.kube.translate.objects import PodSpec, decoded

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SYSTEM, WINDOWS = "kubernetes.io/os", "windows"
# Where each of the rules is written in a pod.
PLACES_IN_POD = {
    "node_selector": "spec.nodeSelector",
    "node_affinity": f"spec.affinity.nodeAffinity.{REQUIRED}",
    "tolerations": "spec.tolerations",
}


class _Toleration(Struct, rename="camel"):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class _WeightedNodes(Struct):
    weight: int
    preference: NodeSelectorTerm


class _NodeAffinity(Struct):
    required: NodeSelector | None = msgspec.field(default=None, name=REQUIRED)
    preferred: list[_WeightedNodes] | None = msgspec.field(default=None, name=PREFERRED)


class _Affinity(Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


def rules_of(spec: PodSpec) -> NodeRules:
    """Return the pod's node rules. Raises ValueError."""
    affinity = _affinity(spec)
    return NodeRules(
        node_selector=decoded(spec.node_selector, dict[str, str], {}),
        node_affinity=both(node_terms(affinity.required), _system(spec)),
        # A taint that is tolerated only for a while is no reason to place the pod there.
        tolerations=tuple(
            Toleration(t.key, t.operator or "Equal", t.value, t.effect)
            for t in decoded(spec.tolerations, list[_Toleration], [])
            if t.toleration_seconds is None
        ),
    )


def rules_in_pod(rules: NodeRules) -> dict[str, Any]:
    """Return the rules as fields of a pod's spec; `tolerations` is always among them."""
    spec: dict[str, Any] = {"tolerations": [_written(each) for each in rules.tolerations]}
    if rules.node_selector:
        spec["nodeSelector"] = dict(rules.node_selector)
    if rules.node_affinity:
        selector = node_selector(rules.node_affinity)
        spec["affinity"] = {"nodeAffinity": {REQUIRED: selector}}
    return spec


def wishes_of(spec: PodSpec) -> tuple[NodeWish, ...]:
    """Return the node preferences of a pod. Raises ValueError."""
    wishes = ((w.weight, node_term(w.preference)) for w in _affinity(spec).preferred or ())
    return tuple(NodeWish(weight, term) for weight, term in wishes if term)


def _affinity(spec: PodSpec) -> _NodeAffinity:
    affinity = decoded(spec.affinity, _Affinity, _Affinity())
    return affinity.node_affinity or _NodeAffinity()


def _written(toleration: Toleration) -> dict[str, str]:
    parts = {"key": toleration.key, "value": toleration.value, "effect": toleration.effect}
    return {"operator": toleration.operator, **{n: text for n, text in parts.items() if text}}


def _system(spec: PodSpec) -> tuple[NodeTerm, ...]:
    """Return the terms for the pod's operating system; other kubelets reject the pod.

    Only Windows nodes are sure to have the label.
    """
    name = spec.os.name if spec.os is not None else ""
    if not name:
        return ()
    operator = "In" if name == WINDOWS else "NotIn"
    return ((NodeExpression(SYSTEM, operator, (WINDOWS,)),),)
