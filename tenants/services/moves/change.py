"""Move tenants, set their weights and change quotas together, all or none.

The sums of quotas are checked once, on the final state. So a tenant may move below one whose quota
the same change raises, and two tenants may swap places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import F

from tenants import facts
from tenants.effects import PlannedTenant
from tenants.errors import Conflict, DomainError, Invalid, NotAllowed, NotFound
from tenants.models import AuditRecord, GpuType, Tenant, User
from tenants.permissions import Access, access_of, lineage
from tenants.selectors import parents_by_id, subtree_ids, tenant_by_name
from tenants.services import audit, locks
from tenants.services.moves.conflicts import overtaken_place
from tenants.services.moves.guaranteed import guaranteed_by_type
from tenants.services.previews.kept import attach, digest_of_change
from tenants.services.quota_sheet import SheetChange, SheetRefused, carried_out
from tenants.services.quota_sums import Overpromise, excess_of
from tenants.services.quotas import QuotaChangeResult, excess_sentence, owner_of
from tenants.services.tenant_terms import as_document, planned
from tenants.services.tenants import may_change_tenant, take_turns
from tenants.services.transactions import unit_of_work


@dataclass(frozen=True, slots=True)
class PlaceChange:
    """A change of one tenant's place or weight.

    `fields`: the changed ones among "parent" (a name or None) and "weight". `base`: their values
    when the edit began, as typed. `reverts`: the record of the change that this one reverts.
    """

    tenant: Tenant
    fields: Mapping[str, Any]
    base: Mapping[str, str]
    reverts: AuditRecord | None = None


@dataclass(frozen=True, slots=True)
class PlaceChanged:
    """The tenant as it is, or would be, now; `record` None = nothing changed."""

    tenant: Tenant
    record: AuditRecord | None

    @property
    def planned(self) -> PlannedTenant:
        return planned(self.tenant)


class ChangeRefused(Exception):
    """Nothing was changed. `tenants[i]` and `quotas[i]` say why that change is impossible."""

    def __init__(self, tenants: dict[int, DomainError], quotas: dict[int, DomainError]) -> None:
        super().__init__("; ".join(e.detail for e in (*tenants.values(), *quotas.values())))
        self.tenants = tenants
        self.quotas = quotas


@dataclass(frozen=True, slots=True)
class ChangedTogether:
    """The result of each change, by its position; withdrawn quotas have none."""

    tenants: Mapping[int, PlaceChanged]
    quotas: Mapping[int, QuotaChangeResult]


def change_together(
    actor: User,
    tenants: Sequence[PlaceChange],
    quotas: Sequence[SheetChange],
    *,
    reason: str,
    source: str,
    agreed: bool = False,
    dry_run: bool = False,
) -> ChangedTogether:
    """Change tenants and quotas in one transaction.

    `agreed`: the actor's rights were checked when the change was agreed on. The caller checks
    whether it needs a second person. Raises ChangeRefused with the errors of all changes.
    """
    with unit_of_work(dry_run):
        if not tenants:
            try:
                return ChangedTogether({}, carried_out(actor, quotas, agreed=agreed))
            except SheetRefused as refused:
                raise ChangeRefused({}, refused.errors) from None
        return _carried_out(actor, tenants, quotas, reason, source, agreed=agreed)


# --- in the transaction ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Stand:
    """The tree, and the guarantees of each GPU type."""

    parents: dict[int, int | None]
    given: dict[int, dict[int, int]]


def _stand() -> _Stand:
    return _Stand(parents_by_id(), guaranteed_by_type())


def _carried_out(
    actor: User,
    tenants: Sequence[PlaceChange],
    quotas: Sequence[SheetChange],
    reason: str,
    source: str,
    *,
    agreed: bool,
) -> ChangedTogether:
    take_turns()
    locks.keep(Tenant, [one.tenant.pk for one in tenants] + [q.change.tenant.pk for q in quotas])
    # Moving a tenant changes the sums of every GPU type.
    locks.in_turn(GpuType, GpuType.objects.values_list("id", flat=True))
    before, access = _stand(), access_of(actor)
    errors: dict[int, DomainError] = {}
    found: dict[int, Tenant] = {}
    for at, one in enumerate(tenants):
        try:
            found[at] = _wanted(access, one, agreed=agreed)
        except DomainError as error:
            errors[at] = error
    errors |= _cycles(before.parents, found)
    quota_errors: dict[int, DomainError] = {}
    done = {
        at: _write(actor, tenants[at], row, reason, source)
        for at, row in found.items()
        if at not in errors
    }
    results: dict[int, QuotaChangeResult] = {}
    try:
        results = carried_out(actor, quotas, agreed=agreed, in_part=True)
    except SheetRefused as refused:
        quota_errors = refused.errors
    if not errors and not quota_errors:
        errors, quota_errors = _broken_sums(access, before, _stand(), tenants, quotas)
    if errors or quota_errors:
        raise ChangeRefused(errors, quota_errors)
    records = [one.record for one in done.values() if one.record]
    records += [one.record for one in results.values() if one.record]
    terms = {one.change.key: one.terms for one in quotas}
    then = {one.tenant.name: one.planned for one in done.values()}
    attach(digest_of_change(terms, then), records)
    return ChangedTogether(done, results)


def _wanted(access: Access, change: PlaceChange, *, agreed: bool) -> Tenant:
    """Return the tenant as it should become, not stored yet. Raises NotFound, NotAllowed, Invalid
    (parent) and Conflict (somebody else changed it first)."""
    tenant = Tenant.objects.select_related("parent").filter(pk=change.tenant.pk).first()
    if tenant is None:
        raise NotFound(f"Tenant “{change.tenant.name}” was deleted meanwhile.")
    if not agreed:
        may_change_tenant(access, tenant, change.fields)
    if faster := overtaken_place(tenant, change.fields, change.base):
        raise Conflict(faster.told)
    if "parent" in change.fields:
        tenant.parent = _above(access, tenant, change.fields["parent"], agreed=agreed)
    tenant.weight = change.fields.get("weight", tenant.weight)
    return tenant


def _above(access: Access, tenant: Tenant, name: str | None, *, agreed: bool) -> Tenant | None:
    if agreed:
        above = Tenant.objects.filter(name=name).first() if name else None
        if name and above is None:
            raise Invalid.field("parent", f"Tenant “{name}” was deleted. Choose another one.")
        return above
    if name is None:
        if not access.operator and tenant.parent_id is not None:
            raise NotAllowed("Only operators can move a tenant to the top of the tree.")
        return None
    try:
        above = tenant_by_name(access, name)
    except NotFound as error:
        raise Invalid.field("parent", error.detail) from None
    if above.pk != tenant.parent_id and not access.may_administer(above.pk):
        raise NotAllowed(f"Moving tenants below “{name}” needs the role tenant-admin there.")
    return above


def _cycles(
    parents: Mapping[int, int | None], found: Mapping[int, Tenant]
) -> dict[int, DomainError]:
    """Return an error for each tenant that would be below itself once all have moved."""
    after = {**parents, **{row.pk: row.parent_id for row in found.values()}}
    errors: dict[int, DomainError] = {}
    for at, row in found.items():
        if row.parent_id is None or row.parent_id == parents.get(row.pk):
            continue
        if row.pk in lineage(after, row.parent_id):
            above = row.parent
            assert above is not None
            where = "the same tenant" if above.pk == row.pk else "below it"
            errors[at] = Invalid.field(
                "parent",
                f"“{row.name}” cannot be moved below “{above.name}”, which is {where}. Choose "
                "another tenant.",
            )
    return errors


def _write(actor: User, change: PlaceChange, row: Tenant, reason: str, source: str) -> PlaceChanged:
    stored = Tenant.objects.select_related("parent").get(pk=row.pk)
    if (stored.parent_id, stored.weight) == (row.parent_id, row.weight):
        return PlaceChanged(stored, None)
    Tenant.objects.filter(pk=row.pk).update(
        version=F("version") + 1, parent=row.parent, weight=row.weight
    )
    record = audit.record(
        actor,
        "tenant.changed",
        row.name,
        tenant=row,
        before=as_document(stored),
        after=as_document(row),
        reason=reason.strip(),
        source=source,
        reverts=change.reverts,
    )
    return PlaceChanged(row, record)


# --- the sums -------------------------------------------------------------------------------------
def _broken_sums(
    access: Access,
    before: _Stand,
    after: _Stand,
    tenants: Sequence[PlaceChange],
    quotas: Sequence[SheetChange],
) -> tuple[dict[int, DomainError], dict[int, DomainError]]:
    """For each GPU type of which more would be guaranteed than exists, return errors of the changes
    that cause it."""
    errors: dict[int, DomainError] = {}
    quota_errors: dict[int, DomainError] = {}
    for gpu_type in GpuType.objects.filter(pk__in=[*before.given, *after.given]):
        was, then = before.given.get(gpu_type.pk, {}), after.given.get(gpu_type.pk, {})
        installed = facts.scheduling().installed_milli(gpu_type.name)
        excess = excess_of(after.parents, was, then, installed, parents_before=before.parents)
        if excess is None:
            continue
        owner = owner_of(excess, access)
        told = excess_sentence(excess, owner, gpu_type.name)
        raise_it = f", or guarantee more to {owner}" if owner else ""
        moves = _blamed(before, after, gpu_type.pk, tenants, excess)
        for at in moves:
            detail = f"{told} Lower the quotas that move along{raise_it}."
            errors.setdefault(at, Invalid.field("parent", detail))
        for at, quota in enumerate(quotas):
            key = quota.change.tenant.pk
            more = then.get(key, 0) > was.get(key, 0)
            above = lineage(after.parents, after.parents.get(key))
            raised = more and (excess.over is None or excess.over in above)
            cut = not more and key == excess.over
            if quota.change.gpu_type.pk == gpu_type.pk and (raised or cut or not moves):
                detail = f"{told} Guarantee less below{raise_it}."
                quota_errors.setdefault(at, Invalid.field("guaranteed", detail))
    return errors, quota_errors


def _blamed(
    before: _Stand,
    after: _Stand,
    gpu_type: int,
    tenants: Sequence[PlaceChange],
    excess: Overpromise,
) -> list[int]:
    """Return the changes that moved quotas of a GPU type to where too much of it is guaranteed; if
    these cannot be told apart, all that moved any."""
    over = excess.over
    moved, came, new = list[int](), list[int](), list[int]()
    for at, one in enumerate(tenants):
        old, now = before.parents.get(one.tenant.pk), after.parents.get(one.tenant.pk)
        below = subtree_ids(one.tenant.pk, after.parents)
        if old == now or below.isdisjoint(after.given.get(gpu_type, {})):
            continue
        moved.append(at)
        if over is None or over in lineage(after.parents, now):
            came.append(at)
            if over is not None and over not in lineage(before.parents, old):
                new.append(at)
    return new or came or moved
