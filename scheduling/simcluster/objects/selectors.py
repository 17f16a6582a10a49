"""Label and field selectors (apimachinery `labels`, `fields`) against stored objects."""

import re
from collections.abc import Callable

from scheduling.simcluster.objects.kinds import ResourceKind
from scheduling.simcluster.objects.status import ApiError, bad_request
from scheduling.simcluster.objects.store import Stored

Match = Callable[[Stored], bool]

_SET = re.compile(r"^(!?)\s*([\w./-]+)\s*(?:(in|notin)\s*\(([^)]*)\))?$")
_EQUAL = re.compile(r"^([\w./-]+)\s*(==|=|!=)\s*([\w.-]*)$")
_COMPARE = re.compile(r"^([\w./-]+)\s*([<>])\s*(-?\d+)$")


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p.strip() for p in parts]


def _equality(key: str, op: str, value: str) -> Match:
    if op == "!=":
        return lambda o: o.labels.get(key) != value
    return lambda o: o.labels.get(key) == value


def _membership(key: str, op: str, values: frozenset[str]) -> Match:
    if op == "in":
        return lambda o: o.labels.get(key) in values
    return lambda o: o.labels.get(key) not in values


def _comparison(key: str, op: str, bound: int) -> Match:
    def match(o: Stored) -> bool:
        try:
            value = int(o.labels.get(key, ""))
        except ValueError:
            return False
        return value > bound if op == ">" else value < bound

    return match


def _requirement(text: str) -> Match:
    if found := _EQUAL.match(text):
        return _equality(*found.groups())
    if found := _COMPARE.match(text):
        key, op, bound = found.groups()
        return _comparison(key, op, int(bound))
    found = _SET.match(text)
    if found is None or (found[1] and found[3]):
        if not text:
            raise bad_request("found ',', expected: identifier after ','")
        raise bad_request(f"found '{text[0]}', expected: !, identifier, or 'end of string'")
    negated, key, op, values = found.groups()
    if op:
        return _membership(key, op, frozenset(v.strip() for v in values.split(",")))
    if negated:
        return lambda o: key not in o.labels
    return lambda o: key in o.labels


def label_selector(text: str) -> list[Match]:
    """Return the requirements of a labelSelector parameter; all must hold.

    Raises:
        ApiError: 400 if it does not parse.
    """
    return [_requirement(part) for part in _split(text)] if text.strip() else []


def selector_of(spec: dict[str, object] | None) -> Match:
    """Return a LabelSelector object (matchLabels, matchExpressions) as one predicate.

    None selects nothing, an empty selector everything (policy/v1).
    """
    if spec is None:
        return lambda _: False
    matches: list[Match] = []
    labels = spec.get("matchLabels") or {}
    assert isinstance(labels, dict)
    matches += [_equality(k, "=", v) for k, v in labels.items()]
    expressions = spec.get("matchExpressions") or []
    assert isinstance(expressions, list)
    for e in expressions:
        op, key = e["operator"], e["key"]
        if op in ("In", "NotIn"):
            matches.append(_membership(key, op.lower(), frozenset(e.get("values") or ())))
        else:
            matches.append(_requirement(key if op == "Exists" else f"!{key}"))
    return lambda o: all(m(o) for m in matches)


def _field_requirement(kind: ResourceKind, text: str) -> Match:
    for op in ("!=", "==", "="):
        path, sep, value = text.partition(op)
        if sep:
            break
    else:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    equal = op != "!="
    if path == "metadata.name":
        return lambda o: (o.name == value) is equal
    if path == "metadata.namespace" and kind.namespaced:
        return lambda o: (o.namespace == value) is equal
    if path == "source" and "source.component" in kind.selectable:
        path = "source.component"
    if path not in kind.selectable:
        raise _unknown_field(path)
    at = list(kind.selectable).index(path)
    return lambda o: (o.fields[at] == value) is equal


def _unknown_field(path: str) -> ApiError:
    return bad_request(f"field label not supported: {path}")


def field_selector(kind: ResourceKind, text: str) -> list[Match]:
    """Return the requirements of a fieldSelector parameter; all must hold.

    Raises:
        ApiError: 400 for a field that the kind does not index.
    """
    if not text.strip():
        return []
    return [_field_requirement(kind, part.strip()) for part in text.split(",")]


def combined(matches: list[Match]) -> Match | None:
    """Return one predicate of all; None if everything matches."""
    if not matches:
        return None
    if len(matches) == 1:
        return matches[0]
    return lambda o: all(m(o) for m in matches)
