"""Static quota admission: who may hold how many GPUs of which model (paper 3.2.1).

Amounts are milli-GPU. Use counts at the tenant's own account and at every account above it. Shares
by memory are not whole numbers of milli-GPU: they are added up in billionths of one (`beyond`), and
an account counts the whole ones in the sum as used. Because requests are rounded up, an account
never uses more than it was allowed, and a request that is within a guarantee by a fraction is never
refused.

Use beyond guarantees is borrowed (`borrowing.py`) and can be reclaimed from the borrowers. For that
something must be there to reclaim: if the policy has reclaim, non-preemptible jobs hold no more of
any account than its guarantee, whatever else is used of it (docs/decisions/0022).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from scheduling.engine.native import mypyc_attr
from scheduling.engine.quota import borrowing
from scheduling.engine.quota.accounts import Account, Accounts, Cohort, open_accounts
from scheduling.engine.quota.borrowing import Awaited, Kept, Refusal
from scheduling.engine.quota.holds import Hold
from scheduling.engine.types import BEYOND, NOISE, QuotaSpec, TenantSpec
from scheduling.engine.verdict import Reason


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
@dataclass(slots=True, init=False)
class QuotaBooking:
    """What one job holds, in milli-GPU by GPU model.

    `beyond`: what all its pods together hold in addition, in billionths of a milli-GPU.
    """

    tenant: str
    since: float
    non_preemptible: bool
    held: dict[str, int]
    beyond: dict[str, int]

    def __init__(self, tenant: str, since: float, non_preemptible: bool) -> None:
        self.tenant, self.since, self.non_preemptible = tenant, since, non_preemptible
        self.held, self.beyond = {}, {}


def whole_and_beyond(milli: float) -> tuple[int, int]:
    """Split an amount in milli-GPU into whole ones and billionths of one."""
    return divmod(round((milli + NOISE) * BEYOND), BEYOND)


class QuotaBook:
    """All accounts and bookings of one cluster.

    - `version` grows with every change, `loosened` with changes that may allow more, `tightened`
      with changes that may allow less, and `structure` when tenants, quotas or `reclaims` are
      replaced.
    - `booked` and `returned` are totals since the beginning, in milli-GPU by GPU model.
    - `reclaims`: whether lenders may take back what they lent.
    - `non_preemptible` says of a request that it is for a non-preemptible job.

    Giving back never refuses what was allowed, and booking never allows what was refused. A refusal
    lasts until as much is given back as the request exceeds what is allowed. An admission lasts
    until more than its `slack` is booked.
    """

    def __init__(self) -> None:
        self.version = 0
        self.loosened = 0
        self.tightened = 0
        self.structure = 0
        self.booked: dict[str, int] = {}
        self.returned: dict[str, int] = {}
        self.tenants: dict[str, TenantSpec] = {}
        self.reclaims = False
        self.limits_jobs = False  # whether any tenant limits how many jobs run at once
        self.min_runtimes: dict[str, float] = {}  # by tenant: its own or its nearest parent's
        self.jobs_elsewhere: tuple[tuple[str, int], ...] = ()  # (tenant, jobs)
        self._accounts: Accounts = {}
        self._chains: dict[tuple[str, str], tuple[Account, ...]] = {}
        self._ceilings: dict[tuple[str, str], int] = {}
        self.bookings: dict[str, QuotaBooking] = {}

    # --- structure ----------------------------------------------------------------------------
    def replace(
        self,
        tenants: Iterable[TenantSpec],
        quotas: Iterable[QuotaSpec],
        used_elsewhere: Iterable[tuple[str, str, float, float]] = (),
    ) -> None:
        """Take over a new tenant tree and new quotas, and book anew all that is held.

        `used_elsewhere`: (tenant, GPU model, milli, how much of that is non-preemptible).
        """
        self.tenants = {t.id: t for t in tenants}
        self.limits_jobs = any(t.max_running is not None for t in self.tenants.values())
        self.min_runtimes = self._nearest_min_runtimes()
        self._chains.clear()
        self._ceilings.clear()
        self._accounts = open_accounts(quotas, self.lineage)
        for tenant, model, used, non_preemptible in used_elsewhere:
            self._add(tenant, model, *whole_and_beyond(used))
            self._add_fixed(tenant, model, *whole_and_beyond(non_preemptible))
        for booking in self.bookings.values():
            for model, milli in booking.held.items():
                beyond = booking.beyond.get(model, 0)
                self._add(booking.tenant, model, milli, beyond)
                if booking.non_preemptible:
                    self._add_fixed(booking.tenant, model, milli, beyond)
        self._replaced()

    def _nearest_min_runtimes(self) -> dict[str, float]:
        own = {t.id: t.min_runtime_s for t in self.tenants.values() if t.min_runtime_s is not None}
        nearest = {
            t: next((own[a] for a in self.lineage(t) if a in own), None) for t in self.tenants
        }
        return {tenant: seconds for tenant, seconds in nearest.items() if seconds is not None}

    def reclaim(self, reclaims: bool) -> None:
        """Set whether lenders may take back what they lent."""
        if reclaims != self.reclaims:
            self.reclaims = reclaims
            self._replaced()

    def _replaced(self) -> None:
        self.version += 1
        self.loosened += 1
        self.tightened += 1
        self.structure += 1

    def lineage(self, tenant: str) -> Iterator[str]:
        """Yield the tenant and its ancestors, nearest first; a cycle in the tree ends the walk."""
        seen: set[str] = set()
        at: str | None = tenant
        while at is not None and at not in seen:
            seen.add(at)
            yield at
            known = self.tenants.get(at)
            at = known.parent if known else None

    def chain(self, tenant: str, model: str) -> tuple[Account, ...]:
        """Return the accounts that a tenant's job is charged to, nearest first; () = no quota."""
        found = self._chains.get((tenant, model))
        if found is None:
            known = (self._accounts.get((t, model)) for t in self.lineage(tenant))
            owners = tuple(filter(None, known))
            if owners and owners[0].own_jobs is not None:
                owners = (owners[0].own_jobs, *owners)
            found = self._chains[tenant, model] = owners
        return found

    # --- asking -------------------------------------------------------------------------------
    def beyond_guarantee(self, tenant: str, model: str, milli: int) -> Refusal | None:
        """Return why non-preemptible jobs of the tenant may not hold `milli` more of the model.

        Use by other jobs does not matter. None if they may.
        """
        for account in self.chain(tenant, model) if self.reclaims else ():
            left = account.guaranteed - account.non_preemptible
            if milli > left:
                return Refusal(Reason.WAITING_FOR_QUOTA, account, milli, max(0, left), True)
        return None

    def refusal(
        self,
        tenant: str,
        model: str,
        milli: int,
        kept: Kept = frozenset(),
        *,
        non_preemptible: bool = False,
    ) -> Refusal | None:
        """Return why the tenant may not hold `milli` more of the model now; None if it may.

        The request may not borrow what is `kept` for a job ahead, nor take what that job will need.
        """
        no = self._refusal(tenant, model, milli, kept, non_preemptible)
        if no is not None or not kept:
            return no
        spoilt = [
            hold
            for hold in kept
            if isinstance(hold, Hold) and self._spoils(hold, tenant, model, milli, non_preemptible)
        ]
        if not spoilt:
            return None
        first = min(spoilt, key=lambda hold: (hold.at, hold.job_id))
        account = self.chain(tenant, model)[0]
        return Refusal(Reason.WAITING_FOR_QUOTA, account, milli, 0, hold=first)

    def _spoils(
        self, hold: Hold, tenant: str, model: str, milli: int, non_preemptible: bool
    ) -> bool:
        """Return whether quota would refuse the job of the hold because of this request.

        That is: if the tenant still held `milli` more when that job is to start.
        """
        needs = hold.demand.get(model, 0)
        if not needs or self.yields(hold, tenant, {model: milli}):
            return False
        with self.changed({(tenant, model, non_preemptible): milli}), self.changed(hold.over, -1):
            if hold.by_right and self.borrows(hold.tenant, model, needs):
                return True
            return (
                self._refusal(hold.tenant, model, needs, frozenset(), hold.non_preemptible)
                is not None
            )

    def yields(self, hold: Hold, tenant: str, asked: Mapping[str, int]) -> bool:
        """Return whether the job of the hold gives way to the request.

        It does if it will borrow, and the request is another tenant's and borrows nothing.
        """
        return hold.borrows and not any(
            self.chain(tenant, model)[:1] == self.chain(hold.tenant, model)[:1]
            or self.borrows(tenant, model, milli)
            for model, milli in asked.items()
        )

    def borrows(self, tenant: str, model: str, milli: int) -> bool:
        """Return whether part of `milli` more would be borrowed now, at any level."""
        return borrowing.borrows(self.chain(tenant, model), milli)

    def _refusal(
        self, tenant: str, model: str, milli: int, kept: Kept, non_preemptible: bool
    ) -> Refusal | None:
        chain = self.chain(tenant, model)
        if not chain:
            nothing = Account(tenant, model, 0, False, 0, 0, Cohort())
            return Refusal(Reason.WAITING_FOR_QUOTA, nothing, milli, 0)
        if non_preemptible and (no := self.beyond_guarantee(tenant, model, milli)) is not None:
            return no
        return borrowing.refused(chain, milli, kept)

    def slack(self, tenant: str, model: str, milli: int, *, non_preemptible: bool = False) -> int:
        """Return how much more of the model anybody may book before this admission ends.

        The admission: that the tenant may hold `milli` more now. The result is a lower bound.
        """
        chain = self.chain(tenant, model)
        within = min([a.guaranteed - a.used for a in chain], default=0) - milli
        if within >= 0:
            return within
        left = borrowing.slack(chain, milli)
        if non_preemptible and self.reclaims:
            for account in chain:
                left = min(left, account.guaranteed - account.non_preemptible - milli)
        return max(0, left)

    def would_borrow(self, tenant: str, model: str, milli: int) -> bool:
        """Return whether the request would borrow even if nobody else held more than its guarantee.

        What others owe, at any depth, is theirs to return. The request is for `milli` more.
        """
        return borrowing.would_borrow(self.chain(tenant, model), milli)

    def distance(self, tenant: str, other: str, model: str) -> int:
        """Return how many accounts of the tenant are below the first account that both share."""
        theirs = self.chain(other, model)
        chain = self.chain(tenant, model)
        return next((i for i, account in enumerate(chain) if account in theirs), len(chain))

    def debtors(self, tenant: str, model: str) -> list[tuple[str, int]]:
        """Return who borrowed what the tenant could have back, nearest first: (tenant, milli)."""
        chain = self.chain(tenant, model)
        found: dict[str, int] = {}
        for account in chain:
            for other in account.cohort.members:
                if other not in chain and other.over > 0:
                    for owes in self._owing(other):
                        found.setdefault(owes.tenant, owes.over)
        return list(found.items())

    def _owing(self, account: Account) -> list[Account]:
        """Return the lowest accounts at or below this one that have borrowed."""
        below = [] if account.below is None else account.below.members
        lower = [owes for each in below if each.over > 0 for owes in self._owing(each)]
        return lower or [account]

    def would_owe(self, tenant: str, model: str, milli: int) -> int:
        """Return how much more would be borrowed with `milli` more: the later result of `book`."""
        return borrowing.would_owe(self.chain(tenant, model), milli)

    def refusal_of(
        self,
        tenant: str,
        asked: Mapping[str, int],
        kept: Kept = frozenset(),
        *,
        non_preemptible: bool = False,
    ) -> Refusal | None:
        """Return the first refusal of a joint request {GPU model: milli}: all models or none."""
        for model in sorted(asked) if len(asked) > 1 else asked:
            if (
                no := self.refusal(
                    tenant, model, asked[model], kept, non_preemptible=non_preemptible
                )
            ) is not None:
                return no
        return None

    def awaited(self, tenant: str, asked: Mapping[str, int], no: Refusal) -> Awaited:
        """Return what a refused request waits for that others may borrow.

        That is all it would borrow from, up to the account that refuses it for a limit of its own.
        """
        return borrowing.awaited([(self.chain(tenant, m), asked[m]) for m in asked], no)

    def wants(self, tenant: str, asked: Mapping[str, int], kept: Kept) -> bool:
        """Return whether the request would borrow of what is `kept`, be that free or not."""
        return any(
            borrowing.wants(self.chain(tenant, model), milli, kept)
            for model, milli in asked.items()
        )

    def could_ever(
        self, tenant: str, asked: Mapping[str, int], *, non_preemptible: bool = False
    ) -> bool:
        """Return whether a joint request is within what the tenant could ever hold."""
        return all(
            milli <= self.ceiling(tenant, model, non_preemptible=non_preemptible)
            for model, milli in asked.items()
        )

    def ceiling(self, tenant: str, model: str, *, non_preemptible: bool = False) -> int:
        """Return the most the tenant could ever hold of the model: guaranteed plus borrowable."""
        if non_preemptible and self.reclaims:
            return min([a.guaranteed for a in self.chain(tenant, model)], default=0)
        known = self._ceilings.get((tenant, model))
        if known is None:
            known = self._ceilings[tenant, model] = borrowing.ceiling(self.chain(tenant, model))
        return known

    # --- booking ------------------------------------------------------------------------------
    def book(
        self,
        job_id: str,
        tenant: str,
        model: str,
        milli: int,
        since: float,
        *,
        non_preemptible: bool = False,
        beyond: int = 0,
    ) -> int:
        """Book `milli` to a job; return how much of it is borrowed at some level.

        All that a job holds is `non_preemptible`, or none of it. `beyond`: the amount above
        `milli`, in billionths of a milli-GPU.
        """
        booking = self.bookings.get(job_id)
        if booking is None:
            booking = self.bookings[job_id] = QuotaBooking(tenant, since, non_preemptible)
        booking.held[model] = booking.held.get(model, 0) + milli
        if beyond:
            booking.beyond[model] = booking.beyond.get(model, 0) + beyond
        self.booked[model] = self.booked.get(model, 0) + milli + -(-beyond // BEYOND)
        self.version += 1
        self.tightened += 1
        if booking.non_preemptible:
            self._add_fixed(booking.tenant, model, milli, beyond)
        return self._add(booking.tenant, model, milli, beyond)

    def unbook(self, job_id: str, model: str, milli: int, beyond: int = 0) -> None:
        """Give back part of what a job holds."""
        booking = self.bookings[job_id]
        booking.held[model] -= milli
        if beyond:
            booking.beyond[model] -= beyond
        if not booking.held[model]:
            del booking.held[model]
            booking.beyond.pop(model, None)
        if not booking.held:
            del self.bookings[job_id]
        if booking.non_preemptible:
            self._add_fixed(booking.tenant, model, -milli, -beyond)
        self._add(booking.tenant, model, -milli, -beyond)
        self.returned[model] = self.returned.get(model, 0) + milli + -(-beyond // BEYOND)
        self.version += 1
        self.loosened += 1

    def rebook(self, job_id: str, *, non_preemptible: bool) -> None:
        """Note that what a job holds, if anything, is non-preemptible now, or no longer."""
        booking = self.bookings.get(job_id)
        if booking is None or booking.non_preemptible == non_preemptible:
            return
        held = [(model, m, booking.beyond.get(model, 0)) for model, m in booking.held.items()]
        tenant, since = booking.tenant, booking.since
        for model, milli, beyond in held:
            self.unbook(job_id, model, milli, beyond)
        for model, milli, beyond in held:
            self.book(
                job_id, tenant, model, milli, since, non_preemptible=non_preemptible, beyond=beyond
            )

    @contextmanager
    def without(self, taken: Iterable[tuple[str, Mapping[str, int]]]) -> Iterator[None]:
        """Make the accounts look for a while as if tenants held this many milli-GPU less."""
        amounts = [(tenant, m, milli) for tenant, held in taken for m, milli in held.items()]
        for tenant, model, milli in amounts:
            self._add(tenant, model, -milli)
        try:
            yield
        finally:
            for tenant, model, milli in amounts:
                self._add(tenant, model, milli)

    @contextmanager
    def changed(self, amounts: Mapping[tuple[str, str, bool], int], by: int = 1) -> Iterator[None]:
        """Make the accounts look for a while as if tenants held more: `amounts` times `by`.

        `amounts`: milli-GPU by (tenant, GPU model, whether the jobs are non-preemptible).
        """
        for (tenant, model, non_preemptible), milli in amounts.items():
            self.suppose(tenant, model, milli * by, non_preemptible=non_preemptible)
        try:
            yield
        finally:
            for (tenant, model, non_preemptible), milli in amounts.items():
                self.suppose(tenant, model, -milli * by, non_preemptible=non_preemptible)

    def suppose(self, tenant: str, model: str, milli: int, *, non_preemptible: bool) -> None:
        """Count as if the tenant held this much more. The caller has to take it back."""
        self._add(tenant, model, milli)
        if non_preemptible:
            self._add_fixed(tenant, model, milli)

    def _add_fixed(self, tenant: str, model: str, milli: int, beyond: int = 0) -> None:
        for account in self.chain(tenant, model):
            account.non_preemptible += milli
            if beyond:
                carry, account.fixed_beyond = divmod(account.fixed_beyond + beyond, BEYOND)
                account.non_preemptible += carry

    def _add(self, tenant: str, model: str, milli: int, beyond: int = 0) -> int:
        borrowed, lack = 0, None
        for account in self.chain(tenant, model):
            cohort = account.cohort
            account.used += milli
            if beyond:
                carry, account.beyond = divmod(account.beyond + beyond, BEYOND)
                account.used += carry
            used = account.used
            over, lendable = account.after(used, lack)
            if over != account.over:
                borrowed = max(borrowed, over - account.over)
                cohort.borrowed += over - account.over
                account.over = over
            cohort.lendable += lendable - account.lendable
            account.lendable = lendable
            account.note_rightful()
            lack = cohort.borrowed - cohort.lendable
        return borrowed

    # --- reading ------------------------------------------------------------------------------
    def accounts(self) -> tuple[Account, ...]:
        """Return all accounts by tenant and GPU model, without those of parents' own jobs."""
        return tuple(self._accounts[key] for key in sorted(self._accounts))

    def account(self, tenant: str, model: str) -> Account | None:
        return self._accounts.get((tenant, model))
