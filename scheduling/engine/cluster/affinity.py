"""Required node affinity: which nodes a pod may use by expressions over their labels and their name
(core/v1 NodeSelectorTerm; of its terms any has to match, of a term's expressions all)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from scheduling.engine.types import Node, NodeExpression, NodeTerm

NAME = "metadata.name"  # the one field of nodes that Kubernetes has expressions for
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
    """Whether the node is meant; no terms mean every node."""
    return not terms or any(all(_holds(node, e) for e in term) for term in terms)


def both(one: tuple[NodeTerm, ...], other: tuple[NodeTerm, ...]) -> tuple[NodeTerm, ...]:
    """Terms that a node matches if it matches those of both; no terms mean every node."""
    if not one or not other:
        return one or other
    return tuple(dict.fromkeys(a + b for a in one for b in other))


def said(terms: Iterable[NodeTerm]) -> str:
    """The terms as people read them: "zone in a, b and cores above 64 or name in n1"."""
    return " or ".join(" and ".join(map(_said, term)) for term in terms)


def read_terms(documents: Iterable[Mapping[str, Any]]) -> tuple[NodeTerm, ...]:
    """The terms of a job document, or of a row: `{"match_expressions": [{"key", "operator",
    "values"}], "match_fields": …}` each. Raises ValueError for anything else."""
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
    """What `read_terms` reads."""
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
    """What is wrong with its operator and values, as one sentence; "" when nothing is."""
    operator, values = expression.operator, expression.values
    if operator not in OPERATORS:
        return f"Choose one of {', '.join(OPERATORS)}."
    if expression.of_name:  # claims for devices mean any number of nodes, also none
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
