"""Reads across tenants. Everything returned here is limited to what the user may see."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Q, QuerySet

from tenants.errors import NotFound
from tenants.models import (
    ApiToken,
    AuditRecord,
    GpuType,
    Membership,
    Queue,
    Quota,
    Tenant,
    User,
)
from tenants.permissions import Access, access_of, lineage

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    Viewer = User | AnonymousUser


def visible_tenants(user: "Viewer") -> QuerySet[Tenant]:
    """Tenants in which the user holds a role, own or inherited; all for operators."""
    return _limited(Tenant.objects.select_related("parent"), access_of(user), "id")


def visible_names(user: "Viewer") -> frozenset[str]:
    return frozenset(visible_tenants(user).values_list("name", flat=True))


def tenant_by_name(access: Access, name: str) -> Tenant:
    """Return one tenant by name; raise NotFound also when the user may not see it."""
    return seen(access, Tenant.objects.select_related("parent").filter(name=name).first(), name)


def seen(access: Access, tenant: Tenant | None, name: str) -> Tenant:
    """Return `tenant`, found under this name (None = not found); raise as `tenant_by_name`."""
    if tenant is None or not access.may_view(tenant.pk):
        raise NotFound(
            f"There is no tenant “{name}” that you may see. GET /api/v1/tenants lists yours."
        )
    return tenant


def gpu_type_by_name(name: str) -> GpuType:
    gpu_type = GpuType.objects.filter(name=name).first()
    if gpu_type is None:
        raise NotFound(f"There is no GPU type “{name}”. {known_gpu_types_hint()}")
    return gpu_type


def known_gpu_types_hint(known: Collection[str] | None = None, limit: int = 20) -> str:
    """Name some GPU types, for a user who gave an unknown one. Pass `known` if they are already
    loaded."""
    if known is None:
        known = GpuType.objects.values_list("name", flat=True)[: limit + 1]
    names = list(known)
    if not names:
        return "No GPU types are known yet; an operator adds them with POST /api/v1/gpu-types."
    more = ", …" if len(names) > limit else ""
    return f"Known GPU types: {', '.join(names[:limit])}{more}."


def visible_quotas(user: "Viewer") -> QuerySet[Quota]:
    return _limited(Quota.objects.select_related("tenant", "gpu_type"), access_of(user), "tenant")


def visible_queues(user: "Viewer") -> QuerySet[Queue]:
    return _limited(Queue.objects.select_related("tenant"), access_of(user), "tenant")


def queue_by_name(user: "Viewer", tenant: str, name: str) -> Queue:
    """Return one queue of a tenant; raise NotFound also when the user may not see it."""
    queue = visible_queues(user).filter(tenant__name=tenant, name=name).first()
    if queue is None:
        raise NotFound(
            f"There is no queue “{tenant}/{name}” that you may see. GET /api/v1/queues lists yours."
        )
    return queue


def last_quota_record(tenant: Tenant, gpu_type: GpuType) -> AuditRecord | None:
    """Return the record of a quota's last change; for users who may change the quota."""
    return _quota_records(tenant, gpu_type).first()


def first_quota_record_since(tenant: Tenant, gpu_type: GpuType, version: int) -> AuditRecord | None:
    """Return the record of the change that ended a version of one quota (0 = there was none).

    For users who may change the quota. None when no change did, or the audit trail does not say.
    """
    records = _quota_records(tenant, gpu_type)
    if version:
        return records.filter(before__version=version).first()
    return records.filter(before__isnull=True).first()


def _quota_records(tenant: Tenant, gpu_type: GpuType) -> QuerySet[AuditRecord]:
    return AuditRecord.objects.filter(
        tenant=tenant,
        subject=f"{tenant.name} / {gpu_type.name}",
        action__in=("quota.changed", "quota.deleted"),
    )


def visible_audit_records(user: "Viewer") -> QuerySet[AuditRecord]:
    """Operators see all records; tenant admins those of their tenants and of tenants below."""
    access = access_of(user)
    records = AuditRecord.objects.select_related("tenant", "preview")
    if access.operator:
        return records
    return records.filter(tenant__in=[t for t in access.parents if access.may_administer(t)])


def members_of(tenant: Tenant) -> QuerySet[Membership]:
    """Members of exactly this tenant; members of its ancestors act here too."""
    return Membership.objects.filter(tenant=tenant).select_related("user", "tenant")


class ShownMembers(NamedTuple):
    """Memberships by which people may act in a tenant: those in tenants that the reader may see,
    and the number of the others."""

    shown: QuerySet[Membership]
    hidden: int


def members_with_inherited(
    tenant: Tenant, access: Access, parents: Mapping[int, int | None]
) -> ShownMembers:
    """Return the members of a tenant and of its ancestors, by name."""
    acting = Membership.objects.filter(tenant__in=list(lineage(parents, tenant.pk)))
    visible = access.visible_tenants()
    shown = acting if visible is None else acting.filter(tenant__in=visible)
    ordered = shown.select_related("user", "tenant").order_by("user__username", "id")
    return ShownMembers(ordered, acting.count() - shown.count())


def memberships_of(user: User) -> QuerySet[Membership]:
    return Membership.objects.filter(user=user).select_related("tenant").order_by("tenant__name")


def tokens_of(user: User) -> QuerySet[ApiToken]:
    return ApiToken.objects.filter(user=user).select_related("tenant")


def parents_by_id() -> dict[int, int | None]:
    """Return the whole tree, {tenant: its parent}, as primary keys."""
    return dict(Tenant.objects.order_by().values_list("id", "parent_id"))


class Given(NamedTuple):
    """A value that a tenant passes on to all tenants below that set none, and the tenant's name."""

    value: Any
    by: str


# A tenant that leaves these fields unset inherits them from its nearest ancestor that sets them,
# else from the cluster.
INHERITED = ("min_runtime_s", "namespace")


def given_to_all() -> dict[str, dict[str, Given | None]]:
    """Return {field of INHERITED: {tenant: the value that holds for it}}; None = the cluster's."""
    rows = list(Tenant.objects.order_by().values("id", "name", "parent_id", *INHERITED))
    parents = {row["id"]: row["parent_id"] for row in rows}
    found: dict[str, dict[str, Given | None]] = {}
    for field in INHERITED:
        own = {r["id"]: Given(r[field], r["name"]) for r in rows if r[field] is not None}
        found[field] = {
            row["name"]: next((own[t] for t in lineage(parents, row["id"]) if t in own), None)
            for row in rows
        }
    return found


def subtree_ids(tenant_id: int, parents: Mapping[int, int | None] | None = None) -> set[int]:
    """Return a tenant and all tenants below it, as primary keys."""
    tree = parents_by_id() if parents is None else parents
    return {t for t in tree if tenant_id in lineage(tree, t)} | {tenant_id}


def id_begins(text: str) -> Q:
    """Match rows whose UUID begins with this text; none when the text cannot begin one."""
    digits = text.lower().replace("-", "")
    if not 0 < len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        return Q(pk__in=())
    # The smallest and the largest UUID with this hexadecimal prefix.
    return Q(id__range=(digits.ljust(32, "0"), digits.ljust(32, "f")))


def _limited(rows: QuerySet, access: Access, field: str) -> QuerySet:
    visible = access.visible_tenants()
    return rows if visible is None else rows.filter(Q(**{f"{field}__in": visible}))
