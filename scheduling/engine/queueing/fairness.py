"""Dominant shares of tenants, by weight, and of their users, past use counted with a half-life.

The share of a GPU model is what somebody holds over the capacity; with a half-life it is the
average of that over the past, older use counting half as much every half-life. The dominant
share is the largest over the models, of a tenant divided by its weight.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from scheduling.engine.types import MILLI, JobRequest, Tenant

User = tuple[str, str]  # tenant, user of it
Holder = TypeVar("Holder", str, User)


class Shares(NamedTuple):
    """Dominant shares by which jobs of equal priority are ordered; who is not named has 0.

    `users` None: the users of a tenant are not told apart.
    """

    tenants: Mapping[str, float]
    users: Mapping[User, float] | None = None


NO_SHARES = Shares({})


class Held(Generic[Holder]):
    """What every holder holds, and held, by GPU model (milli-GPU)."""

    def __init__(self) -> None:
        self.now: dict[tuple[Holder, str], int] = {}
        self._past: dict[tuple[Holder, str], float] = {}
        self._at: float | None = None

    def change(self, holder: Holder, model: str, milli: int) -> None:
        key = (holder, model)
        held = self.now.get(key, 0) + milli
        if held:
            self.now[key] = held
        else:
            self.now.pop(key, None)

    def remember(self, past: Mapping[tuple[Holder, str], float]) -> None:
        """Replace what was held before the last call of `pass_time`, on average."""
        self._past = dict(past)

    def pass_time(self, now: float, half_life_s: float) -> None:
        """Let the time since the last call pass, in which nothing changed."""
        if self._at is not None and half_life_s > 0 and now > self._at:
            kept = math.exp2(-(now - self._at) / half_life_s)
            for key in sorted(self._past.keys() | self.now.keys()):
                left = self._past.get(key, 0.0) * kept + self.now.get(key, 0) * (1 - kept)
                self._past[key] = left
        self._at = now

    def shares(self, capacity: Mapping[str, int], half_life_s: float) -> dict[Holder, float]:
        """Dominant share by holder; `capacity` is GPUs by model. Who holds nothing has 0."""
        amounts: Mapping[tuple[Holder, str], float] = self._past if half_life_s > 0 else self.now
        found: dict[Holder, float] = {}
        for (holder, model), milli in amounts.items():
            if capacity.get(model):
                found[holder] = max(found.get(holder, 0.0), milli / MILLI / capacity[model])
        return found


class Usage:
    """What tenants hold; `of_users`: and each user of them."""

    def __init__(self, *, of_users: bool) -> None:
        self.tenants = Held[str]()
        self.users: Held[User] | None = Held() if of_users else None

    def change(self, job: JobRequest, model: str, milli: int) -> None:
        """Places of a job were given to it, or given back."""
        self.tenants.change(job.tenant, model, milli)
        if self.users is not None:
            self.users.change((job.tenant, job.user), model, milli)

    def remember(self, past: Iterable[tuple[str, str, str, float]]) -> None:
        """Replace what was held until now: (tenant, user, GPU model, milli-GPU on average)."""
        users = {((tenant, user), model): milli for tenant, user, model, milli in past}
        tenants: dict[tuple[str, str], float] = {}
        for ((tenant, _), model), milli in users.items():
            tenants[tenant, model] = tenants.get((tenant, model), 0.0) + milli
        self.tenants.remember(tenants)
        if self.users is not None:
            self.users.remember(users)

    def pass_time(self, now: float, half_life_s: float) -> None:
        """Let the time since the last call pass, in which nothing changed."""
        self.tenants.pass_time(now, half_life_s)
        if self.users is not None:
            self.users.pass_time(now, half_life_s)

    def shares(
        self, tenants: Mapping[str, Tenant], capacity: Mapping[str, int], half_life_s: float
    ) -> Shares:
        """The dominant shares; `capacity` is GPUs by model."""
        by_weight = {
            tenant: share / max(tenants[tenant].weight, 1e-9)
            for tenant, share in self.tenants.shares(capacity, half_life_s).items()
            if tenant in tenants
        }
        users = self.users
        return Shares(by_weight, None if users is None else users.shares(capacity, half_life_s))
