"""From whom a blocked job may take places, by tenant and priority (paper 3.2.3)."""

import heapq
import math
from collections.abc import Iterable
from functools import cached_property
from itertools import chain

from scheduling.engine.queue.job import JobRecord
from scheduling.engine.running.preemptible import Whose
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import PreemptionKind


class Claim:
    """The rights of a blocked job.

    `asked`: what quota must allow, and `needs`: what must be free, in milli by GPU model; `needs`
    is never more. `borrows`: the job would borrow. `overdue`: it has been blocked at the head for
    so long that it may take what was backfilled past it. `not_yet`: kinds of preemption for which
    it has not waited long enough.
    """

    def __init__(
        self,
        state: SchedulerState,
        record: JobRecord,
        asked: dict[str, int],
        needs: dict[str, int],
        *,
        borrows: bool,
        overdue: bool,
        not_yet: frozenset[PreemptionKind] = frozenset(),
    ) -> None:
        self.record = record
        self.asked = asked
        self.needs = needs
        self.borrows = borrows
        self.overdue = overdue
        self._state = state
        self._allowed = set(state.policy.preemption).difference(not_yet)
        self._debts: dict[str, bool] = {}

    def members(self) -> Iterable[JobRecord]:
        """Yield running jobs from which it may take; some of them may be protected now."""
        preemptible_jobs = self._state.preemptible_jobs
        return chain.from_iterable(preemptible_jobs.members(whose) for whose in self.groups)

    def enough_at(self, now: float) -> float:
        """Return when enough will be free or past its minimum run time if nothing else happens.

        `now`: it is so already; inf: never, also if there is nobody to take from.
        """
        if not self.groups:
            return math.inf
        state = self._state
        lack = {m: milli - state.cluster.free_milli(m) for m, milli in self.needs.items()}
        exposures = [state.preemptible_jobs.of(whose, now) for whose in self.groups]
        for exposure in exposures:
            for model in lack:
                lack[model] -= exposure.ripe.get(model, 0)
        if max(lack.values(), default=0) <= 0:
            return now
        for at, model, milli in heapq.merge(*[exposure.later for exposure in exposures]):
            if model in lack:
                lack[model] -= milli
                if lack[model] <= 0 and max(lack.values()) <= 0:
                    return at
        return math.inf

    @cached_property
    def groups(self) -> tuple[Whose, ...]:
        """The (tenant, priority) groups of jobs from which it may take."""
        return tuple(
            whose for whose in self._state.preemptible_jobs.groups() if self._may_take(*whose)
        )

    def _may_take(self, tenant: str, priority: int) -> bool:
        backfilled = self.overdue and PreemptionKind.BACKFILL in self._allowed
        if backfilled and priority <= self.record.job.priority:
            return True
        return self.outranks(tenant, priority) or self.reclaims_from(tenant)

    def outranks(self, tenant: str, priority: int) -> bool:
        """Lower priority; a borrower takes only from its own tenant or from other borrowers."""
        if PreemptionKind.PRIORITY not in self._allowed or priority >= self.record.job.priority:
            return False
        return not self.borrows or tenant == self.record.job.tenant or self._in_debt(tenant)

    def reclaims_from(self, tenant: str) -> bool:
        """A job within its tenant's guarantee takes back from other tenants that borrow."""
        if PreemptionKind.RECLAIM not in self._allowed or self.borrows:
            return False
        return tenant != self.record.job.tenant and self._in_debt(tenant)

    def _in_debt(self, tenant: str) -> bool:
        known = self._debts.get(tenant)
        if known is None:
            known = self._debts[tenant] = self._has_borrowed(tenant)
        return known

    def _has_borrowed(self, tenant: str) -> bool:
        """Return whether the tenant has borrowed of a GPU model that the job asks for.

        What was borrowed by accounts that both tenants share does not count. If an account above
        the tenant has borrowed, those below it that exceed their guarantee owe that, if there are
        any.
        """
        book, by = self._state.book, self.record.job.tenant
        for model in self.asked:
            shared = book.chain(by, model)
            for account in book.chain(tenant, model):
                if account in shared:
                    break
                if account.over > 0:
                    return True
                if account.cohort.borrowed > 0:
                    break
        return False
