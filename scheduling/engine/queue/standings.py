"""Shares of tenants, of their parents and of their users, updated as jobs start.

A tenant is compared with its siblings by what it and all tenants below it hold, divided by its
weight. If a tenant with members submits jobs itself, these jobs are compared with the members, with
weight 1. Users are compared with the other users of their tenant.
"""

from collections.abc import Callable, Iterable, Mapping

from scheduling.engine.queue.fair_share import Shares, Usage, User, of_its_own
from scheduling.engine.types import MILLI, TenantSpec

# Digits to which shares are compared: smaller differences only come from rounding.
DIGITS = 12
SMALLEST_WEIGHT = 1e-9

Lineage = Callable[[str], Iterable[str]]


class Standing:
    """One branch of the tree: its weighted dominant share, and what it holds (milli-GPU by model).

    `above`: the parent branch; None at the root.
    """

    __slots__ = ("above", "held", "share", "weight")

    def __init__(self, above: "Standing | None", weight: float) -> None:
        self.above = above
        self.weight = max(weight, SMALLEST_WEIGHT)
        self.held: dict[str, float] = {}
        self.share = 0.0


class Standings:
    """What everybody holds now.

    `lowered` grows whenever somebody's share may have become smaller. `of_users`: the users of a
    tenant are told apart. `capacity`: all GPUs of the cluster, by model. With a half-life, what was
    held in the past counts as well.
    """

    def __init__(
        self,
        usage: Usage,
        tenants: Mapping[str, TenantSpec],
        lineage: Lineage,
        capacity: Mapping[str, int],
        half_life_s: float,
    ) -> None:
        self._known = tenants
        self._lineage = lineage
        self._capacity = {model: gpus * MILLI for model, gpus in capacity.items() if gpus}
        self._members = {t.parent for t in tenants.values() if t.parent is not None}
        self.of_users = usage.users is not None
        self.tenants: dict[str, Standing] = {}
        self.own: dict[str, Standing] = {}  # tenants with members: their own jobs alone
        self.users: dict[User, Standing] = {}
        self.lowered = 0
        for (tenant, model), milli in usage.tenants.amounts(half_life_s).items():
            self._add(self.of_tenant(tenant), model, milli)
        if usage.users is not None:
            for (user, model), milli in usage.users.amounts(half_life_s).items():
                self._count(self._of_user(user), model, milli)

    def change(self, user: User, model: str, milli: float) -> None:
        """Count places that a user got (`milli` > 0) or gave back (`milli` < 0)."""
        if milli < 0:
            self.lowered += 1
        self._add(self.of_tenant(user[0]), model, milli)
        if self.of_users:
            self._count(self._of_user(user), model, milli)

    def of(self, tenant: str, user: str) -> Standing:
        """Return the standing of the user if users are told apart, otherwise of the tenant."""
        return self._of_user((tenant, user)) if self.of_users else self.of_tenant(tenant)

    def path(self, tenant: str) -> list[Standing]:
        """Return the branches from the root down to the one of the tenant's own jobs."""
        at: Standing | None = self.of_tenant(tenant)
        path: list[Standing] = []
        while at is not None:
            path.append(at)
            at = at.above
        path.reverse()
        return path

    def of_tenant(self, tenant: str) -> Standing:
        """Return the branch of the tenant's own jobs."""
        branch = self._branch(tenant)
        if tenant not in self._members:
            return branch
        own = self.own.get(tenant)
        if own is None:
            own = self.own[tenant] = Standing(branch, 1.0)
        return own

    def with_more(self, at: Standing, demand: Mapping[str, int]) -> float:
        """Return the share of a branch if it held `demand` more (milli-GPU by GPU model)."""
        most = 0.0
        for model in {*at.held, *demand}:
            capacity = self._capacity.get(model)
            if capacity:
                most = max(most, (at.held.get(model, 0.0) + demand.get(model, 0)) / capacity)
        return round(most / at.weight, DIGITS)

    def shares(self) -> Shares:
        """Return the shares of all who hold something or did."""
        tenants = {name: at.share for name, at in self.tenants.items() if at.held}
        tenants |= {of_its_own(name): at.share for name, at in self.own.items() if at.held}
        users = {name: at.share for name, at in self.users.items()} if self.of_users else None
        return Shares(tenants, users)

    def _branch(self, tenant: str) -> Standing:
        found = self.tenants.get(tenant)
        if found is None:
            above: Standing | None = None
            for name in [*self._lineage(tenant)][::-1]:
                found = self.tenants.get(name)
                if found is None:
                    known = self._known.get(name)
                    found = Standing(above, 1.0 if known is None else known.weight)
                    self.tenants[name] = found
                above = found
            assert found is not None
        return found

    def _of_user(self, user: User) -> Standing:
        found = self.users.get(user)
        if found is None:
            found = self.users[user] = Standing(self.of_tenant(user[0]), 1.0)
        return found

    def _add(self, leaf: Standing, model: str, milli: float) -> None:
        at: Standing | None = leaf
        while at is not None:
            self._count(at, model, milli)
            at = at.above

    def _count(self, at: Standing, model: str, milli: float) -> None:
        held = at.held
        held[model] = held.get(model, 0.0) + milli
        most = 0.0
        for name, amount in held.items():
            capacity = self._capacity.get(name)
            if capacity and amount > most * capacity:
                most = amount / capacity
        at.share = round(most / at.weight, DIGITS)
