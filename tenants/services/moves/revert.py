"""Revert a recorded change of a tenant's place or weight.

As for quotas, only the fields of that change are set back, and only where nobody has changed them
since.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenants.errors import Conflict, Invalid
from tenants.models import AuditRecord, Tenant, User
from tenants.services.approval import check_alone
from tenants.services.audit import reason_faults
from tenants.services.moves.change import (
    ChangeRefused,
    PlaceChange,
    PlaceChanged,
    change_together,
)
from tenants.services.moves.guaranteed import moved_milli
from tenants.services.moves.typed import TITLES, as_typed, is_same, typed
from tenants.services.transactions import unit_of_work


@dataclass(frozen=True, slots=True)
class TenantReversal:
    """What a revert sets: `fields` with the name of the parent and the weight. `base`: their
    current values, as typed."""

    tenant: Tenant
    fields: Mapping[str, Any]
    base: Mapping[str, str]


def tenant_reversal(record: AuditRecord) -> TenantReversal:
    """Return what reverting the change of `record` means now. Raises Conflict when it is
    impossible, naming the obstacle."""
    if record.tenant is None:
        raise Conflict(f"Tenant “{record.subject}” has been deleted since.")
    tenant = Tenant.objects.select_related("parent").get(pk=record.tenant.pk)
    before, after, now = _said(record.before), _said(record.after), as_typed(tenant)
    changed = [name for name in TITLES if before[name] != after[name]]
    if not changed:
        raise Conflict("This change set neither the tenant's place nor its weight.")
    conflicts = [name for name in changed if now[name] not in (before[name], after[name])]
    if conflicts:
        told = (
            f"{TITLES[name]} was set to {after[name] or 'none'} by this change and is "
            f"{now[name] or 'none'} now."
            for name in conflicts
        )
        raise Conflict(" ".join(told) + " Revert the later change first, or edit the tenant.")
    undone = [name for name in changed if now[name] == after[name]]
    if not undone:
        raise Conflict("The tenant already has its values from before this change.")
    then: dict[str, Any] = {"parent": before["parent"] or None, "weight": float(before["weight"])}
    return TenantReversal(
        tenant, {name: then[name] for name in undone}, {name: now[name] for name in undone}
    )


def is_reversible(record: AuditRecord) -> bool:
    """Return whether the record is of a change of place or weight."""
    if record.action != "tenant.changed" or not record.before or not record.after:
        return False
    before, after = _said(record.before), _said(record.after)
    return any(not is_same(name, before[name], after[name]) for name in TITLES)


def _said(document: Mapping[str, Any] | None) -> dict[str, str]:
    """Return both fields of a document of the audit trail, as typed."""
    document = document or {}
    return typed(document.get("parent"), document.get("weight", 1.0))


def revert_tenant_change(
    actor: User, record: AuditRecord, *, reason: str, source: str, dry_run: bool = False
) -> PlaceChanged:
    """Revert the change of `record`, as a change of its own. Raises as `tenant_reversal`, Invalid
    (reason), NotAllowed and Conflict."""
    if faults := reason_faults(reason):
        raise Invalid.fields(faults)
    with unit_of_work(dry_run):
        found = tenant_reversal(record)
        change = PlaceChange(found.tenant, found.fields, found.base, reverts=record)
        if "parent" in found.fields:
            above = Tenant.objects.filter(name=found.fields["parent"]).first()
            check_alone(moved_milli({found.tenant.pk: above.pk if above else None}))
        try:
            done = change_together(actor, [change], (), reason=reason, source=source)
        except ChangeRefused as refused:
            raise refused.tenants[0] from None
    return done.tenants[0]
