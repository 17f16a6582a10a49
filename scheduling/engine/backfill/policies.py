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
    """What a queueing policy has a blocked job close to the jobs behind it: a class for each.

    `closes_kept`: what is kept from a job is closed by it, too.
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
        """Close what the first job of the class, which wants these pools, is to close; whether the
        others of the class are behind it."""
        raise NotImplementedError

    def plan(self, _walk: Walk, _record: JobRecord, _reach: frozenset[str]) -> bool:
        """Whether the start is known of a job that quota or a limit of jobs keeps waiting: then
        what it needs is kept for it, and nothing closed."""
        return False

    def overdue(self, _walk: Walk, _eq_class: EquivalenceClass, _terms: Terms) -> bool:
        """Whether what passed the job may be preempted for it."""
        return False


class StrictFifo(QueueingRules):
    """The pools that it competes for; where quota refuses it, its tenant's quota, and what it would
    borrow."""

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
    """Nothing; where shares decide, nodes are kept for the job whose turn it is."""

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
    """The nodes of its start, and the quota where it waits for that; all that strict FIFO closes
    where no start is known and it has waited for longer than the threshold. By learned run times
    only for who needs several nodes, or starves (gathering.py)."""

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
