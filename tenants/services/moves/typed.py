"""Place and weight of a tenant as people type them in a draft, and their meaning."""

from collections.abc import Mapping
from typing import Any

from tenants.errors import Invalid
from tenants.models import Tenant
from tenants.services.typed_gpus import PLAIN

# The fields, as people read them.
TITLES = {"parent": "Tenant above", "weight": "Weight"}
LONGEST = 63  # characters in a field; the limit for names
LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1e6


def as_typed(tenant: Tenant) -> dict[str, str]:
    """Return both fields of a tenant as a person would type them; "" = a root."""
    return typed(tenant.parent.name if tenant.parent else None, tenant.weight)


def typed(parent: str | None, weight: float) -> dict[str, str]:
    return {"parent": parent or "", "weight": repr(float(weight)).removesuffix(".0")}


def meant(fields: Mapping[str, str]) -> dict[str, Any]:
    """Parse the fields: the name of the parent (None = a root), and the weight. Raises Invalid
    (weight)."""
    found: dict[str, Any] = {}
    if "parent" in fields:
        found["parent"] = fields["parent"].strip() or None
    if "weight" in fields:
        found["weight"] = _weight(fields["weight"])
    return found


def is_same(name: str, mine: str, other: str) -> bool:
    """Return whether two texts of a field mean the same; unreadable ones are compared as text."""
    try:
        return meant({name: mine}) == meant({name: other})
    except Invalid:
        return mine.strip() == other.strip()


def fault_of(fields: Mapping[str, str]) -> str:
    """Return why a field cannot be read, and how to fix it; "" if all can."""
    try:
        meant(fields)
    except Invalid as error:
        return error.errors[0].detail
    return ""


def in_words(fields: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe what the fields change: "moves below research", "weight 1 → 2"."""
    told = []
    if "parent" in fields and fields["parent"] != now["parent"]:
        above = fields["parent"]
        told.append(f"moves below {above}" if above else "moves to the top of the tree")
    if "weight" in fields and fields["weight"] != now["weight"]:
        told.append(f"weight {now['weight']} → {fields['weight'] or 'nothing'}")
    return told


def _weight(text: str) -> float:
    text = text.strip()
    if not PLAIN.fullmatch(text):
        raise Invalid.field("weight", "Write a number in the digits 0 to 9, e.g. 2 or 0.5.")
    weight = float(text)
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise Invalid.field("weight", "Write a weight from 0.001 to 1,000,000.")
    return weight
