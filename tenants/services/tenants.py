"""Create, change, move and delete tenants."""

from collections.abc import Iterable, Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Min

from tenants import facts
from tenants.errors import Conflict, Invalid, NotAllowed, NotFound
from tenants.models import GpuType, Quota, Tenant, User
from tenants.permissions import Access, access_of, lineage
from tenants.selectors import parents_by_id, tenant_by_name
from tenants.services import audit, locks, quotas
from tenants.services.approval import check_alone
from tenants.services.moves.guaranteed import guaranteed_by_type, moved_milli
from tenants.services.namespaces import refuse_unfit_namespace
from tenants.services.previews.kept import attach, digest_of_change
from tenants.services.quota_sums import Parents, excess_of
from tenants.services.quota_terms import as_document as as_document_of_quota
from tenants.services.tenant_terms import (
    FELT_BY_JOBS,
    FIELDS,
    OPERATORS_FIELDS,
    OWN_FIELDS,
    TenantTerms,
    as_document,
    planned,
)
from tenants.services.transactions import checked, unit_of_work

DEFAULTS = TenantTerms()


def create_tenant(
    actor: User,
    name: str,
    terms: TenantTerms = DEFAULTS,
    *,
    source: str,
    dry_run: bool = False,
) -> Tenant:
    """Create a tenant; only operators create one without a parent."""
    access = access_of(actor)
    above = _parent(access, terms.parent)
    if above is None and not access.operator:
        raise NotAllowed("Only operators can create a tenant without a parent.")
    if above is not None and not access.may_administer(above.pk):
        raise NotAllowed(
            f"Creating tenants below “{above.name}” needs the role tenant-admin there."
        )
    columns = terms.columns()
    _refuse_operators_fields(access, [name for name in columns if columns[name] is not None])
    tenant = checked(Tenant(name=name, parent=above, **columns))
    with unit_of_work(dry_run):
        take_turns()
        refuse_unfit_namespace(tenant)
        try:
            with transaction.atomic():
                tenant.save(force_insert=True)
        except IntegrityError:
            raise Conflict(
                f"There is already a tenant “{name}”. Names are unique; choose another."
            ) from None
        audit.record(
            actor,
            "tenant.created",
            name,
            tenant=tenant,
            after=as_document(tenant),
            source=source,
        )
    return tenant


def change_tenant(
    actor: User,
    tenant: Tenant,
    changes: dict[str, Any],
    *,
    reason: str = "",
    source: str,
    dry_run: bool = False,
) -> Tenant:
    """Change some of FIELDS; `parent` is the name of the new parent, None makes a root.

    Raises NotFound, NotAllowed, Invalid, Conflict (a cycle, or quotas that no longer fit).
    """
    access = access_of(actor)
    may_change_tenant(access, tenant, changes)
    with unit_of_work(dry_run):
        take_turns()
        current = Tenant.objects.select_related("parent").filter(id=tenant.pk).first()
        if current is None:
            raise _not_found(tenant)
        tenant = current
        before = as_document(tenant)
        if "parent" in changes:
            tenant.parent = _new_parent(access, tenant, changes["parent"])
            check_alone(moved_milli({tenant.pk: tenant.parent_id}))
        for field in FIELDS:
            if field in changes and field != "parent":
                setattr(tenant, field, changes[field])
        checked(tenant)
        if "namespace" in changes:
            refuse_unfit_namespace(tenant)
        changed = Tenant.objects.filter(id=tenant.pk, version=tenant.version).update(
            version=tenant.version + 1, **{field: getattr(tenant, field) for field in FIELDS}
        )
        if not changed:
            raise Conflict(f"Somebody else has just changed “{tenant.name}”. Read it again.")
        tenant.version += 1
        record = audit.record(
            actor,
            "tenant.changed",
            tenant.name,
            tenant=tenant,
            before=before,
            after=as_document(tenant),
            reason=reason.strip(),
            source=source,
        )
        if not FELT_BY_JOBS.isdisjoint(changes):
            attach(digest_of_change({}, {tenant.name: planned(tenant)}), [record])
    return tenant


def delete_tenant(
    actor: User, tenant: Tenant, *, reason: str = "", source: str, dry_run: bool = False
) -> None:
    """Delete a tenant that has no children and never had a job; its quotas go with it."""
    access = access_of(actor)
    may_change_tenant(access, tenant, {"parent": None})
    with unit_of_work(dry_run):
        if not locks.alone(Tenant, tenant.pk):
            raise _not_found(tenant)
        _refuse_deletion(tenant)
        for quota in Quota.objects.filter(tenant=tenant).select_related("gpu_type"):
            audit.record(
                actor,
                "quota.deleted",
                f"{tenant.name} / {quota.gpu_type.name}",
                tenant=tenant,
                before=as_document_of_quota(quota),
                reason=reason.strip(),
                source=source,
            )
        audit.record(
            actor,
            "tenant.deleted",
            tenant.name,
            tenant=tenant.parent,
            before=as_document(tenant),
            reason=reason.strip(),
            source=source,
        )
        if not tenant.delete()[0]:
            raise _not_found(tenant)


