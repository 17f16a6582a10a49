"""What tenants and their users hold now, and held in the past if there is a half-life.

A holder's share of a GPU model is what it holds divided by the capacity. With a half-life, the
average of what it held before is added; use that is one half-life older counts half as much. The
dominant share is the largest over the GPU models; a tenant's is divided by its weight
(standings.py).
"""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from scheduling.engine.native import mypyc_attr
from scheduling.engine.types import JobRequest

if TYPE_CHECKING:
    from scheduling.engine.queue.standings import Standings

User = tuple[str, str]  # tenant, user of it
Holder = TypeVar("Holder", str, User)


class Shares(NamedTuple):
    """Dominant shares that order jobs of equal priority; holders that are not named have 0.

    `tenants`: the weighted share of each tenant with all tenants below it. Under the name
    `of_its_own(tenant)`: the share of the jobs that a tenant with members submits itself. `users`
    is None if the users of a tenant are not told apart.
    """

    tenants: Mapping[str, float]
    users: Mapping[User, float] | None = None


NO_SHARES = Shares({})

NOTHING: Final = 1e-3  # GPU-milli; smaller amounts are rounding errors of sums


def of_its_own(tenant: str) -> str:
    """Return the name for the share of a tenant's own jobs; no tenant has such a name."""
    return f"{tenant}/"


class Held(Generic[Holder]):
    """What each holder holds by GPU model (milli-GPU).

    `past` is what it held on average until the last call of `pass_time`.
    """

    def __init__(self) -> None:
        self.now: dict[tuple[Holder, str], float] = {}
        self.past: dict[tuple[Holder, str], float] = {}
        self._at: float | None = None

    def change(self, holder: Holder, model: str, milli: float) -> None:
        key = (holder, model)
        held = self.now.get(key, 0.0) + milli
        if abs(held) > NOTHING:
            self.now[key] = held
        else:
            self.now.pop(key, None)

    def pass_time(self, now: float, half_life_s: float) -> None:
        """Add the time since the last call, during which nothing changed, to the past."""
        if self._at is not None and half_life_s > 0 and now > self._at:
            kept = math.exp2(-(now - self._at) / half_life_s)
            for key in sorted(self.past.keys() | self.now.keys()):
                left = self.past.get(key, 0.0) * kept + self.now.get(key, 0) * (1 - kept)
                self.past[key] = left
        self._at = now

    def amounts(self, half_life_s: float) -> dict[tuple[Holder, str], float]:
        """Return what counts towards shares, in milli-GPU by holder and GPU model."""
        counted: dict[tuple[Holder, str], float] = dict(self.now)
        for key, milli in self.past.items() if half_life_s > 0 else ():
            counted[key] = counted.get(key, 0.0) + milli
        return counted


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
class Usage:
    """What tenants hold, and with `of_users` what each of their users holds."""

    def __init__(self, *, of_users: bool) -> None:
        self.tenants = Held[str]()
        self.users: Held[User] | None = Held() if of_users else None
        self.elsewhere: dict[tuple[User, str], float] = {}  # held by jobs of other scopes, by model
        self.standings: Standings | None = None  # updated with this during a walk over the queue

    def change(self, job: JobRequest, model: str, milli: float) -> None:
        """Count places that a job got (`milli` > 0) or gave back (`milli` < 0)."""
        self._change((job.tenant, job.user), model, milli)

    def change_elsewhere(self, held: Iterable[tuple[str, str, str, float]]) -> None:
        """Replace what jobs of other scopes hold: (tenant, user, GPU model, milli-GPU)."""
        before = self.elsewhere
        self.elsewhere = {((tenant, user), model): milli for tenant, user, model, milli in held}
        for key in sorted(before.keys() | self.elsewhere.keys()):
            self._change(*key, self.elsewhere.get(key, 0) - before.get(key, 0))

    def _change(self, user: User, model: str, milli: float) -> None:
        self.tenants.change(user[0], model, milli)
        if self.users is not None:
            self.users.change(user, model, milli)
        if self.standings is not None:
            self.standings.change(user, model, milli)

    @property
    def past(self) -> tuple[tuple[str, str, str, float], ...]:
        """The past use, in the form that `remember` takes."""
        if self.users is None:
            return tuple(
                (name, "", model, milli) for (name, model), milli in self.tenants.past.items()
            )
        return tuple((*user, model, milli) for (user, model), milli in self.users.past.items())

    def remember(self, past: Iterable[tuple[str, str, str, float]]) -> None:
        """Replace the past use: (tenant, user, GPU model, average milli-GPU)."""
        users = {((tenant, user), model): milli for tenant, user, model, milli in past}
        tenants: dict[tuple[str, str], float] = {}
        for ((tenant, _), model), milli in users.items():
            tenants[tenant, model] = tenants.get((tenant, model), 0.0) + milli
        self.tenants.past = tenants
        if self.users is not None:
            self.users.past = users

    def pass_time(self, now: float, half_life_s: float) -> None:
        """Add the time since the last call, during which nothing changed, to the past."""
        self.tenants.pass_time(now, half_life_s)
        if self.users is not None:
            self.users.pass_time(now, half_life_s)
