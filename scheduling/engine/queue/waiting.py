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
from typing import TYPE_CHECKING

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.demand.requested import Ask
from scheduling.engine.demand.shapes import Key
from scheduling.engine.queue.job import JobRecord, OrderKey
from scheduling.engine.quota.book import Kept, QuotaBook, Refusal
from scheduling.engine.verdict import Verdict

if TYPE_CHECKING:
    from scheduling.engine.queue.reservations import Settled

UNASKED = (-1, -1)
UNPLANNED = (-1, -1, False)

# Classes without jobs that are kept, as another job of their shape may come.
MAX_EMPTY = 1_000


@dataclass(slots=True, eq=False)
class Reach:
    """The `pools` in which a job could start if all that runs had ended, on these `nodes`. The
    answer is to what was `asked`, as of so many changes of the nodes (`at`)."""

    asked: tuple[object, ...]
    pools: frozenset[str]
    nodes: frozenset[str]
    at: int


@dataclass(slots=True, eq=False)
class EquivalenceClass:
    """Waiting jobs of one tenant and shape, in order, and what was found out about them.
    `user`: of this user alone, where the policy tells the users of a tenant apart.

    Each finding stands with the versions it was made at: `never` with those of node sizes and
    quotas (`never_at`), `ask` with that of node sizes (`ask_at`), `refusal` by quota with those of
    the book (`quota_at`: loosened, tightened; `quota_until`: a GPU model, and how much of it must
    have been given back before the refusal can end, or may be booked before it can begin;
    `admitted_at`: when it last ended), the failed placement (`failed_at`) with those of the cluster
    and of the book, and with the pools that were closed and the nodes and the quota to borrow that
    were reserved then (`failed_with`). `failure` is its reason; no preemption for the first job was
    possible at `unplanned_at`, and will not be before `unplanned_until` by the passing of time.
    `reserved`: neither `never` nor `refusal` stands; `told_reserved`: what its jobs were last told
    of that. `rest` is the reason told to all but the first job; those in `fresh` have not been
    told. No job of the class declares less than `shortest` seconds. `settled`: what its last answer
    rested on. `would_start`: behind these jobs, as found out then, only reserved nodes keep it
    waiting. `reach`: where it could start if all that runs had ended.
    """

    key: Key
    tenant: str
    user: str = ""
    jobs: list[OrderKey] = field(default_factory=list)
    never: Verdict | None = None
    never_at: tuple[int, int] = (-1, -1)
    refusal: Refusal | None = None
    quota_at: tuple[int, int] = UNASKED
    quota_until: tuple[str, int] | None = None
    admitted_at: float = -math.inf
    ask: Ask | None = None
    ask_at: int = -1
    reserved: bool = False
    told_reserved: bool = False
    unplanned_at: tuple[int, int, bool] = UNPLANNED
    unplanned_until: float = math.inf
    failure: Verdict | None = None
    failed_at: tuple[int, int] = (-1, -1)
    failed_with: tuple[frozenset[str], frozenset[str], Kept] = (frozenset(),) * 3
    rest: Verdict | None = None
    rest_at: float = 0.0
    fresh: set[str] = field(default_factory=set)
    shortest: float = math.inf
    settled: "Settled | None" = None
    would_start: tuple[object, float, bool] | None = None
    reach: Reach | None = None

    @property
    def head(self) -> str:
        return self.jobs[0].job_id

    def quota_stands(self, book: QuotaBook) -> bool:
        """Whether quota would answer the class as it did, be it with other numbers."""
        free = self.refusal is None
        if self.quota_at[free] == (book.tightened if free else book.loosened):
            return True
        if self.quota_until is None or self.quota_at == UNASKED:
            return False
        model, milli = self.quota_until
        if free:
            return book.booked.get(model, 0) <= milli
        return book.returned.get(model, 0) < milli


class WaitQueue:
    """All jobs that may be attempted now; held and backing-off jobs are not here."""

    def __init__(self) -> None:
        self.eq_classes: dict[EquivalenceClass, None] = {}  # those with jobs
        self.ordered: list[tuple[OrderKey, EquivalenceClass]] = []  # by the classes' first jobs
        self.touched: dict[EquivalenceClass, None] = {}  # those that got jobs since the last walk
        self._by_key: dict[Key, EquivalenceClass] = {}
        self._empty: dict[EquivalenceClass, None] = {}  # the longest without jobs first

    def add(self, record: JobRecord, key: Key, user: str) -> None:
        """Put a job into the class of its shape; it stays where its order key says."""
        eq_class = self._by_key.get(key)
        if eq_class is None:
            eq_class = self._by_key[key] = EquivalenceClass(key, record.job.tenant, user)
        if not eq_class.jobs:
            self._empty.pop(eq_class, None)
            self.eq_classes[eq_class] = None
            insort(self.ordered, (record.key, eq_class))
        elif record.key < eq_class.jobs[0]:
            eq_class.fresh.add(
                eq_class.head
            )  # it was the first and now gets the reason of the rest
            self._out_of_order(eq_class)
            insort(self.ordered, (record.key, eq_class))
        self.touched[eq_class] = None
        insort(eq_class.jobs, record.key)
        eq_class.shortest = min(eq_class.shortest, record.job.declared_s or math.inf)
        eq_class.fresh.add(record.job.id)
        record.eq_class = eq_class

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
            self._keep(eq_class)
        elif not at:
            insort(self.ordered, (eq_class.jobs[0], eq_class))
        record.eq_class = None

    def _keep(self, eq_class: EquivalenceClass) -> None:
        """What was found out about the shape holds for its next job, not what its jobs were told;
        nor is a class kept that is one job's own."""
        eq_class.rest = eq_class.settled = eq_class.would_start = None
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
        eq_class.unplanned_at = UNPLANNED
        self.ordered.pop(bisect_left(self.ordered, (eq_class.jobs[0],)))

    def awake(self, cluster: ClusterState, since: int) -> list[tuple[OrderKey, EquivalenceClass]]:
        """The classes in order without those of which `still_settled` would say that they are, as
        seen from what was given back since the walk before. All must be assessed, and nobody be in
        anybody's way."""
        most, gains, now = cluster.gained(since), cluster.gains, cluster.now
        if most is None:
            return self.ordered
        found = []
        for first, eq_class in self.ordered:
            known = eq_class.settled
            if (
                known is None
                or known.needs <= most
                or known.until <= now
                or known.first is not first
                or known.ask is not eq_class.ask
                or known.refused != (eq_class.refusal is not None)
                or eq_class.never is not None
                or eq_class.fresh
            ):
                found.append((first, eq_class))
            else:
                known.gained = gains
        return found

    def plan_anew(self) -> None:
        """Preemptions that were not possible may be now."""
        for eq_class in self.eq_classes:
            eq_class.unplanned_at = UNPLANNED
            eq_class.settled = None

    def forget_verdicts(self) -> None:
        """Everything found out about the classes may be wrong now."""
        for eq_class in tuple(self._empty):
            self._drop(eq_class)
        for eq_class in self.eq_classes:
            eq_class.never_at = eq_class.failed_at = (-1, -1)
            eq_class.unplanned_at = UNPLANNED
            eq_class.quota_at = UNASKED
            eq_class.settled = eq_class.reach = None


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
