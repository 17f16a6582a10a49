"""A cluster's policy as a JSON document: what may stand in it, and the engine's Policy it means.

Everything is read off the types of `engine.types.Policy`; a field added there needs no code here.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from scheduling.engine.placement.strategies import STRATEGIES
from scheduling.engine.types import Policy
from tenants.errors import FieldError, Path

MAX_SECONDS = 366 * 86400
MAX_COUNT = 1_000_000
MAX_ENTRIES = 1000
_NAMES = tuple(f.name for f in fields(Policy))
_TYPES: dict[str, Any] = get_type_hints(Policy)


def to_policy(document: Mapping[str, Any]) -> Policy:
    """The engine's policy; what a valid document does not name has its default.

    Fields this version does not know are ignored: a newer one may have stored them.
    """
    return Policy(
        **{
            name: _read(_TYPES[name], value, getattr(Policy(), name))
            for name, value in document.items()
            if name in _TYPES
        }
    )


def effective(document: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of the policy a document means, as JSON."""
    return {name: _json(value) for name, value in asdict(to_policy(document)).items()}


def faults(document: Mapping[str, Any]) -> list[FieldError]:
    """All that is wrong with a document, each with the path of its field."""
    found: list[FieldError] = []
    for name, value in document.items():
        if name not in _TYPES:
            found.append(FieldError((name,), f"Unknown field. Known here: {', '.join(_NAMES)}."))
        else:
            found += _faults_of(_TYPES[name], value, (name,))
    return found


def _read(kind: Any, value: Any, default: Any) -> Any:
    if get_origin(kind) is tuple:
        return tuple(get_args(kind)[0](item) for item in value)
    if get_origin(kind) is Mapping:
        key = get_args(kind)[0]
        return {**default, **{key(name): item for name, item in value.items()}}
    return kind(value)


def _faults_of(kind: Any, value: Any, at: Path) -> Iterator[FieldError]:
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            yield FieldError(at, "Must be a list.")
            return
        for index, item in enumerate(value[:MAX_ENTRIES]):
            yield from _faults_of(get_args(kind)[0], item, (*at, index))
    elif get_origin(kind) is Mapping:
        if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
            yield FieldError(at, f"Must be an object of at most {MAX_ENTRIES} names.")
            return
        name_kind, item_kind = get_args(kind)
        for name, item in value.items():
            yield from _faults_of(name_kind, name, (*at, name))
            yield from _faults_of(item_kind, item, (*at, name))
            if at == ("strategies",) and isinstance(item, str) and item not in STRATEGIES:
                yield FieldError((*at, name), f"Choose one of {', '.join(STRATEGIES)}.")
    elif detail := _fault_of(kind, value):
        yield FieldError(at, detail)


def _fault_of(kind: type, value: Any) -> str:
    """What is wrong with one plain value; "" when nothing is."""
    if issubclass(kind, StrEnum):
        known = [k.value for k in kind]
        return "" if value in known else f"Choose one of {', '.join(known)}."
    if kind is bool:
        return "" if isinstance(value, bool) else "Must be true or false."
    if kind is str:
        return "" if isinstance(value, str) else "Must be a text."
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        good = number and isinstance(value, int) and 0 <= value <= MAX_COUNT
        return "" if good else f"Must be a whole number from 0 to {MAX_COUNT}."
    good = number and 0 <= value <= MAX_SECONDS and math.isfinite(value)
    return "" if good else f"Must be a number from 0 to {MAX_SECONDS}."


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _json(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_json(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value
