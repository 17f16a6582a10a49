"""Kubernetes node selectors of pods and volumes, and the engine's terms."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from scheduling.engine.types import NodeExpression, NodeTerm


class NodeSelectorRequirement(Struct, gc=False):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(Struct, gc=False, rename="camel"):
    match_expressions: list[NodeSelectorRequirement] | None = None
    match_fields: list[NodeSelectorRequirement] | None = None


class NodeSelector(Struct, gc=False, rename="camel"):
    """core/v1 NodeSelector: any of its terms has to match; in a term, all expressions."""

    node_selector_terms: list[NodeSelectorTerm] = msgspec.field(default_factory=list)


def node_terms(selector: NodeSelector | None) -> tuple[NodeTerm, ...]:
    """Return the terms of the selector; () if there is none."""
    return tuple(map(node_term, selector.node_selector_terms)) if selector is not None else ()


def node_term(term: NodeSelectorTerm) -> NodeTerm:
    """Return what a term requires of a node; () if it says nothing."""
    return tuple(
        NodeExpression(e.key, e.operator, tuple(e.values or ()), of_name)
        for part, of_name in ((term.match_expressions, False), (term.match_fields, True))
        for e in part or ()
    )


def node_selector(terms: Iterable[NodeTerm]) -> dict[str, Any]:
    """Return the core/v1 NodeSelector of these terms."""
    found = []
    for term in terms:
        parts: dict[str, list[dict[str, Any]]] = {}
        for e in term:
            expression: dict[str, Any] = {"key": e.key, "operator": e.operator}
            if e.values:
                expression["values"] = list(e.values)
            part = "matchFields" if e.of_name else "matchExpressions"
            parts.setdefault(part, []).append(expression)
        found.append(parts)
    return {"nodeSelectorTerms": found}