def take_turns() -> None:
    """Serialize changes of tenants: two concurrent moves could close a cycle, and two tenants could
    get the same namespace. All lock the same row."""
    Tenant.objects.filter(id=Tenant.objects.aggregate(Min("id"))["id__min"]).update(
        version=F("version")
    )


def _parent(access: Access, name: str | None) -> Tenant | None:
    """Return the tenant that a caller names as a parent; raise Invalid naming the field."""
    if name is None:
        return None
    try:
        return tenant_by_name(access, name)
    except NotFound as error:
        raise Invalid.field("parent", error.detail) from None


def may_change_tenant(access: Access, tenant: Tenant, changes: Mapping[str, Any]) -> None:
    """Raise NotFound or NotAllowed when somebody may not change these fields of a tenant."""
    if not access.may_view(tenant.pk):
        raise _not_found(tenant)
    above = access.may_administer_from_above(tenant.pk)
    if not (above or (access.may_administer(tenant.pk) and changes.keys() <= OWN_FIELDS)):
        raise NotAllowed(
            f"You may not change this field of “{tenant.name}”: changing the title needs the "
            "role tenant-admin there; all other fields need tenant-admin of a tenant above it, "
            "or an operator."
        )
    _refuse_operators_fields(access, changes)


def _refuse_operators_fields(access: Access, names: Iterable[str]) -> None:
    for name in names:
        if name in OPERATORS_FIELDS and not access.operator:
            raise NotAllowed(OPERATORS_FIELDS[name])


def _not_found(tenant: Tenant) -> NotFound:
    return NotFound(f"There is no tenant “{tenant.name}” that you may see.")


def _new_parent(access: Access, tenant: Tenant, name: str | None) -> Tenant | None:
    new = _parent(access, name)
    if new is None and not access.operator:
        raise NotAllowed("Only operators can move a tenant to the top of the tree.")
    parents = parents_by_id()
    if new is not None:
        if not access.may_administer(new.pk):
            raise NotAllowed(
                f"Moving tenants below “{new.name}” needs the role tenant-admin there."
            )
        if tenant.pk in lineage(parents, new.pk):
            raise Conflict(
                f"“{tenant.name}” cannot be moved below “{new.name}”, which is "
                f"{'the same tenant' if new.pk == tenant.pk else 'below it'}. Choose another "
                "parent."
            )
    _refuse_broken_sums(access, parents, tenant, new)
    return new


def _refuse_broken_sums(
    access: Access, parents: Parents, tenant: Tenant, new: Tenant | None
) -> None:
    """Raise Conflict unless the quotas that move along fit under the quotas above their new
    place."""
    moved = {**parents, tenant.pk: new.pk if new else None}
    locks.in_turn(GpuType, GpuType.objects.values_list("id", flat=True))
    by_type = guaranteed_by_type()
    for gpu_type in GpuType.objects.all():
        given = by_type.get(gpu_type.pk, {})
        installed = facts.scheduling().installed_milli(gpu_type.name)
        excess = excess_of(moved, given, given, installed, parents_before=parents)
        if excess is None:
            continue
        over = quotas.owner_of(excess, access)
        raise Conflict(
            f"There, {gpu_type.name} guaranteed below {over or 'all roots'} would be "
            f"{excess.promised / 1000:g} GPUs of {excess.exists / 1000:g}. Lower the quotas of "
            "the moved tenants, or raise those above them."
        )


def _refuse_deletion(tenant: Tenant) -> None:
    below = list(tenant.children.values_list("name", flat=True)[:5])
    if below:
        raise Conflict(
            f"“{tenant.name}” has tenants below it ({', '.join(below)}). Move or delete them first."
        )
    jobs = facts.scheduling().job_count(tenant.pk)
    if jobs.open:
        raise Conflict(
            f"“{tenant.name}” has {jobs.open} jobs that are not over "
            f"({', '.join(jobs.examples)}). Cancel them, or wait until they end."
        )
    if jobs.ended:
        raise Conflict(
            f"“{tenant.name}” has {jobs.ended} jobs in its history, which is kept. Set is_active "
            "to false instead."
        )
