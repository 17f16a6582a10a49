"""Give, change and take away roles."""

from typing import Any

from tenants.errors import Invalid, NotAllowed, NotFound
from tenants.models import Membership, Role, Tenant, User
from tenants.permissions import access_of
from tenants.services import audit
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
    """Give a user a role in a tenant and all below it, in place of the one held there, which groups
    of the OpenID provider may have given: they do not change it any more.

    Returns the membership and whether it is new. Raises NotFound, NotAllowed, Invalid.
    """
    _may_administer(actor, tenant)
    if role not in Role.values:
        raise Invalid.field("role", f"Choose one of {', '.join(Role.values)}.")
    user = User.objects.filter(username=username, is_active=True).first()
    if user is None:
        raise NotFound(f"There is no active user “{username}”. An operator creates users.")
    with unit_of_work(dry_run):
        before = Membership.objects.filter(tenant=tenant, user=user).first()
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
    """Take away the role held in exactly this tenant; roles from above stay."""
    _may_administer(actor, tenant)
    with unit_of_work(dry_run):
        member = (
            Membership.objects.select_related("user")
            .filter(tenant=tenant, user__username=username)
            .first()
        )
        if member is None:
            raise NotFound(f"“{username}” has no role of their own in “{tenant.name}”.")
        tell(actor, "member.removed", tenant, member.user, member, None, reason, source)
        member.delete()


def _may_administer(actor: User, tenant: Tenant) -> None:
    access = access_of(actor)
    if not access.may_view(tenant.pk):
        raise NotFound(f"There is no tenant “{tenant.name}” that you may see.")
    if not access.may_administer(tenant.pk):
        raise NotAllowed(f"Only tenant admins of “{tenant.name}” and operators set its members.")


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
