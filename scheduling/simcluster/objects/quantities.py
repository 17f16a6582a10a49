"""Kubernetes quantities, and what a pod requests of its node."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

_FORM = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)$")
_UNITS = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
# No quantity in Kubernetes is larger (int64).
_MAX = Decimal(2**63 - 1)

Requests = dict[str, int]


@lru_cache(maxsize=65536)
def parse(text: str) -> Decimal:
    """Return the value of a quantity such as "100m", "2Gi", "1e3"; capped at int64's maximum.

    Raises:
        ValueError: it is not a quantity.
    """
    found = _FORM.match(text)
    if found is None:
        raise ValueError(
            "quantities must match the regular expression "
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    number, exponent, unit = found.groups()
    if exponent and abs(int(exponent[1:])) > 30:
        return _MAX if not number.startswith("-") else -_MAX
    value = Decimal(number + (exponent or "")) * _UNITS[unit or ""]
    return max(min(value, _MAX), -_MAX)


_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m"),
            (-6, "u"))  # fmt: skip


@lru_cache(maxsize=65536)
def canonical(text: str) -> str:
    """Return a quantity as the API server writes it back: "1000m" is "1", "2048Mi" is "2Gi".

    Raises:
        ValueError: it is not a quantity.
    """
    value = parse(text)
    if text.endswith("i") and value == int(value):
        number, step = int(value), 0
        while number and number % 1024 == 0 and step < len(_BINARY) - 1:
            number, step = number // 1024, step + 1
        return f"{number}{_BINARY[step]}"
    for exponent, unit in _DECIMAL:
        scaled = value.scaleb(-exponent)
        if scaled == int(scaled):
            return f"{int(scaled)}{unit}" if value else "0"
    return f"{math.ceil(value.scaleb(9))}n"


def canonicalize(resources: dict[str, Any] | None) -> None:
    """Rewrite every quantity of a resource list in place, numbers as strings.

    Raises:
        ValueError: one is not a quantity; names the resource.
    """
    for name, text in (resources or {}).items():
        try:
            resources[name] = canonical(str(text))  # type: ignore[index]
        except ValueError as error:
            raise ValueError(f"[{name}]: {error}") from None


@lru_cache(maxsize=65536)
def amount(resource: str, text: str | float) -> int:
    """Return an amount in its base unit: milli-CPU for cpu, otherwise whole units, rounded up."""
    value = parse(str(text))
    if resource == "cpu":
        value *= 1000
    return math.ceil(value)


def amounts(resources: Mapping[str, str | float] | None) -> Requests:
    return {name: amount(name, text) for name, text in (resources or {}).items()}


def is_extended(resource: str) -> bool:
    """Whether only whole units of the resource, without overcommitment, may be requested."""
    return "/" in resource and "kubernetes.io/" not in resource


def pod_requests(spec: Mapping[str, Any]) -> Requests:
    """Return what a pod takes of a node, plus overhead (component-helpers resource).

    It is the larger of its init phase and all its containers together; restartable init containers
    count in both.
    """
    total: Requests = {}
    for c in spec.get("containers") or ():
        _add(total, _container(c))
    sidecars: Requests = {}
    init: Requests = {}
    for c in spec.get("initContainers") or ():
        asked = _container(c)
        if c.get("restartPolicy") == "Always":
            _add(total, asked)
            _add(sidecars, asked)
            _most(init, sidecars)
        else:
            _add(asked, sidecars)
            _most(init, asked)
    _most(total, init)
    total.update(amounts((spec.get("resources") or {}).get("requests")))
    _add(total, amounts(spec.get("overhead")))
    return total


def _container(container: Mapping[str, Any]) -> Requests:
    return amounts((container.get("resources") or {}).get("requests"))


def _add(total: Requests, more: Requests) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _most(total: Requests, other: Requests) -> None:
    for name, value in other.items():
        total[name] = max(total.get(name, 0), value)
