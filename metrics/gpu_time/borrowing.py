"""GPU time that tenants borrowed: what they held above their guarantee (docs/decisions/0024)."""

from collections import Counter, deque
from dataclasses import dataclass
from datetime import date, datetime
from heapq import heappop, heappush
from typing import NamedTuple

from metrics.gpu_time.days import ONE_DAY, midnight
from metrics.gpu_time.guarantees import GuaranteeChange, TreeChange, history
from metrics.gpu_time.totals import MICROSECOND
from scheduling.engine.types import BEYOND
from tenants.models import Tenant


def rounded(amount: int) -> int:
    """Convert billionths of a milli-GPU x microseconds to milli-GPU x milliseconds, rounded."""
    unit = BEYOND * 1000
    return (amount + unit // 2) // unit


class BorrowedKey(NamedTuple):
    """Who borrowed GPU time of which GPU model on which day."""

    day: date
    tenant_id: int
    gpu_model: str


@dataclass(slots=True)
class BorrowingAccount:
    """What a tenant with all below it holds of a GPU model, in billionths of a milli-GPU, and its
    guarantee, in milli-GPU. `borrowed`: billionths of a milli-GPU x microseconds up to `at`."""

    guaranteed: int
    at: int
    used: int = 0
    borrowed: int = 0

    def advance(self, at: int) -> None:
        over = self.used - self.guaranteed * BEYOND
        if over > 0:
            self.borrowed += over * (at - self.at)
        self.at = at


class Borrowing:
    """Adds up what tenants borrow in [begin, end) from the holdings in that time, passed in the
    order of their beginnings.

    Use, guarantees and the tree are constant between changes, so the sums are exact. Internal times
    are microseconds since `begin`.
    """

    def __init__(self, begin: datetime, end: datetime) -> None:
        self._begin, self._end = begin, (end - begin) // MICROSECOND
        self._history = history(begin, end)
        self._names = dict(Tenant.objects.order_by().values_list("pk", "name"))
        self._held: Counter[tuple[str, str]] = Counter()  # by the tenants themselves
        self._ends: list[tuple[int, str, str, int]] = []
        self._chains: dict[tuple[str, str], list[BorrowingAccount]] = {}
        self._accounts: dict[tuple[str, str], BorrowingAccount] = {}
        self._sums: Counter[BorrowedKey] = Counter()
        self._day = begin.date()
        self._breaks = self._found_breaks(end)

    def _found_breaks(
        self, end: datetime
    ) -> deque[tuple[int, GuaranteeChange | TreeChange | None]]:
        """Return midnights (None) and changes in order; the last one is the end."""
        breaks = [(self._since_begin(change.at), change) for change in self._history.changes]
        midnights: list[tuple[int, GuaranteeChange | TreeChange | None]] = []
        day = self._day + ONE_DAY
        while midnight(day) < end:
            midnights.append((self._since_begin(midnight(day)), None))
            day += ONE_DAY
        return deque(sorted([*breaks, *midnights, (self._end, None)], key=lambda one: one[0]))

    def _since_begin(self, at: datetime) -> int:
        return (at - self._begin) // MICROSECOND

    def hold(
        self, tenant_id: int, gpu_model: str, held: int, begun: datetime, ended: datetime | None
    ) -> None:
        """Add a pod that held this many billionths of a milli-GPU over that time; None = it still
        does."""
        begin = max(0, self._since_begin(begun))
        end = self._end if ended is None else min(self._end, self._since_begin(ended))
        # A tenant created after the end held nothing before.
        if begin < end and (name := self._names.get(tenant_id)) is not None:
            self._advance(begin)
            self._change(name, gpu_model, held, begin)
            heappush(self._ends, (end, name, gpu_model, held))

    def sums(self) -> Counter[BorrowedKey]:
        """Return what was borrowed, in milli-GPU x milliseconds; nothing can be added
        afterwards."""
        self._advance(self._end)
        return Counter({key: rounded(amount) for key, amount in self._sums.items()})

    def _advance(self, to: int) -> None:
        """Process everything that ended or changed up to then."""
        while self._breaks:
            at, change = self._breaks[0]
            if self._ends and self._ends[0][0] <= min(at, to):
                end, name, model, held = heappop(self._ends)
                self._change(name, model, -held, end)
            elif at <= to:
                self._breaks.popleft()
                self._pass(at, change)
            else:
                break

    def _change(self, name: str, model: str, held: int, at: int) -> None:
        for account in self._chain(name, model, at):
            account.advance(at)
            account.used += held
        self._held[name, model] += held

    def _pass(self, at: int, change: GuaranteeChange | TreeChange | None) -> None:
        """Pass a midnight or a change, and close the sums that it affects."""
        if isinstance(change, GuaranteeChange) and self._is_other_amount(change):
            self._history.apply(change)
            if account := self._accounts.get((change.tenant, change.gpu_model)):
                account.advance(at)
                account.guaranteed = change.milli or 0
            return
        for (name, model), account in self._accounts.items():
            account.advance(at)
            place = self._history.tree.get(name)
            if account.borrowed and place is not None and place.tenant_id is not None:
                self._sums[BorrowedKey(self._day, place.tenant_id, model)] += account.borrowed
            account.borrowed = 0
        if change is None:
            self._day += ONE_DAY
            return
        self._history.apply(change)
        self._accounts.clear()
        self._chains.clear()
        self._held = +self._held
        for (name, model), held in self._held.items():
            for account in self._chain(name, model, at):
                account.used += held

    def _is_other_amount(self, change: GuaranteeChange) -> bool:
        """Return whether the quota exists before and after, so that only its amount changes."""
        known = (change.tenant, change.gpu_model) in self._history.guaranteed
        return known and change.milli is not None

    def _chain(self, tenant: str, model: str, at: int) -> list[BorrowingAccount]:
        """Return the accounts to which the tenant's holdings count: its own and its ancestors'."""
        found = self._chains.get((tenant, model))
        if found is None:
            found = self._chains[tenant, model] = []
            for name in self._history.lineage(tenant):
                guaranteed = self._history.guarantee(name, model)
                if guaranteed is not None:
                    account = self._accounts.setdefault(
                        (name, model), BorrowingAccount(guaranteed, at)
                    )
                    found.append(account)
        return found
