"""The queueing policies: what each has a blocked job close to the jobs behind it (paper 3.2.2)."""

from typing import Final

from scheduling.engine.backfill.closing import close_pools, close_quota
from scheduling.engine.backfill.gathering import leads_from
from scheduling.engine.backfill.giving_turns import line_up
from scheduling.engine.backfill.heads import has_led, is_due, lead, plan
from scheduling.engine.backfill.kept_quota import waits_first
from scheduling.engine.backfill.walk import Walk
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.reservations import Terms
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.types import QueueingPolicy


class QueueingRules:
    """What a queueing policy has a blocked job close to the jobs behind it; a subclass per policy.

    `closes_kept`: a job that waits only because quota is kept from it closes that quota, too.
    """

    def __init__(self, *, closes_kept: bool = False) -> None:
        self.closes_kept = closes_kept

    def close(
        self,
        walk: Walk,
        eq_class: EquivalenceClass,
        record: JobRecord,
        wanted: frozenset[str],
    ) -> bool:
        """Close what the first job of the class, which wants these pools, has to close.

        Return whether the other jobs of the class are behind it.
        """
        raise NotImplementedError

    def plan(self, _walk: Walk, _record: JobRecord, _reach: frozenset[str]) -> bool:
        """Return whether the start of a job that waits for quota or at a limit of jobs is known.

        If so, what it needs is kept for it and nothing is closed.
        """
        return False

    def overdue(self, _walk: Walk, _eq_class: EquivalenceClass, _terms: Terms) -> bool:
        """Return whether the job may preempt the jobs that passed it."""
        return False


class StrictFifo(QueueingRules):
    """Close the pools that the job wants.

    If quota refuses the job: close its tenant's quota, and what it would borrow.
    """

    def close(
        self,
        walk: Walk,
        eq_class: EquivalenceClass,
        record: JobRecord,
        wanted: frozenset[str],
    ) -> bool:
        if eq_class.refusal is None:
            close_pools(walk, record, wanted)
        else:
            close_quota(walk, eq_class, record)
        return True


class BestEffortFifo(QueueingRules):
    """Close nothing. Where shares decide, keep nodes for the job that has a turn."""

    def close(
        self,
        walk: Walk,
        eq_class: EquivalenceClass,
        _record: JobRecord,
        _wanted: frozenset[str],
    ) -> bool:
        line_up(walk, eq_class)
        return False


class Backfill(QueueingRules):
    """Reserve the nodes of the job's start, and the quota if it waits for quota.

    If no start is known and the job has waited for longer than the threshold, close what strict
    FIFO closes. If only a learned run time is known for the job, it becomes a head only if it needs
    several nodes or starves (gathering.py).
    """

    def close(
        self,
        walk: Walk,
        eq_class: EquivalenceClass,
        record: JobRecord,
        wanted: frozenset[str],
    ) -> bool:
        if eq_class.refusal is None:
            due = leads_from(walk.state, record)
            if due <= walk.out.now:
                lead(walk, record, wanted)
            else:
                walk.state.wake_at(due)
            return False
        if not (waits_first(walk.state, walk.way, record) and is_due(walk, record)):
            return False
        close_quota(walk, eq_class, record, passable=True)
        return True

    def plan(self, walk: Walk, record: JobRecord, reach: frozenset[str]) -> bool:
        return plan(walk, record, reach)

    def overdue(self, walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> bool:
        return has_led(walk, eq_class, terms)


RULES: Final[dict[QueueingPolicy, QueueingRules]] = {
    QueueingPolicy.STRICT_FIFO: StrictFifo(closes_kept=True),
    QueueingPolicy.BEST_EFFORT_FIFO: BestEffortFifo(),
    QueueingPolicy.BACKFILL: Backfill(),
}
