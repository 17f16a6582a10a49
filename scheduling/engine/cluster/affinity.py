"""Required node affinity: which nodes a pod may use, by expressions on their labels and names.

Terms are those of core/v1 NodeSelectorTerm. One term must match, with all of its expressions.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from scheduling.engine.types import Node, NodeExpression, NodeTerm

NAME = "metadata.name"  # the only node field for which Kubernetes has expressions
BY_NAME = ("In", "NotIn")
OPERATORS = (*BY_NAME, "Exists", "DoesNotExist", "Gt", "Lt")
OPERATOR_WORDS = {
    "In": "in",
    "NotIn": "not in",
    "Exists": "of any value",
    "DoesNotExist": "not set",
    "Gt": "above",
    "Lt": "below",
}
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_PARTS = {"match_expressions": False, "match_fields": True}


def matches(node: Node, terms: tuple[NodeTerm, ...]) -> bool:
    """Whether the node matches one of the terms; no terms match every node."""
    return not terms or any(all(_holds(node, e) for e in term) for term in terms)


def both(one: tuple[NodeTerm, ...], other: tuple[NodeTerm, ...]) -> tuple[NodeTerm, ...]:
    """Return terms that match a node if `one` and `other` both do; no terms match every node."""
    if not one or not other:
        return one or other
    return tuple(dict.fromkeys(a + b for a in one for b in other))


def said(terms: Iterable[NodeTerm]) -> str:
    """Format the terms for people: "zone in a, b and cores above 64 or name in n1"."""
    return " or ".join(" and ".join(map(_said, term)) for term in terms)


def read_terms(documents: Iterable[Mapping[str, Any]]) -> tuple[NodeTerm, ...]:
    """Read the terms of a job document or of a row; raise ValueError for anything else.

    Each is `{"match_expressions": [{"key", "operator", "values"}], "match_fields": …}`.
    """
    try:
        return tuple(
            tuple(
                NodeExpression(e["key"], e["operator"], tuple(e.get("values") or ()), of_name)
                for part, of_name in _PARTS.items()
                for e in document.get(part) or ()
            )
            for document in documents
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            "node_affinity is not a list of terms, each with match_expressions or match_fields of "
            f"key, operator and values ({error!r})"
        ) from None


def write_terms(terms: Iterable[NodeTerm]) -> list[dict[str, Any]]:
    """Write the terms in the form that `read_terms` reads."""
    return [
        {
            part: [
                {"key": e.key, "operator": e.operator, "values": list(e.values)}
                for e in term
                if e.of_name is of_name
            ]
            for part, of_name in _PARTS.items()
        }
        for term in terms
    ]


def wrong_expression(expression: NodeExpression) -> str:
    """Say in a sentence what is wrong with the operator or values; "" if nothing is."""
    operator, values = expression.operator, expression.values
    if operator not in OPERATORS:
        return f"Choose one of {', '.join(OPERATORS)}."
    if expression.of_name:  # device claims may list any number of nodes, even none
        return "" if operator in BY_NAME else "The name of a node takes In or NotIn."
    if operator in ("In", "NotIn") and not values:
        return f"{operator} needs at least one value."
    if operator in ("Exists", "DoesNotExist") and values:
        return f"{operator} takes no values."
    if operator in ("Gt", "Lt") and (len(values) != 1 or not _INTEGER.fullmatch(values[0])):
        return f"{operator} takes one whole number."
    return ""


def _said(expression: NodeExpression) -> str:
    words = OPERATOR_WORDS.get(expression.operator, expression.operator)
    what = "name" if expression.of_name else expression.key
    return " ".join((what, words, ", ".join(expression.values))).strip()


def _holds(node: Node, expression: NodeExpression) -> bool:
    have = node.name if expression.of_name else node.labels.get(expression.key)
    match expression.operator:
        case "In":
            return have in expression.values
        case "NotIn":
            return have not in expression.values
        case "Exists":
            return have is not None
        case "DoesNotExist":
            return have is None
    if have is None or not _INTEGER.fullmatch(have):
        return False
    above = int(have) - int(expression.values[0])
    return above > 0 if expression.operator == "Gt" else above < 0
