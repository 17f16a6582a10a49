"""A cluster's policy as a JSON document: what it may contain, and which engine Policy it means.

Everything is derived from the types of `engine.types.Policy`, so a new field there needs no code
here. Fields that a document leaves out are as in DEFAULT, the policy of a cluster without its own.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.shards.division import declaration_problems
from scheduling.engine.types import JobKind, Policy, PreemptionKind, Shard
from tenants.errors import FieldError, Path, unknown_name

MAX_SECONDS = 366 * 86400
MAX_COUNT = 1_000_000
MAX_ENTRIES = 1000
SHARES = ("defrag_loss", "defrag_above")  # fields that are fractions, from 0 to 1
_SHARD_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
DEFAULT = Policy(
    strategies={
        JobKind.TRAINING: "e-binpack",
        JobKind.INFERENCE: "binpack",
        JobKind.DEVELOPMENT: "binpack",
    },
    preemption=(PreemptionKind.PRIORITY, PreemptionKind.RECLAIM),
)
_NAMES = tuple(f.name for f in fields(Policy))
_TYPES: dict[str, Any] = get_type_hints(Policy)


def to_policy(document: Mapping[str, Any]) -> Policy:
    """Return the engine's policy; fields that a valid document leaves out have their defaults.

    Unknown fields are ignored: a newer version may have stored them.
    """
    return replace(
        DEFAULT,
        **{
            name: _read(_TYPES[name], value, getattr(DEFAULT, name))
            for name, value in document.items()
            if name in _TYPES
        },
    )


def effective(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of the policy that a document means, as JSON."""
    return {name: _json(value) for name, value in asdict(to_policy(document)).items()}


def faults(
    document: Mapping[str, Any], others: Mapping[str, Any] | None = None
) -> list[FieldError]:
    """Return all faults of a document, each with the path of its field.

    `others`: values of the fields that it leaves out, if not the defaults.
    """
    found: list[FieldError] = []
    for name, value in document.items():
        if name not in _TYPES:
            found.append(FieldError((name,), unknown_name("field", name, _NAMES)))
        elif name in SHARES and not _is_share(value):
            found.append(FieldError((name,), "Must be a number from 0 to 1, e.g. 0.005 for 0.5 %."))
        else:
            found += _faults_of(_TYPES[name], value, (name,))
    if found:
        return found
    policy = to_policy({**(others or {}), **document})
    if policy.fair_users and not policy.fair_share:
        detail = "Only with fair_share: set that to true as well, or leave this out."
        found.append(FieldError(("fair_users",), detail))
    problems = declaration_problems(policy.shards) if "shards" in document else []
    found += [FieldError(("shards", at, name), text) for at, name, text in problems]
    return found


def _read(kind: Any, value: Any, default: Any) -> Any:
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], item, None) for item in value)
    if isinstance(kind, type) and is_dataclass(kind):
        types = get_type_hints(kind)
        return kind(**{name: _read(types[name], item, None) for name, item in value.items()})
    if get_origin(kind) is Mapping:
        key = get_args(kind)[0]
        return {**default, **{key(name): item for name, item in value.items()}}
    return kind(value)


def _faults_of(kind: Any, value: Any, at: Path) -> Iterator[FieldError]:
    if get_origin(kind) is tuple:
        if not isinstance(value, list) or len(value) > MAX_ENTRIES:
            yield FieldError(at, f"Must be a list of at most {MAX_ENTRIES} entries.")
            return
        for index, item in enumerate(value):
            yield from _faults_of(get_args(kind)[0], item, (*at, index))
    elif is_dataclass(kind):
        yield from _faults_of_object(kind, value, at)
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


def _faults_of_object(kind: Any, value: Any, at: Path) -> Iterator[FieldError]:
    types = get_type_hints(kind)
    if not isinstance(value, dict):
        yield FieldError(at, f"Must be an object of {', '.join(types)}.")
        return
    for name, item in value.items():
        if name not in types:
            yield FieldError((*at, name), unknown_name("field", name, types))
        else:
            yield from _faults_of(types[name], item, (*at, name))
    for field in fields(kind):
        if field.name not in value and field.default is MISSING:
            yield FieldError((*at, field.name), "Is missing.")
    name = value.get("name")
    if kind is Shard and isinstance(name, str) and not _SHARD_NAME.fullmatch(name):
        detail = "Must be 1 to 63 lower-case letters, digits and inner hyphens."
        yield FieldError((*at, "name"), detail)


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _fault_of(kind: type, value: Any) -> str:
    """Say what is wrong with one plain value; "" = nothing."""
    if issubclass(kind, StrEnum):
        known = [k.value for k in kind]
        return "" if value in known else f"Choose one of {', '.join(known)}."
    if kind is bool:
        return "" if isinstance(value, bool) else "Must be true or false."
    if kind is str:
        return "" if isinstance(value, str) else "Must be a string."
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
