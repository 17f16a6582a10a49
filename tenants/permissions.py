"""Who may do what: pure functions of a user's memberships and the tenant tree.

A membership holds for its tenant and all tenants below. Operators may do everything. What a user
may not see does not exist for them: callers answer NotFound, not NotAllowed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tenants.models import Membership, Role, Tenant, User

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

_STRENGTH: dict[str, int] = {Role.VIEWER: 1, Role.ENGINEER: 2, Role.TENANT_ADMIN: 3}


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of one user at one instant. Tenants are given by primary key."""

    user_id: int
    operator: bool
    parents: Mapping[int, int | None]
    roles: Mapping[int, str]
    # Tenants that a token may administer as from above although it holds no role above them.
    from_above: frozenset[int] = frozenset()

    def role_in(self, tenant_id: int | None) -> str | None:
        """Return the strongest role that holds in a tenant, own or inherited; None = no access."""
        held = [self.roles[t] for t in lineage(self.parents, tenant_id) if t in self.roles]
        return strongest(held)

    def may_view(self, tenant_id: int) -> bool:
        return self.operator or self.role_in(tenant_id) is not None

    def may_submit(self, tenant_id: int) -> bool:
        return self.operator or self.role_in(tenant_id) in (Role.ENGINEER, Role.TENANT_ADMIN)

    def may_cancel(self, tenant_id: int, submitter_id: int | None) -> bool:
        """Engineers cancel, hold and change their own jobs; tenant admins all jobs of their
        tenants."""
        return self.may_administer(tenant_id) or (
            submitter_id == self.user_id and self.may_submit(tenant_id)
        )

    def may_administer(self, tenant_id: int) -> bool:
        """Whether the user may change members, the title, and tenants below."""
        return self.operator or self.role_in(tenant_id) == Role.TENANT_ADMIN

    def may_administer_from_above(self, tenant_id: int) -> bool:
        """Whether the user may do what a tenant may not do for itself: set its quota and weight,
        move it, delete it."""
        return (
            self.operator
            or tenant_id in self.from_above
            or self.role_in(self.parents.get(tenant_id)) == Role.TENANT_ADMIN
        )

    def visible_tenants(self) -> frozenset[int] | None:
        """Return the primary keys of the tenants this user may see; None = all of them."""
        if self.operator:
            return None
        return frozenset(t for t in self.parents if self.role_in(t) is not None)


def strongest(roles: Iterable[str]) -> str | None:
    """Return the role that includes the others; None when there is none."""
    return max(roles, key=lambda role: _STRENGTH[role], default=None)


def lineage(parents: Mapping[int, int | None], tenant_id: int | None) -> Iterator[int]:
    """Yield a tenant, its parent, … up to the root. Ends even if the tree is damaged."""
    seen: set[int] = set()
    while tenant_id is not None and tenant_id not in seen:
        seen.add(tenant_id)
        yield tenant_id
        tenant_id = parents.get(tenant_id)


def access_of(
    user: "User | AnonymousUser", parents: Mapping[int, int | None] | None = None
) -> Access:
    """Read the rights of a user: two queries, none for operators. `parents` of all tenants saves
    one query."""
    if not isinstance(user, User) or user.pk is None or not user.is_active:
        return Access(0, False, {}, {})
    if user.is_operator:
        return Access(user.pk, True, {}, {})
    if parents is None:
        parents = dict(Tenant.objects.order_by().values_list("id", "parent_id"))
    roles = Membership.objects.filter(user=user).order_by().values_list("tenant_id", "role")
    return access_within(user, parents, dict(roles))


def access_within(
    user: User, parents: Mapping[int, int | None], roles: Mapping[int, str]
) -> Access:
    """Return the rights of an active user with these roles. `parents` must also contain all
    ancestors of those tenants."""
    if user.is_operator:
        return Access(user.pk, True, {}, {})
    access = Access(user.pk, False, parents, roles)
    if user.only_in is None:
        return access
    tenant_id, operator = user.only_in
    return _within(tenant_id, replace(access, operator=operator))


def _within(tenant_id: int, access: Access) -> Access:
    """Limit rights to a tenant and all below it; an operator's become those of a tenant admin
    there."""
    below = [t for t in access.parents if tenant_id in lineage(access.parents, t)]
    held = {t: Role.TENANT_ADMIN if access.operator else access.role_in(t) for t in below}
    above = access.may_administer_from_above(tenant_id)
    return replace(
        access,
        operator=False,
        roles={t: str(role) for t, role in held.items() if role is not None},
        from_above=frozenset({tenant_id} if above else ()),
    )
