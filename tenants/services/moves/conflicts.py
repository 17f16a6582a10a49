"""Which fields of a tenant's place and weight somebody else has changed since an edit began."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.utils.text import Truncator

from tenants.models import AuditRecord, Tenant
from tenants.services.drafts.conflicts import FieldConflict
from tenants.services.moves.typed import as_typed, is_same, typed

REASON_SHOWN = 200  # characters of a colleague's reason
TOP = "none"  # shown for a root, which has no parent
HIDDEN_TENANT = "a hidden tenant"


@dataclass(frozen=True, slots=True)
class OvertakenPlace:
    """`by`, `reason`: who last changed the tenant, and why; "" when the audit trail does not
    say."""

    by: str
    reason: str
    fields: list[FieldConflict]

    @property
    def told(self) -> str:
        """The conflict in sentences: their, my and the original value of each field."""
        why = f" (“{Truncator(self.reason).chars(REASON_SHOWN)}”)" if self.reason else ""
        said = f"{self.by or 'Somebody'} changed this tenant meanwhile{why}."
        return " ".join((said, *(one.told for one in self.fields)))

    def seen_by(self, names: Container[str]) -> "OvertakenPlace":
        """Return the same for a reader who sees the tenants of these names; others are not
        named."""

        def told(text: str | None) -> str | None:
            return text if text in (None, TOP) or text in names else HIDDEN_TENANT

        fields = [
            replace(one, mine=told(one.mine), theirs=told(one.theirs), base=told(one.base))
            if one.field == "parent"
            else one
            for one in self.fields
        ]
        return replace(self, fields=fields)


def shown_to(names: Container[str], texts: Mapping[str, str]) -> dict[str, str]:
    """Return fields as typed, without the name of a parent that is not among `names`."""
    return {
        name: HIDDEN_TENANT if name == "parent" and text and text not in names else text
        for name, text in texts.items()
    }


def overtaken_place(
    tenant: Tenant, fields: Mapping[str, Any], base: Mapping[str, str]
) -> OvertakenPlace | None:
    """Return the fields of an edit that somebody else has since set to a value that is neither the
    original nor the edit's; None when there are none."""
    now = as_typed(tenant)
    mine = {name: _text(name, value) for name, value in fields.items()}
    found = [
        FieldConflict(name, _said(mine[name]), _said(now[name]), _said(base[name]))
        for name in now
        if name in mine
        and not is_same(name, now[name], base[name])
        and not is_same(name, now[name], mine[name])
    ]
    if not found:
        return None
    last = _last_record(tenant, {one.field for one in found})
    by, reason = (last.actor_name, last.reason) if last else ("", "")
    return OvertakenPlace(by, reason, found)


def _text(name: str, value: Any) -> str:
    """Return a field as typed; text already is."""
    if isinstance(value, str):
        return value
    return typed(None, value)["weight"] if name == "weight" else ""


def _said(text: str) -> str:
    return text or TOP


def _last_record(tenant: Tenant, fields: set[str]) -> AuditRecord | None:
    """Return the record of the last change of one of these fields."""
    records = AuditRecord.objects.filter(tenant=tenant, action="tenant.changed")
    for one in records.order_by("-at", "-id")[:50]:
        before, after = one.before or {}, one.after or {}
        if any(before.get(name) != after.get(name) for name in fields):
            return one
    return None
