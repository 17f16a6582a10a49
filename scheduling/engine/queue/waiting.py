"""The wait queue: one class per tenant (or user) and request shape, in one global order.

Jobs of a class differ only in their order. What is found out about the first one therefore holds
for all of them: a failed attempt, a refusal by quota, a reason. A cycle costs what it starts plus
the number of classes, not the number of waiting jobs.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from scheduling.engine.demand.shapes import Key
from scheduling.engine.memo import SETTLED, UNPLANNED, WOULD_START, Finding, Found, Memo, Question
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.order import OrderKey
from scheduling.engine.quota.borrowing import Refusal
from scheduling.engine.types import DEFAULT_QUEUE
from scheduling.engine.verdict import Verdict

if TYPE_CHECKING:
    from scheduling.engine.queue.reservations import Settled

# The most classes without jobs that are kept in case another job of their shape comes.
MAX_EMPTY = 1_000


@dataclass(slots=True, eq=False)
class EquivalenceClass:
    """Waiting jobs of one tenant, queue and shape, in order, and what was found out about them.

    Only this module writes its fields.
    """

    key: Key
    tenant: str
    user: str = ""  # the user of all these jobs, if the policy or the queue tells users apart
    queue: str = DEFAULT_QUEUE  # the tenant's queue of all these jobs
    jobs: list[OrderKey] = field(default_factory=list)
    shortest: float = math.inf  # seconds; a lower bound of the planned run times of the jobs

    # --- what was found out about the first job, and therefore about all
    found: Found = field(default_factory=dict)  # what the memo knows
    never: Verdict | None = None  # why they can never run
    refusal: Refusal | None = None  # why quota refuses it
    admitted_at: float = -math.inf  # when a refusal last ended
    failure: Verdict | None = None  # why the first job found no place when it was last tried

    # --- what the jobs were told
    reserved: bool = False  # when last checked, neither `never` nor `refusal` applied
    told_reserved: bool = False  # the value of `reserved` that the jobs were last told
    rest: Verdict | None = None  # the reason of all jobs but the first
    rest_at: float = 0.0  # when they were told it
    fresh: set[str] = field(default_factory=set)  # jobs that have not been told yet

    @property
    def about(self) -> str:
        """The name of the subject of a finding, see `memo.Subject`."""
        return f"the class of job {self.head}" if self.jobs else "a class without jobs"

    @property
    def head(self) -> str:
        return self.jobs[0].job_id

    # --- what is found out --------------------------------------------------------------------
    def forget(self) -> None:
        """Forget every finding about the class."""
        self.found.clear()

    def forget_refusal(self) -> None:
        """Forget the refusal, so that quota is asked anew."""
        self.refusal = None

    def can_run(self, never: Verdict | None) -> None:
        """Note why the jobs can never run; None: they can."""
        self.never = never

    def judged(self, refusal: Refusal | None, now: float) -> None:
        """Note the answer of quota."""
        if self.refusal is not None and refusal is None:
            self.admitted_at = now
        self.refusal = refusal

    def failed(self, why: Verdict | None) -> None:
        """Note why the first job found no place when it was tried."""
        self.failure = why

    def come_from(self, other: "EquivalenceClass") -> None:
        """Note that a job comes from another class; the later admission by quota counts."""
        self.admitted_at = max(self.admitted_at, other.admitted_at)

    def pop(self) -> str:
        """Remove and return the first job."""
        return self.jobs.pop(0).job_id

    # --- what is told -------------------------------------------------------------------------
    def turns(self) -> bool:
        """Update `reserved`: whether the class has passed quota. Return whether that changed."""
        before, self.reserved = self.reserved, self.never is None and self.refusal is None
        return before != self.reserved

    def tell_reserved(self) -> bool:
        """Update `told_reserved`; return whether the jobs were last told something else."""
        before, self.told_reserved = self.told_reserved, self.reserved
        return before != self.reserved

    def tell(self, rest: Verdict, at: float) -> list[str]:
        """Note the reason for all jobs but the first; return their ids."""
        self.rest, self.rest_at = rest, at
        self.fresh.clear()
        return [key.job_id for key in self.jobs[1:]]

    def tell_fresh(self) -> list[str]:
        """Return the ids of all but the first that were not told yet, sorted; mark them told."""
        self.fresh.discard(self.head)
        names = sorted(self.fresh)
        self.fresh.clear()
        return names


class Unplanned(NamedTuple):
    """What the finding that nobody can be preempted for a class's first job depends on.

    `allows_plans`: see `SchedulerState.allows_plans`. `overdue`: whether the job was overdue; None:
    either. `just_started`: jobs that cannot be victims, because they started in this cycle.
    `barred`: pools in which it may preempt nobody. `turn_nodes`: nodes kept for jobs whose turn it
    is.
    """

    allows_plans: tuple[int, int, int]
    overdue: bool | None
    just_started: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()
    turn_nodes: frozenset[str] = frozenset()

    def same(self, other: "Unplanned") -> bool:
        """Whether the finding that rests on this still holds if `other` is asked for."""
        return (
            self.allows_plans == other.allows_plans
            and other.overdue in (None, self.overdue)
            and self.barred <= other.barred
            and self.turn_nodes <= other.turn_nodes
        )


class UnplannedAtAll(Question):
    """Whether nobody can be preempted for the first job of a class, as found by preempt.py."""

    def stands(
        self, _state: object, _subject: object, known: Finding, depends_on: Unplanned
    ) -> bool:
        before: Unplanned = known.depends_on
        return before.same(depends_on)


class WaitQueue:
    """All jobs that may be tried now; held jobs and jobs that back off are not in it."""

    def __init__(self) -> None:
        self.eq_classes: dict[EquivalenceClass, None] = {}  # those with jobs
        self.ordered: list[tuple[OrderKey, EquivalenceClass]] = []  # by the classes' first jobs
        self.lanes: dict[tuple[str, str], int] = {}  # (tenant, queue) -> classes with jobs
        self.touched: dict[EquivalenceClass, None] = {}  # those that got jobs since the last walk
        self.passed: list[EquivalenceClass] = []  # left out by `awake`, and to be checked
        self._by_key: dict[Key, EquivalenceClass] = {}
        self._empty: dict[EquivalenceClass, None] = {}  # without jobs for longest first

    def add(self, record: JobRecord, key: Key, user: str) -> None:
        """Put a job into the class of its shape, at the position of its order key."""
        eq_class = self._by_key.get(key)
        if eq_class is None:
            job = record.job
            eq_class = self._by_key[key] = EquivalenceClass(key, job.tenant, user, job.queue)
        if not eq_class.jobs:
            self._empty.pop(eq_class, None)
            self.eq_classes[eq_class] = None
            self._count(eq_class, 1)
            insort(self.ordered, (record.key, eq_class))
        elif record.key < eq_class.jobs[0]:
            eq_class.fresh.add(
                eq_class.head
            )  # it was the first job and now gets the reason of the others
            self._out_of_order(eq_class)
            insort(self.ordered, (record.key, eq_class))
        self.touched[eq_class] = None
        insort(eq_class.jobs, record.key)
        eq_class.shortest = min(eq_class.shortest, record.planned_s or math.inf)
        eq_class.fresh.add(record.job.id)
        record.wait_in(eq_class)

    def remove(self, record: JobRecord) -> None:
        eq_class = record.eq_class
        if eq_class is None:
            return
        at = bisect_left(eq_class.jobs, record.key)
        if not at:
            self._out_of_order(eq_class)
        eq_class.jobs.pop(at)
        eq_class.fresh.discard(record.job.id)
        if not eq_class.jobs:
            del self.eq_classes[eq_class]
            self.touched.pop(eq_class, None)  # no job is left in it to be asked or told
            self._count(eq_class, -1)
            self._keep(eq_class)
        elif not at:
            insort(self.ordered, (eq_class.jobs[0], eq_class))
        record.wait_in(None)

    def planned_anew(self, record: JobRecord) -> None:
        """Note that the planned run time of a job has changed."""
        eq_class = record.eq_class
        if eq_class is not None:
            eq_class.shortest = min(eq_class.shortest, record.planned_s or math.inf)
            eq_class.found.pop(SETTLED, None)

    def set_aside(self, eq_class: EquivalenceClass) -> None:
        """Take a class with all its jobs out of the queue; the class keeps the jobs."""
        self.ordered.pop(bisect_left(self.ordered, (eq_class.jobs[0],)))
        del self.eq_classes[eq_class], self._by_key[eq_class.key]
        self._count(eq_class, -1)
        self.touched.pop(eq_class, None)
        eq_class.reserved = eq_class.told_reserved = False
        eq_class.fresh.clear()

    def bring_back(self, eq_class: EquivalenceClass, jobs: list[OrderKey]) -> None:
        """Put a class that was set aside back into the queue with these of its jobs.

        All findings about it are dropped.
        """
        known = self._by_key.get(eq_class.key)
        if known is not None:  # it is empty, because no job of this queue was waiting
            self._drop(known)
        self._by_key[eq_class.key] = eq_class
        eq_class.jobs = jobs
        eq_class.fresh = {key.job_id for key in jobs}
        eq_class.rest = None
        eq_class.found.clear()
        self.eq_classes[eq_class] = self.touched[eq_class] = None
        self._count(eq_class, 1)
        insort(self.ordered, (jobs[0], eq_class))

    def _count(self, eq_class: EquivalenceClass, more: int) -> None:
        lane = (eq_class.tenant, eq_class.queue)
        count = self.lanes.get(lane, 0) + more
        if count:
            self.lanes[lane] = count
        else:
            del self.lanes[lane]

    def _keep(self, eq_class: EquivalenceClass) -> None:
        """Keep a class that has just become empty, with the findings that hold for its next job.

        What its jobs were told is dropped. A class that belongs to a single job is not kept.
        """
        eq_class.rest = None
        for question in (SETTLED, WOULD_START):
            eq_class.found.pop(question, None)
        eq_class.shortest = math.inf
        if isinstance(eq_class.key[1], tuple):
            self._empty[eq_class] = None
            if len(self._empty) > MAX_EMPTY:
                self._drop(next(iter(self._empty)))
        else:
            del self._by_key[eq_class.key]

    def _drop(self, empty: EquivalenceClass) -> None:
        del self._empty[empty], self._by_key[empty.key]

    def _out_of_order(self, eq_class: EquivalenceClass) -> None:
        """Note that the first job of a class changes; the next one may be able to preempt."""
        eq_class.found.pop(UNPLANNED, None)
        self.ordered.pop(bisect_left(self.ordered, (eq_class.jobs[0],)))

    def awake(self, memo: Memo, since: int, now: float) -> list[tuple[OrderKey, EquivalenceClass]]:
        """Return the classes in order, without those for which `still_settled` would hold.

        That is judged by what was given back since the previous walk. Every class has to be
        assessed already, and no class may be in another's way.
        """
        most, gains, sizes = memo.most_gained(since), memo.gains, memo.sizes
        if most is None or not memo.remembers:
            return self.ordered
        found = []
        for first, eq_class in self.ordered:
            finding = eq_class.found.get(SETTLED)
            if finding is None or finding.until <= now or eq_class.fresh:
                found.append((first, eq_class))
                continue
            known: Settled = finding.depends_on
            if (
                known.needs <= most
                or known.first is not first
                or known.sizes != sizes
                or known.refused != (eq_class.refusal is not None)
                or eq_class.never is not None
            ):
                found.append((first, eq_class))
            else:
                known.gained = gains
                if memo.draws():
                    self.passed.append(eq_class)
        return found

    def plan_anew(self) -> None:
        """Drop what says that no preemption is possible: some may be possible now."""
        for eq_class in self.eq_classes:
            eq_class.found.pop(UNPLANNED, None)
            eq_class.found.pop(SETTLED, None)

    def forget_verdicts(self) -> None:
        """Drop all findings about all classes."""
        for eq_class in tuple(self._empty):
            self._drop(eq_class)
        for eq_class in self.eq_classes:
            eq_class.found.clear()


class Merge:
    """Classes in the global order of their first jobs; a class that is pushed comes again.

    `ordered`: the classes in the order of their first jobs.
    """

    def __init__(self, ordered: Iterable[tuple[OrderKey, EquivalenceClass]]) -> None:
        self._rest = list(ordered)[::-1]  # the next at the end
        self._put_back: list[tuple[OrderKey, EquivalenceClass]] = []
        self._put_off: list[EquivalenceClass] = []
        self._second = False

    def pop(self) -> EquivalenceClass | None:
        """Remove and return the next class. Its first job may have changed since it was pushed."""
        while True:
            rest, put_back = self._rest, self._put_back
            if put_back and (not rest or put_back[0] < rest[-1]):
                key, eq_class = heappop(put_back)
            elif rest:
                key, eq_class = rest.pop()
            elif self._put_off:
                later = [
                    (eq_class.jobs[0], eq_class) for eq_class in self._put_off if eq_class.jobs
                ]
                self._rest = sorted(later, reverse=True)
                self._put_off, self._second = [], True
                continue
            else:
                return None
            if eq_class.jobs and eq_class.jobs[0] == key:
                return eq_class
            self.push(eq_class)

    def put_off(self, eq_class: EquivalenceClass) -> bool:
        """Let all other classes go first, once; return False if they have gone already."""
        if not self._second:
            self._put_off.append(eq_class)
        return not self._second

    def push(self, eq_class: EquivalenceClass | None) -> None:
        """Queue a class by its first job; do nothing for a class without jobs."""
        if eq_class is not None and eq_class.jobs:
            heappush(self._put_back, (eq_class.jobs[0], eq_class))
