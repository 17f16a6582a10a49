"""Writing into a draft, and discarding it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import F
from django.utils import timezone

from tenants.errors import FieldError, Invalid, NotFound
from tenants.models import DraftCell, DraftTenant, GpuType, Quota, QuotaDraft, Tenant, User
from tenants.permissions import access_of
from tenants.services import locks
from tenants.services.drafts.wanted import terms_beside
from tenants.services.moves import typed as places
from tenants.services.moves.typed import LONGEST as LONGEST_PLACE
from tenants.services.quotas import may_change
from tenants.services.tenants import may_change_tenant
from tenants.services.transactions import unit_of_work

MOST_CELLS = 200  # as many as one preview can handle; tenants count as well
LONGEST = 64  # characters in a cell
KEPT = timedelta(days=30)  # since the last write to a draft


@dataclass(frozen=True, slots=True)
class DraftEdit:
    """What one cell is to say.

    `typed`: a guarantee or the text of a cell (`cell_text`); None = remove the cell from the draft.
    `terms`: other mode and limits as typed ("" = no limit); None = keep those in the draft. What
    the text of the cell sets takes precedence.

    `version`: of the quota as it was read; 0 = there was none. None = keep the version with which
    the edit began; for a cell that is new to the draft, the current one.
    """

    tenant: Tenant
    gpu_type: GpuType
    typed: str | None
    version: int | None = None
    terms: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class TenantEdit:
    """The changed ones among a tenant's "parent" ("" = a root) and "weight", as typed.

    A field that is None, or equals the stored value, leaves the draft. `over`: overwrite what
    somebody else has set meanwhile.
    """

    tenant: Tenant
    fields: Mapping[str, str | None]
    over: bool = False


@dataclass(frozen=True, slots=True)
class PageWrite:
    """Which write of which page this is: of one page's writes the latest wins, in whatever order
    they arrive."""

    tab: str
    stamp: int


def draft_of(user: User) -> QuotaDraft | None:
    return QuotaDraft.objects.filter(author=user).first()


def edit_draft(
    actor: User,
    edits: Sequence[DraftEdit] = (),
    *,
    tenants: Sequence[TenantEdit] = (),
    reason: str | None = None,
    write: PageWrite | None = None,
    dry_run: bool = False,
) -> QuotaDraft:
    """Write cells and tenants of the actor's draft, and the reason for applying it; keep everything
    else.

    Raises NotFound, NotAllowed and Invalid (`cells` and `tenants` by position, and `reason`).
    """
    access = access_of(actor)
    faults = []
    for at, edit in enumerate(edits):
        if edit.typed is None:
            continue
        may_change(access, edit.tenant)
        if len(edit.typed) > LONGEST:
            text = f"Use at most {LONGEST} characters."
            faults.append(FieldError(("cells", at, "guaranteed"), text))
    for at, one in enumerate(tenants):
        set_to = {name: text for name, text in one.fields.items() if text is not None}
        if not set_to:
            continue  # removing something from a draft needs no rights
        may_change_tenant(access, one.tenant, set_to)
        faults += [
            FieldError(("tenants", at, name), f"Use at most {LONGEST_PLACE} characters.")
            for name, text in set_to.items()
            if len(text) > LONGEST_PLACE
        ]
    if reason is not None and len(reason) > 2000:
        faults.append(FieldError(("reason",), "Use at most 2,000 characters."))
    if faults:
        raise Invalid.fields(faults)
    with unit_of_work(dry_run):
        draft, _ = QuotaDraft.objects.get_or_create(author=actor)
        if not _taken(draft, write):
            return draft
        locks.keep(Tenant, [e.tenant.pk for e in edits] + [t.tenant.pk for t in tenants])
        locks.keep(GpuType, [edit.gpu_type.pk for edit in edits])
        changed = _write(draft, edits)
        changed |= _write_tenants(draft, tenants)
        if reason is not None and reason != draft.reason:
            draft.reason = reason
            changed = True
        if changed:
            draft.version += 1
            draft.save(update_fields=["reason", "version", "updated_at"])
            _check_size(draft)
    return draft


def discard_draft(
    actor: User, *, write: PageWrite | None = None, dry_run: bool = False
) -> QuotaDraft | None:
    """Remove all edits from the actor's draft; return None when there never was one."""
    with unit_of_work(dry_run):
        draft = draft_of(actor)
        if draft is not None and _taken(draft, write):
            empty(draft)
    return draft


def locked_draft(actor: User) -> QuotaDraft:
    """Return the actor's draft, locked against other writes until the transaction ends."""
    draft, _ = QuotaDraft.objects.get_or_create(author=actor)
    _taken(draft, None)
    return draft


