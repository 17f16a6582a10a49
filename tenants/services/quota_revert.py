"""Revert a recorded change of a quota.

Only the fields of that change are set back, and only where nobody has changed them since: other
changes stay, and no later change is silently overwritten.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenants.errors import Conflict
from tenants.models import AuditRecord, GpuType, Quota, QuotaMode, Tenant, User
from tenants.services.quota_terms import TITLES, QuotaChange, QuotaTerms, as_document
from tenants.services.quotas import change_quota, delete_quota
from tenants.services.transactions import unit_of_work

FIELDS = TITLES

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reversal:
    """What a revert does to the quota as it is now. Documents of the audit trail, in GPUs; None =
    no quota. `version` is that of `now`; 0 = there is none."""

    tenant: Tenant
    gpu_type: GpuType
    now: Document | None
    then: Document | None
    version: int


@dataclass(frozen=True, slots=True)
class Reverted:
    """The quota as it is (or would be) now, None when it is withdrawn, and warnings."""

    quota: Quota | None
    warnings: tuple[str, ...]


def reversal_of(record: AuditRecord) -> Reversal:
    """Return what reverting the change of `record` means now.

    Raises Conflict when it is impossible, naming the obstacle.
    """
    tenant, gpu_type = _of(record)
    quota = Quota.objects.filter(tenant=tenant, gpu_type=gpu_type).first()
    now, before, after = as_document(quota), record.before, record.after
    if now is None or before is None or after is None:
        then = _whole(record, now)
    else:
        then = {**now, **{name: before[name] for name in _undone(record, now)}}
    return Reversal(tenant, gpu_type, now, then, quota.version if quota else 0)


def revert_quota_change(
    actor: User,
    record: AuditRecord,
    *,
    expected_version: int,
    reason: str,
    source: str,
    dry_run: bool = False,
) -> Reverted:
    """Revert the change of `record`, as a change of its own.

    `expected_version` is that of the quota as it was shown. Raises as `reversal_of` and
    `change_quota`.
    """
    with unit_of_work(dry_run):
        found = reversal_of(record)
        change = QuotaChange(
            found.tenant, found.gpu_type, expected_version, reason, source, reverts=record
        )
        if found.then is None:
            return Reverted(None, delete_quota(actor, change))
        result = change_quota(actor, change, QuotaTerms.in_gpus(found.then))
        return Reverted(result.quota, result.warnings)


def said(field: str, document: Mapping[str, Any] | None) -> str:
    """Return a field of a quota in words; "none" when there is no quota."""
    if document is None:
        return "none"
    value = document[field]
    if field == "mode":
        return QuotaMode(value).label
    return "no limit" if value is None else f"{value:,.13g}"


def said_of(fields: Mapping[str, Any]) -> list[str]:
    """Return the fields of a document other than the guarantee in words: "Mode Isolated"."""
    return [f"{FIELDS[n]} {said(n, fields)}" for n in FIELDS if n in fields and n != "guaranteed"]


def _of(record: AuditRecord) -> tuple[Tenant, GpuType]:
    """Return whose quota the record is about; raise Conflict when the tenant or GPU type is
    gone."""
    name, _, model = record.subject.partition(" / ")
    if record.tenant is None:
        raise Conflict(f"Tenant “{name}” and its quotas have been deleted since.")
    gpu_type = GpuType.objects.filter(name=model).first()
    if gpu_type is None:
        raise Conflict(f"GPU type “{model}” has been deleted since, so it can have no quota.")
    return record.tenant, gpu_type


def _whole(record: AuditRecord, now: Document | None) -> Document | None:
    """Return the quota after the revert when the change gave or withdrew it, or when there is none
    now."""
    before, after = record.before, record.after
    if after is None:
        if now is None:
            return before
        there = f"The quota exists again: {_told(now)}.{_since(record)}"
        raise Conflict(f"{there} Edit it instead.")
    if now is None:
        if before is None:
            raise Conflict(f"The quota is already gone, as before this change.{_since(record)}")
        raise Conflict(f"The quota has been deleted since.{_since(record)} Revert that first.")
    changed = [name for name in FIELDS if now[name] != after[name]]
    if changed:
        raise Conflict(" ".join(_conflict(record, name, now) for name in changed))
    return None


def _undone(record: AuditRecord, now: Document) -> list[str]:
    """Return the fields to set back; raise Conflict when others changed them first, or nothing is
    left."""
    before, after = record.before or {}, record.after or {}
    changed = [name for name in FIELDS if before[name] != after[name]]
    conflicts = [name for name in changed if now[name] not in (before[name], after[name])]
    if conflicts:
        raise Conflict(" ".join(_conflict(record, name, now) for name in conflicts))
    undone = [name for name in changed if now[name] == after[name]]
    if not undone:
        raise Conflict(f"The quota already has its values from before this change.{_since(record)}")
    return undone


def _conflict(record: AuditRecord, field: str, now: Document) -> str:
    return (
        f"{FIELDS[field]} was set to {said(field, record.after)} by this change and is "
        f"{said(field, now)} now.{_since(record, field)} Revert that first, or edit the quota."
    )


def _since(record: AuditRecord, field: str | None = None) -> str:
    """Return who last changed the quota, or that field of it."""
    later = AuditRecord.objects.filter(
        tenant=record.tenant,
        action__startswith="quota.",
        subject=record.subject,
        at__gt=record.at,
    ).order_by("-at", "-id")
    for one in later:
        if field is None or (one.before or {}).get(field) != (one.after or {}).get(field):
            return f" {one.actor_name} changed it at {one.at:%Y-%m-%d %H:%M:%S} UTC."
    return ""


def _told(document: Document) -> str:
    return f"{said('guaranteed', document)} GPUs guaranteed, {said('mode', document).lower()}"
