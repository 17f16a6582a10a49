"""Accounts of quota and the groups in which they lend to each other (paper 3.2.1).

Every quota row is an account. Its parent is the row of the nearest ancestor tenant for the same GPU
model. Accounts with the same parent form a cohort. The parent's own jobs have one more account in
that cohort, guaranteed what the children's guarantees leave of the parent's.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from scheduling.engine.types import QuotaSpec, Sharing

UNLIMITED = 1 << 62


@dataclass(slots=True, eq=False)
class Cohort:
    """Accounts that lend to each other; the amounts are sums over them."""

    members: list["Account"] = field(default_factory=list)
    lendable: int = 0
    borrowed: int = 0
    rightful: int = 0


@dataclass(slots=True, eq=False)
class Account:
    """The quota of one tenant for one GPU model and what is used of it."""

    tenant: str
    gpu_model: str
    guaranteed: int
    shared: bool
    borrow_limit: int
    lend_limit: int
    cohort: Cohort
    parent: "Account | None" = None
    used: int = 0
    non_preemptible: int = 0  # the part of `used` that non-preemptible jobs hold
    beyond: int = 0  # use in addition to `used`, in billionths of a milli-GPU: less than one
    fixed_beyond: int = 0  # likewise, in addition to `non_preemptible`
    over: int = 0  # borrowed
    lendable: int = 0
    lends: int = 0  # what it lends while nothing of it is used
    rightful: int = 0  # its use if no account at or below it exceeded its guarantee
    below: Cohort | None = None  # the accounts of its children
    own_jobs: "Account | None" = None  # the account of a parent's own jobs

    def after(self, used: int, lack: int | None) -> tuple[int, int]:
        """Return (borrowed, lendable) for this use.

        `lack`: what the cohort below borrows beyond what it lends (negative: what it has left);
        None for an account without children.
        """
        over = used - self.guaranteed
        if lack is not None and lack > over:
            over = lack
        if over > 0:
            return over, 0
        return 0, min(self.lend_limit, -over) if self.shared else 0

    def note_rightful(self) -> None:
        """Update `rightful`; the accounts below have to be up to date."""
        held = self.used if self.below is None else self.below.rightful
        held = min(held, self.guaranteed)
        self.cohort.rightful += held - self.rightful
        self.rightful = held


Accounts = dict[tuple[str, str], Account]  # by tenant and GPU model


def open_accounts(quotas: Iterable[QuotaSpec], lineage: Callable[[str], Iterator[str]]) -> Accounts:
    """Return the accounts of these quotas in their cohorts, with nothing used.

    `lineage`: returns a tenant and its ancestors, nearest first.
    """
    accounts: Accounts = {}
    for q in quotas:
        accounts[q.tenant, q.gpu_model] = Account(
            q.tenant,
            q.gpu_model,
            max(0, q.guaranteed),
            q.mode is Sharing.SHARED,
            UNLIMITED if q.borrow_limit is None else q.borrow_limit,
            UNLIMITED if q.lend_limit is None else q.lend_limit,
            Cohort(),
        )
    _join_groups(accounts, lineage)
    return accounts


def _join_groups(accounts: Accounts, lineage: Callable[[str], Iterator[str]]) -> None:
    cohorts: dict[tuple[str, str], Cohort] = {}
    children: dict[tuple[str, str], list[Account]] = {}
    for tenant, model in sorted(accounts):
        account = accounts[tenant, model]
        above = (accounts.get((t, model)) for t in lineage(tenant) if t != tenant)
        account.parent = owner = next(filter(None, above), None)
        account.cohort = cohorts.setdefault((owner.tenant if owner else "", model), Cohort())
        account.cohort.members.append(account)
        if owner:
            children.setdefault((owner.tenant, model), []).append(account)
    for key, below in sorted(children.items()):
        parent = accounts[key]
        rest = max(0, parent.guaranteed - sum(c.guaranteed for c in below))
        parent.own_jobs = Account(
            parent.tenant, parent.gpu_model, rest, True, UNLIMITED, UNLIMITED,
            below[0].cohort, parent,
        )  # fmt: skip
        parent.below = below[0].cohort
        parent.below.members.append(parent.own_jobs)
    for account in sorted(accounts.values(), key=_depth, reverse=True):
        if account.own_jobs is not None:
            _open(account.own_jobs)
        _open(account)


def _depth(account: Account) -> tuple[int, str, str]:
    seen, above = {id(account)}, account.parent
    while above is not None and id(above) not in seen:
        seen.add(id(above))
        above = above.parent
    return len(seen), account.tenant, account.gpu_model


def _open(account: Account) -> None:
    """Set what an unused account lends; the accounts below it have to be open."""
    below = account.below
    lack = None if below is None else below.borrowed - below.lendable
    account.over, account.lendable = account.after(0, lack)
    account.lends = account.lendable
    account.cohort.borrowed += account.over
    account.cohort.lendable += account.lendable
