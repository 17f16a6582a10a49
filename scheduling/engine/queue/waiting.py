"""The wait queue: one class per tenant (or user of it) and request shape, in one global order.

Jobs of a class differ in nothing but their order, so what is found out about the first holds for
all of them: an attempt that fails, a quota that refuses, a reason. A cycle therefore costs what
it starts and the number of classes, not the number of waiting jobs.
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

# Classes without jobs that are kept, as another job of their shape may come.
MAX_EMPTY = 1_000


@dataclass(slots=True, eq=False)
class EquivalenceClass:
    """Waiting jobs of one tenant, queue and shape, in order, and what was found out about them.
    Its fields are written in this module alone."""

    key: Key
    tenant: str
    user: str = ""  # whose jobs alone these are, where the policy, or the queue, tells users apart
    queue: str = DEFAULT_QUEUE  # of the tenant; all of them are of it
    jobs: list[OrderKey] = field(default_factory=list)
    shortest: float = math.inf  # seconds; none of the jobs declares less

    # --- what was found out about the first job, and so about all
    found: Found = field(default_factory=dict)  # what the memo knows
    never: Verdict | None = None  # why it can never run
    refusal: Refusal | None = None  # why quota refuses it
    admitted_at: float = -math.inf  # when a refusal last ended
    failure: Verdict | None = None  # why it found no place when it was last tried

    # --- what its jobs were told
    reserved: bool = False  # neither `never` nor `refusal` stands, as was last asked
    told_reserved: bool = False  # what they were last told of that
    rest: Verdict | None = None  # the reason of all but the first
    rest_at: float = 0.0  # when that was told
    fresh: set[str] = field(default_factory=set)  # those that have not been told yet

    @property
    def about(self) -> str:
        """Of whom something was found out."""
        return f"the class of job {self.head}" if self.jobs else "a class without jobs"

    @property
    def head(self) -> str:
        return self.jobs[0].job_id

    # --- what is found out --------------------------------------------------------------------
    def forget(self) -> None:
        """All that is remembered of it."""
        self.found.clear()

    def forget_refusal(self) -> None:
        """Quota is asked anew, as if it had not refused it."""
        self.refusal = None

    def can_run(self, never: Verdict | None) -> None:
        """Or not; `never`: why."""
        self.never = never

    def judged(self, refusal: Refusal | None, now: float) -> None:
        """By quota."""
        if self.refusal is not None and refusal is None:
            self.admitted_at = now
        self.refusal = refusal

    def failed(self, why: Verdict | None) -> None:
        """Its first job was tried and found no place."""
        self.failure = why

    def come_from(self, other: "EquivalenceClass") -> None:
        """A job comes here from the class in which it stood: it waits by quota for no longer."""
        self.admitted_at = max(self.admitted_at, other.admitted_at)

    def pop(self) -> str:
        """Its first job, which leaves it."""
        return self.jobs.pop(0).job_id

    # --- what is told -------------------------------------------------------------------------
    def turns(self) -> bool:
        """Whether it passes quota now and did not when this was last asked, or the reverse."""
        before, self.reserved = self.reserved, self.never is None and self.refusal is None
        return before != self.reserved

    def tell_reserved(self) -> bool:
        """Whether its jobs were last told otherwise whether they have passed quota."""
        before, self.told_reserved = self.told_reserved, self.reserved
        return before != self.reserved

    def tell(self, rest: Verdict, at: float) -> list[str]:
        """All but the first are told this reason: their names."""
        self.rest, self.rest_at = rest, at
        self.fresh.clear()
        return [key.job_id for key in self.jobs[1:]]

    def tell_fresh(self) -> list[str]:
        """Those but the first that have not been told yet, in order of their names."""
        self.fresh.discard(self.head)
        names = sorted(self.fresh)
        self.fresh.clear()
        return names


class Unplanned(NamedTuple):
    """What it depends on that nobody can be preempted for the first job of a class: what
    `allows_plans`; whether the job is `overdue`, None = either. `just_started`: those that are
    taken from nobody; `barred`: pools in which it may take from nobody."""

    allows_plans: tuple[int, int, int]
    overdue: bool | None
    just_started: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()

    def same(self, other: "Unplanned") -> bool:
        """Whether what was found out by this is so by the other."""
        return (
            self.allows_plans == other.allows_plans
            and other.overdue in (None, self.overdue)
            and self.barred <= other.barred
        )


class UnplannedAtAll(Question):
    """That nobody can be preempted for the first job of a class, as preempt.py found it."""

    def stands(
        self, _state: object, _subject: object, known: Finding, depends_on: Unplanned
    ) -> bool:
        before: Unplanned = known.depends_on
        return before.same(depends_on)


class WaitQueue:
    """All jobs that may be attempted now; held and backing-off jobs are not here."""

    def __init__(self) -> None:
        self.eq_classes: dict[EquivalenceClass, None] = {}  # those with jobs
        self.ordered: list[tuple[OrderKey, EquivalenceClass]] = []  # by the classes' first jobs
        self.lanes: dict[tuple[str, str], int] = {}  # classes with jobs by tenant and queue
        self.touched: dict[EquivalenceClass, None] = {}  # those that got jobs since the last walk
        self.passed: list[EquivalenceClass] = []  # those of `awake` that are to be checked
        self._by_key: dict[Key, EquivalenceClass] = {}
        self._empty: dict[EquivalenceClass, None] = {}  # the longest without jobs first

    def add(self, record: JobRecord, key: Key, user: str) -> None:
        """Put a job into the class of its shape; it stays where its order key says."""
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
            )  # it was the first and now gets the reason of the rest
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
            self.touched.pop(eq_class, None)  # nobody is left in it to be asked or told
            self._count(eq_class, -1)
            self._keep(eq_class)
        elif not at:
            insort(self.ordered, (eq_class.jobs[0], eq_class))
        record.wait_in(None)

    def planned_anew(self, record: JobRecord) -> None:
        """A job is taken to run for another time than before."""
        eq_class = record.eq_class
        if eq_class is not None:
            eq_class.shortest = min(eq_class.shortest, record.planned_s or math.inf)
            eq_class.found.pop(SETTLED, None)

    def set_aside(self, eq_class: EquivalenceClass) -> None:
        """Take a class with all its jobs out of the queue; it keeps them."""
        self.ordered.pop(bisect_left(self.ordered, (eq_class.jobs[0],)))
        del self.eq_classes[eq_class], self._by_key[eq_class.key]
        self._count(eq_class, -1)
        self.touched.pop(eq_class, None)
        eq_class.reserved = eq_class.told_reserved = False
        eq_class.fresh.clear()

    def bring_back(self, eq_class: EquivalenceClass, jobs: list[OrderKey]) -> None:
        """Let a class that was set aside wait again, with these of its jobs. Nothing that was found
        out about it stands."""
        known = self._by_key.get(eq_class.key)
        if known is not None:  # it has no jobs, as those of its queue do not wait
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
        """What was found out about the shape holds for its next job, not what its jobs were told;
        nor is a class kept that is one job's own."""
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
        """Its first job changes; another one may preempt others than the first did."""
        eq_class.found.pop(UNPLANNED, None)
        self.ordered.pop(bisect_left(self.ordered, (eq_class.jobs[0],)))

    def awake(self, memo: Memo, since: int, now: float) -> list[tuple[OrderKey, EquivalenceClass]]:
        """The classes in order without those of which `still_settled` would say that they are, as
        seen from what was given back since the walk before. All must be assessed, and nobody be in
        anybody's way."""
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
        """Preemptions that were not possible may be now."""
        for eq_class in self.eq_classes:
            eq_class.found.pop(UNPLANNED, None)
            eq_class.found.pop(SETTLED, None)

    def forget_verdicts(self) -> None:
        """Everything found out about the classes may be wrong now."""
        for eq_class in tuple(self._empty):
            self._drop(eq_class)
        for eq_class in self.eq_classes:
            eq_class.found.clear()


class Merge:
    """Classes in the global order of their first jobs; a class comes again while it is put back.

    `ordered`: the classes in the order of their first jobs.
    """

    def __init__(self, ordered: Iterable[tuple[OrderKey, EquivalenceClass]]) -> None:
        self._rest = list(ordered)[::-1]  # the next at the end
        self._put_back: list[tuple[OrderKey, EquivalenceClass]] = []
        self._put_off: list[EquivalenceClass] = []
        self._second = False

    def pop(self) -> EquivalenceClass | None:
        """The class whose first job comes next; a victim of preemption may have left its class."""
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
        """Let all others go first, once; False when they have gone already."""
        if not self._second:
            self._put_off.append(eq_class)
        return not self._second

    def push(self, eq_class: EquivalenceClass | None) -> None:
        """The first job of a class queues for its turn; a class without jobs is nothing to
        queue."""
        if eq_class is not None and eq_class.jobs:
            heappush(self._put_back, (eq_class.jobs[0], eq_class))
