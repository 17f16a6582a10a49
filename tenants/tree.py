"""The tree of tenants, read once, with the values that each tenant inherits."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tenants.models import Tenant
from tenants.permissions import lineage
from tenants.selectors import subtree_ids


class Branch(NamedTuple):
    """A tenant of the tree. None: no limit or no namespace of its own."""

    id: int
    name: str
    parent_id: int | None
    namespace: str | None
    max_priority: int | None
    max_waiting: int | None


class Tree:
    """All tenants, or some with all their ancestors."""

    def __init__(self, tenants: Iterable[Tenant] | None = None) -> None:
        rows = (
            Tenant.objects.order_by().values_list(*Branch._fields)
            if tenants is None
            else [[getattr(tenant, name) for name in Branch._fields] for tenant in tenants]
        )
        self._of: dict[int, Branch] = {row[0]: Branch(*row) for row in rows}
        self.parents: Mapping[int, int | None] = {b.id: b.parent_id for b in self._of.values()}
        self._owners = {b.namespace: b for b in self._of.values() if b.namespace is not None}
        self._ids = {b.name: b.id for b in self._of.values()}

    def id_of(self, name: str) -> int | None:
        """Return the id of the tenant of this name."""
        return self._ids.get(name)

    def owner_of(self, namespace: str) -> Branch | None:
        """Return the tenant that has this namespace as its own."""
        return self._owners.get(namespace)

    def above(self, tenant_id: int) -> list[Branch]:
        """Return a tenant, its parent, … up to the root."""
        return [self._of[t] for t in lineage(self.parents, tenant_id) if t in self._of]

    def below(self, tenant_id: int) -> set[int]:
        """Return the ids of a tenant and of all below it."""
        return subtree_ids(tenant_id, self.parents)
