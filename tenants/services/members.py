"""Give, change and remove roles."""

from typing import Any

from tenants.errors import Conflict, Invalid, NotAllowed, NotFound
from tenants.models import Membership, Role, Tenant, User
from tenants.permissions import access_of, lineage
from tenants.selectors import parents_by_id
from tenants.services import audit, locks
from tenants.services.transactions import unit_of_work


def set_member(
    actor: User,
    tenant: Tenant,
    username: str,
    role: str,
    *,
    reason: str = "",
    source: str,
    dry_run: bool = False,
) -> tuple[Membership, bool]:
    """Give a user a role in a tenant and all below it, in place of the one held there.

    If groups of the OpenID provider gave the previous role, they no longer change it. Returns the
    membership and whether it is new. Raises NotFound, NotAllowed, Invalid, and Conflict when only
    operators could administer the tenant afterwards.
    """
    _may_administer(actor, tenant)
    if role not in Role.values:
        raise Invalid.field("role", f"Choose one of {', '.join(Role.values)}.")
    user = User.objects.filter(username=username, is_active=True).first()
    if user is None:
        raise NotFound(f"There is no active user “{username}”. An operator creates users.")
    with unit_of_work(dry_run):
        _one_after_the_other(tenant)
        before = Membership.objects.filter(tenant=tenant, user=user).first()
        if before is not None and role != Role.TENANT_ADMIN:
            _refuse_to_lock_out(actor, before, user.get_username())
        member, created = Membership.objects.update_or_create(
            tenant=tenant, user=user, defaults={"role": role, "by_group": False}
        )
        tell(actor, "member.set", tenant, user, before, member, reason, source)
    return member, created


def remove_member(
    actor: User,
    tenant: Tenant,
    username: str,
    *,
    reason: str = "",
    source: str,
    dry_run: bool = False,
) -> None:
    """Remove the role held in exactly this tenant; inherited roles stay. Raises NotFound,
    NotAllowed, and Conflict as `set_member` does."""
    _may_administer(actor, tenant)
    with unit_of_work(dry_run):
        _one_after_the_other(tenant)
        member = (
            Membership.objects.select_related("user", "tenant")
            .filter(tenant=tenant, user__username=username)
            .first()
        )
        if member is None:
            raise NotFound(f"“{username}” has no role of their own in “{tenant.name}”.")
        _refuse_to_lock_out(actor, member, username)
        tell(actor, "member.removed", tenant, member.user, member, None, reason, source)
        member.delete()


def _may_administer(actor: User, tenant: Tenant) -> None:
    access = access_of(actor)
    if not access.may_view(tenant.pk):
        raise NotFound(f"There is no tenant “{tenant.name}” that you may see.")
    if not access.may_administer(tenant.pk):
        raise NotAllowed(
            f"Only tenant admins of “{tenant.name}” and operators can change its members."
        )


def _one_after_the_other(tenant: Tenant) -> None:
    """Serialize changes of a tenant's members: two admins must not remove each other at once."""
    locks.in_turn(Tenant, [tenant.pk])


def _refuse_to_lock_out(actor: User, member: Membership, username: str) -> None:
    """Raise Conflict when this role is the last by which anybody administers its tenant. Operators
    may remove it: they administer all tenants."""
    if member.role != Role.TENANT_ADMIN or access_of(actor).operator:
        return
    above = list(lineage(parents_by_id(), member.tenant_id))
    others = Membership.objects.filter(
        tenant__in=above, role=Role.TENANT_ADMIN, user__is_active=True
    ).exclude(pk=member.pk)
    if not others.exists():
        raise Conflict(
            f"“{username}” is the last tenant admin of “{member.tenant.name}”. Give somebody "
            "else that role first, or ask an operator."
        )


def tell(
    actor: User,
    action: str,
    tenant: Tenant,
    user: User,
    before: Membership | None,
    after: Membership | None,
    reason: str,
    source: str,
) -> None:
    audit.record(
        actor,
        action,
        f"{tenant.name} / {user.get_username()}",
        tenant=tenant,
        before=_document(before),
        after=_document(after),
        reason=reason.strip(),
        source=source,
    )


def _document(member: Membership | None) -> dict[str, Any] | None:
    return None if member is None else {"role": str(member.role)}