def empty(draft: QuotaDraft) -> None:
    """Empty a locked draft. The row stays because it knows which writes arrive too late."""
    draft.cells.all().delete()
    draft.tenants.all().delete()
    draft.reason = ""
    draft.version += 1
    draft.save(update_fields=["reason", "version", "updated_at"])


def forget_old_drafts() -> int:
    """Delete drafts with no write for a long time; return how many."""
    old = QuotaDraft.objects.filter(updated_at__lt=timezone.now() - KEPT)
    _, deleted = old.delete()
    return deleted.get("tenants.QuotaDraft", 0)


def _taken(draft: QuotaDraft, write: PageWrite | None) -> bool:
    """Lock the draft for a write; return False when a later write of the same page came first."""
    rows = QuotaDraft.objects.filter(pk=draft.pk)
    if write is None:
        rows.update(version=F("version"))
    elif not rows.exclude(tab=write.tab, stamp__gte=write.stamp).update(
        tab=write.tab, stamp=write.stamp
    ):
        return False
    draft.refresh_from_db()
    return True


def _write(draft: QuotaDraft, edits: Sequence[DraftEdit]) -> bool:
    """Write the cells; return whether anything changed."""
    cells = {(cell.tenant_id, cell.gpu_type_id): cell for cell in draft.cells.all()}
    now = _versions(edits)
    changed = False
    for edit in edits:
        key = (edit.tenant.pk, edit.gpu_type.pk)
        cell = cells.get(key)
        if edit.typed is None:
            if cell is not None:
                cell.delete()
                del cells[key]
                changed = True
            continue
        began = cell.version if cell else now.get(key, 0)
        version = began if edit.version is None else edit.version
        kept = cell.terms if cell else {}
        terms = terms_beside(edit.typed, kept if edit.terms is None else edit.terms)
        if cell is None:
            cells[key] = DraftCell.objects.create(
                draft=draft,
                tenant=edit.tenant,
                gpu_type=edit.gpu_type,
                typed=edit.typed,
                terms=terms,
                version=version,
            )
        elif (cell.typed, cell.version, cell.terms) != (edit.typed, version, terms):
            cell.typed, cell.version, cell.terms = edit.typed, version, terms
            cell.save(update_fields=["typed", "version", "terms", "edited_at"])
        else:
            continue
        changed = True
    return changed


def _write_tenants(draft: QuotaDraft, edits: Sequence[TenantEdit]) -> bool:
    """Write the tenants; return whether anything changed."""
    rows = {row.tenant_id: row for row in draft.tenants.all()}
    stored = Tenant.objects.select_related("parent").in_bulk([edit.tenant.pk for edit in edits])
    changed = False
    for edit in edits:
        if edit.tenant.pk not in stored:
            raise NotFound(f"Tenant “{edit.tenant.name}” was deleted meanwhile.")
        now = places.as_typed(stored[edit.tenant.pk])
        row = rows.get(edit.tenant.pk) or DraftTenant(
            draft=draft, tenant=edit.tenant, fields={}, base={}
        )
        fields, base = dict(row.fields), dict(row.base)
        for name, text in edit.fields.items():
            if text is None or places.is_same(name, text, now[name]):
                fields.pop(name, None)
                base.pop(name, None)
                continue
            fields[name] = text.strip()
            if edit.over or name not in base:
                base[name] = now[name]
        if (fields, base) == (row.fields, row.base):
            continue
        changed = True
        if fields:
            row.fields, row.base = fields, base
            row.save()
            rows[edit.tenant.pk] = row
        else:
            row.delete()
            del rows[edit.tenant.pk]
    return changed


def _versions(edits: Sequence[DraftEdit]) -> dict[tuple[int, int], int]:
    """Return {(tenant, GPU type): version of its quota} for those that have one."""
    tenants = {edit.tenant.pk for edit in edits if edit.typed is not None and edit.version is None}
    rows = Quota.objects.filter(tenant__in=tenants).order_by()
    return {(t, g): v for t, g, v in rows.values_list("tenant_id", "gpu_type_id", "version")}


def _check_size(draft: QuotaDraft) -> None:
    cells, tenants = draft.cells.count(), draft.tenants.count()
    if cells + tenants > MOST_CELLS:
        what = f"quotas and tenants, and this one would have {cells} and {tenants}"
        if not tenants:
            what = f"quotas, and this one would have {cells}"
        raise Invalid.field(
            "cells" if cells else "tenants",
            f"A draft holds at most {MOST_CELLS} {what}. Apply or discard its edits first.",
        )
