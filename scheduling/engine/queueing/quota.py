"""Static quota admission: who may hold how many GPUs of which model (paper 3.2.1).

Amounts are milli-GPU. Every quota row is an account; an account's parent is the row of the
nearest ancestor tenant for the same GPU model, and accounts of one parent form a lending group.
Use counts at the tenant's own account and at every account above it. A parent's own jobs stand
in its group as one more account, guaranteed what the parent's quota leaves its children.

What an account uses beyond its guarantee is borrowed. A borrower is admitted only while its
group has idle quota to lend; what the group cannot lend, the account above has to borrow. An
owner's own use is never held up by what it lent: its borrowers are then overdrawn and the first
to be reclaimed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduling.engine.types import Quota, QuotaMode, Tenant
from scheduling.engine.verdict import Reason

UNLIMITED = 1 << 62


@dataclass(slots=True, eq=False)
class Group:
    """Accounts that lend to each other; `lendable` and `borrowed` are sums over them."""

    members: list["Account"] = field(default_factory=list)
    lendable: int = 0
    borrowed: int = 0


@dataclass(slots=True, eq=False)
class Account:
    """The quota of one tenant for one GPU model and what is used of it."""

    tenant: str
    gpu_model: str
    guaranteed: int
    shared: bool
    borrow_limit: int
    lend_limit: int
    group: Group
    parent: "Account | None" = None
    used: int = 0
    over: int = 0  # borrowed
    lendable: int = 0
    lends: int = 0  # while nothing is used of it
    below: Group | None = None  # the accounts of its children
    own_jobs: "Account | None" = None  # the account of a parent's own jobs

    def after(self, used: int, lack: int | None) -> tuple[int, int]:
        """(borrowed, lendable) with this use; `lack` is what the group below borrows beyond what
        it lends (negative = what it has left), None for an account without children."""
        over = used - self.guaranteed
        if lack is not None and lack > over:
            over = lack
        if over > 0:
            return over, 0
        return 0, min(self.lend_limit, -over) if self.shared else 0


# What a job ahead waits for: idle quota that a group has to lend, or the use of one account.
Kept = frozenset[Account | Group]


class Refusal(NamedTuple):
    """Why quota refuses a request: the account that says no and its numbers (milli-GPU)."""

    reason: Reason
    account: Account
    asked: int
    allowed: int


@dataclass(frozen=True, slots=True)
class Loan:
    """`milli` of `gpu_model` that `borrower` uses of `lender`'s quota, through `job_id`.

    `lender` "" = nobody: the quota was taken back or cut while the job ran. `since` is the start
    of the job.
    """

    borrower: str
    lender: str
    gpu_model: str
    milli: int
    job_id: str
    since: float


@dataclass(slots=True)
class Booking:
    """What one job holds, by GPU model."""

    tenant: str
    since: float
    held: dict[str, int] = field(default_factory=dict)


# An account of a chain as it would be after a request: what is used and borrowed, what its group
# then borrows beyond what it lends, and whether the request itself borrows here, rather than
# lending less than before.
_Step = tuple[Account, int, int, int, bool]


class QuotaBook:
    """All accounts and bookings of one cluster.

    `version` grows with every change, `loosened` with those that may allow more than before,
    `tightened` with those that may allow less, `structure` when tenants or quotas were replaced;
    `booked` and `returned` are what ever was, in milli-GPU by GPU model.
    Giving back never refuses what was allowed, and booking never allows what was refused. What is
    refused stays so until as much is given back as it asks beyond what is allowed, what is allowed
    until more than its `slack` is booked.
    """

    def __init__(self) -> None:
        self.version = 0
        self.loosened = 0
        self.tightened = 0
        self.structure = 0
        self.booked: dict[str, int] = {}
        self.returned: dict[str, int] = {}
        self.tenants: dict[str, Tenant] = {}
        self.limits_jobs = False  # whether any tenant may run only so many jobs at once
        self.jobs_elsewhere: tuple[tuple[str, int], ...] = ()  # (tenant, jobs)
        self._accounts: dict[tuple[str, str], Account] = {}
        self._chains: dict[tuple[str, str], tuple[Account, ...]] = {}
        self._ceilings: dict[tuple[str, str], int] = {}
        self.bookings: dict[str, Booking] = {}

    # --- structure ----------------------------------------------------------------------------
    def replace(
        self,
        tenants: Iterable[Tenant],
        quotas: Iterable[Quota],
        used_elsewhere: Iterable[tuple[str, str, int]] = (),
    ) -> None:
        """Take over a new tenant tree and new quotas; all that is held is booked anew."""
        self.tenants = {t.id: t for t in tenants}
        self.limits_jobs = any(t.max_running is not None for t in self.tenants.values())
        self._chains.clear()
        self._ceilings.clear()
        self._accounts = {}
        for q in quotas:
            self._accounts[q.tenant, q.gpu_model] = Account(
                q.tenant,
                q.gpu_model,
                max(0, q.guaranteed),
                q.mode is QuotaMode.SHARED,
                UNLIMITED if q.borrow_limit is None else q.borrow_limit,
                UNLIMITED if q.lend_limit is None else q.lend_limit,
                Group(),
            )
        self._join_groups()
        for tenant, model, milli in used_elsewhere:
            self._add(tenant, model, milli)
        for booking in self.bookings.values():
            for model, milli in booking.held.items():
                self._add(booking.tenant, model, milli)
        self.version += 1
        self.loosened += 1
        self.tightened += 1
        self.structure += 1

    def _join_groups(self) -> None:
        groups: dict[tuple[str, str], Group] = {}
        children: dict[tuple[str, str], list[Account]] = {}
        for key in sorted(self._accounts):
            account = self._accounts[key]
            owner = next(self._owners(account.tenant, account.gpu_model, above=True), None)
            account.parent = owner
            at = (owner.tenant if owner else "", account.gpu_model)
            account.group = groups.setdefault(at, Group())
            account.group.members.append(account)
            if owner:
                children.setdefault((owner.tenant, owner.gpu_model), []).append(account)
        for key, below in sorted(children.items()):
            parent = self._accounts[key]
            rest = max(0, parent.guaranteed - sum(c.guaranteed for c in below))
            parent.own_jobs = Account(
                parent.tenant, parent.gpu_model, rest, True, UNLIMITED, UNLIMITED,
                below[0].group, parent,
            )  # fmt: skip
            parent.below = below[0].group
            parent.below.members.append(parent.own_jobs)
        for account in sorted(self._accounts.values(), key=self._depth, reverse=True):
            if account.own_jobs is not None:
                self._open(account.own_jobs)
            self._open(account)

    def _depth(self, account: Account) -> tuple[int, str, str]:
        depth, above = 0, account.parent
        while above is not None and depth <= len(self._accounts):
            depth, above = depth + 1, above.parent
        return depth, account.tenant, account.gpu_model

    def _open(self, account: Account) -> None:
        """What an unused account lends; the accounts below it must be open."""
        below = account.below
        lack = None if below is None else below.borrowed - below.lendable
        account.over, account.lendable = account.after(0, lack)
        account.lends = account.lendable
        account.group.borrowed += account.over
        account.group.lendable += account.lendable

    def lineage(self, tenant: str) -> Iterator[str]:
        """The tenant and its ancestors, nearest first; a tree that bites its tail ends there."""
        seen: set[str] = set()
        at: str | None = tenant
        while at is not None and at not in seen:
            seen.add(at)
            yield at
            known = self.tenants.get(at)
            at = known.parent if known else None

    def _owners(self, tenant: str, model: str, *, above: bool = False) -> Iterator[Account]:
        for t in self.lineage(tenant):
            if above and t == tenant:
                continue
            if (t, model) in self._accounts:
                yield self._accounts[t, model]

    def chain(self, tenant: str, model: str) -> tuple[Account, ...]:
        """Accounts that a job of the tenant is charged to, nearest first; () = no quota at all."""
        found = self._chains.get((tenant, model))
        if found is None:
            owners = tuple(self._owners(tenant, model))
            if owners and owners[0].own_jobs is not None:
                owners = (owners[0].own_jobs, *owners)
            found = self._chains[tenant, model] = owners
        return found

    # --- asking -------------------------------------------------------------------------------
    def _steps(self, tenant: str, model: str, milli: int) -> list[_Step]:
        lack: int | None = None
        borrows = False
        steps: list[_Step] = []
        for account in self.chain(tenant, model):
            group, used = account.group, account.used + milli
            over, lendable = account.after(used, lack)
            by_use = max(0, account.used - account.guaranteed)
            borrows = over > account.over and (borrows or used - account.guaranteed > by_use)
            lack = group.borrowed - account.over + over - group.lendable + account.lendable
            lack -= lendable
            steps.append((account, used, over, lack, borrows))
        return steps

    def refusal(
        self, tenant: str, model: str, milli: int, kept: Kept = frozenset()
    ) -> Refusal | None:
        """Why the tenant may not hold `milli` more of the model now; None when it may. Nothing is
        borrowed of what is `kept` for a job ahead."""
        chain = self.chain(tenant, model)
        if not chain:
            nothing = Account(tenant, model, 0, False, 0, 0, Group())
            return Refusal(Reason.WAITING_FOR_QUOTA, nothing, milli, 0)
        for account in chain:
            if account.used + milli > account.guaranteed:
                break
        else:
            return None  # nothing is borrowed at any level
        for account, _, over, lack, borrows in self._steps(tenant, model, milli):
            if not borrows:
                continue
            more = over - account.over
            if not account.shared or account in kept or account.group in kept:
                return Refusal(Reason.WAITING_FOR_QUOTA, account, milli, max(0, milli - more))
            beyond = over - max(account.borrow_limit, account.over)
            if beyond > 0:
                left = max(0, milli - beyond)
                return Refusal(Reason.BORROW_LIMIT_REACHED, account, milli, left)
            if account.parent is None and lack > 0:
                left = max(0, milli - min(more, lack))
                return Refusal(Reason.WAITING_FOR_QUOTA, account, milli, left)
        return None

    def slack(self, tenant: str, model: str, milli: int) -> int:
        """How much more of the model may be booked, by whomever, before the tenant may no longer
        hold `milli` more, which it may now; a lower bound."""
        chain = self.chain(tenant, model)
        within = min([a.guaranteed - a.used for a in chain], default=0) - milli
        if within >= 0:
            return within
        left = UNLIMITED
        for account, _, over, lack, _ in self._steps(tenant, model, milli):
            if not account.shared:
                return 0
            left = min(left, max(account.borrow_limit, account.over) - over)
            if account.parent is None:
                left = min(left, -lack)
        return max(0, left)

    def would_borrow(self, tenant: str, model: str, milli: int) -> bool:
        """Whether part of `milli` more would be borrowed even if nobody below the same parents
        borrowed: what siblings owe is theirs to return."""
        return any(
            borrows
            and (account.below is None or used - account.below.borrowed > account.guaranteed)
            for account, used, _, _, borrows in self._steps(tenant, model, milli)
        )

    def refusal_of(
        self, tenant: str, asked: Mapping[str, int], kept: Kept = frozenset()
    ) -> Refusal | None:
        """The first refusal of a joint request {gpu model: milli}: all models or none."""
        for model in sorted(asked) if len(asked) > 1 else asked:
            if (no := self.refusal(tenant, model, asked[model], kept)) is not None:
                return no
        return None

    def awaited(self, tenant: str, asked: Mapping[str, int], no: Refusal) -> Kept:
        """What a refused request waits for: all it would borrow from, up to the account that
        refuses it for a limit of its own."""
        found: set[Account | Group] = set()
        for model, milli in asked.items():
            for account, _, _, _, borrows in self._steps(tenant, model, milli):
                lent_out = account.shared and no.reason is Reason.WAITING_FOR_QUOTA
                if account is no.account and not lent_out:
                    found.add(account)
                    break
                if borrows:
                    found.add(account.group)
        return frozenset(found)

    def wants(self, tenant: str, asked: Mapping[str, int], kept: Kept) -> bool:
        """Whether a request would borrow of what is kept, be that there or not."""
        return any(
            borrows and (account in kept or account.group in kept)
            for model, milli in asked.items()
            for account, _, _, _, borrows in self._steps(tenant, model, milli)
        )

    def could_ever(self, tenant: str, asked: Mapping[str, int]) -> bool:
        """Whether a joint request is within all that the tenant could ever hold."""
        return all(milli <= self.ceiling(tenant, model) for model, milli in asked.items())

    def ceiling(self, tenant: str, model: str) -> int:
        """The most the tenant could ever hold of the model: guaranteed and borrowable."""
        known = self._ceilings.get((tenant, model))
        if known is None:
            known = self._ceilings[tenant, model] = self._ceiling(self.chain(tenant, model))
        return known

    def _ceiling(self, chain: tuple[Account, ...]) -> int:
        most, beyond = UNLIMITED, 0
        for account in reversed(chain):
            cap = account.guaranteed
            if account.shared:
                others = sum(a.lends for a in account.group.members if a is not account)
                cap += min(account.borrow_limit, others + beyond)
            beyond = max(0, cap - account.guaranteed)
            most = min(most, cap)
        return most if chain else 0

    # --- booking ------------------------------------------------------------------------------
    def book(self, job_id: str, tenant: str, model: str, milli: int, since: float) -> int:
        """Book `milli` to a job; returns how much of it is borrowed at some level."""
        booking = self.bookings.setdefault(job_id, Booking(tenant, since))
        booking.held[model] = booking.held.get(model, 0) + milli
        self.booked[model] = self.booked.get(model, 0) + milli
        self.version += 1
        self.tightened += 1
        return self._add(booking.tenant, model, milli)

    def unbook(self, job_id: str, model: str, milli: int) -> None:
        """Give back part of what a job holds."""
        booking = self.bookings[job_id]
        booking.held[model] -= milli
        if not booking.held[model]:
            del booking.held[model]
        if not booking.held:
            del self.bookings[job_id]
        self._add(booking.tenant, model, -milli)
        self.returned[model] = self.returned.get(model, 0) + milli
        self.version += 1
        self.loosened += 1

    def _add(self, tenant: str, model: str, milli: int) -> int:
        borrowed, lack = 0, None
        for account in self.chain(tenant, model):
            group = account.group
            account.used = used = account.used + milli
            over, lendable = account.after(used, lack)
            if over != account.over:
                borrowed = max(borrowed, over - account.over)
                group.borrowed += over - account.over
                account.over = over
            group.lendable += lendable - account.lendable
            account.lendable = lendable
            lack = group.borrowed - group.lendable
        return borrowed

    # --- reading ------------------------------------------------------------------------------
    def accounts(self) -> tuple[Account, ...]:
        """All accounts by tenant and GPU model, without those of parents' own jobs."""
        return tuple(self._accounts[key] for key in sorted(self._accounts))

    def account(self, tenant: str, model: str) -> Account | None:
        return self._accounts.get((tenant, model))
