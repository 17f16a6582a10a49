"""The order of tenants that have several queues: rank, then weighted shares, then in the queue.

Among equal priorities a tenant's next job is of its queue of the highest rank, of equal ones of the
one that holds least by weight, as read after each start. Queues make jobs of their tenant wait for
each other; they bring none of them before the job of another tenant that stands before it. So where
tenants stand by submission, a job that waits for one of its tenant's goes behind that one.
"""

import math
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.order import OrderKey
from scheduling.engine.queue.queues import Queues
from scheduling.engine.queue.waiting import EquivalenceClass, Merge

_Heap = list[tuple[OrderKey, int, EquivalenceClass]]


class TenantLine:
    """Classes of one tenant whose first jobs are of one priority. `by_users`: whether the policy
    tells users apart. `levels`: zeros for the levels of shares that others have below their
    tenant."""

    def __init__(
        self,
        tenant: str,
        queues: Queues,
        jobs: Mapping[str, JobRecord],
        *,
        by_users: bool,
        levels: tuple[float, ...] = (),
    ) -> None:
        self.levels = levels
        self.passed: OrderKey | None = None  # the last place at which one of its jobs was asked
        self._tenant = tenant
        self._queues = queues
        self._jobs = jobs
        self._by_users = by_users
        self._parts: dict[str, dict[str, _Heap]] = {}  # by queue and user
        self._number = 0
        self._next: _Heap = []

    def push(self, eq_class: EquivalenceClass) -> None:
        """A class with jobs lines up in its queue."""
        self._number += 1
        queue = eq_class.queue
        by_users = self._queues.fair_users(self._tenant, queue, policy=self._by_users)
        users = self._parts.setdefault(queue, {})
        heap = users.setdefault(eq_class.user if by_users else "", [])
        heappush(heap, (eq_class.jobs[0], self._number, eq_class))

    def first(self) -> EquivalenceClass | None:
        """The class whose turn it is in the tenant now."""
        best: tuple[float, float, OrderKey] | None = None
        found: EquivalenceClass | None = None
        for queue, users in list(self._parts.items()):
            in_queue: tuple[float, OrderKey] | None = None
            next_of: _Heap = []
            for user, heap in list(users.items()):
                if not _settle(heap):
                    del users[user]
                    continue
                share = self._queues.user_share(self._tenant, queue, user) if user else 0.0
                of_user = (share, heap[0][0])
                if in_queue is None or of_user < in_queue:
                    in_queue, next_of = of_user, heap
            if in_queue is None:
                del self._parts[queue]
                continue
            rank, held = self._queues.standing(self._jobs[in_queue[1].job_id].job)
            key = (rank, held, in_queue[1])
            if best is None or key < best:
                best, found, self._next = key, next_of[0][2], next_of
        return found

    def place(self, first: EquivalenceClass) -> OrderKey:
        """Where a class stands among those of other tenants."""
        key = first.jobs[0]
        return key if self.passed is None else max(key, self.passed)

    def take(self) -> EquivalenceClass:
        """Remove the first class; `first` has been asked."""
        return heappop(self._next)[2]

    def eq_classes(self) -> list[EquivalenceClass]:
        """All that are left."""
        heaps = [heap for users in self._parts.values() for heap in users.values()]
        return [eq_class for heap in heaps for _, _, eq_class in heap]


def _settle(heap: _Heap) -> bool:
    """Let the first of the heap stand by the job that it has now; whether there is any."""
    while heap:
        key, number, eq_class = heap[0]
        if eq_class.jobs and eq_class.jobs[0] == key:
            return True
        heappop(heap)
        if eq_class.jobs:
            heappush(heap, (eq_class.jobs[0], number, eq_class))
    return False


class OrderByQueues(Merge):
    """All classes in the order of their first jobs, those of some tenants by their queues; see
    `Merge`. Jobs that have their turn come first of their priority: what empties for them is not
    for others, whom they left all else."""

    def __init__(
        self,
        eq_classes: Iterable[EquivalenceClass],
        queues: Queues,
        jobs: Mapping[str, JobRecord],
        turns: Iterable[str] = (),
    ) -> None:
        super().__init__(())
        self._queues = queues
        self._jobs = jobs
        self._turns = frozenset(turns)
        self._number = 0
        self._heap: list[tuple[OrderKey, int, EquivalenceClass | TenantLine]] = []
        self._lines: dict[str, dict[float, TenantLine]] = {}  # by tenant and priority
        self._at: OrderKey | None = None  # where the class stood that came last
        self._later: list[tuple[OrderKey, EquivalenceClass]] = []  # put off, and where they stood
        for eq_class in eq_classes:
            self.push(eq_class)

    def pop(self) -> EquivalenceClass | None:
        """The class whose turn it is now."""
        while True:
            if not self._heap:
                if not self._later:
                    return None
                later, self._later, self._second = self._later, [], True
                self._lines.clear()
                for place, eq_class in later:
                    self._add(place, eq_class)
                continue
            at, _, item = heappop(self._heap)
            if isinstance(item, TenantLine):
                first = item.first()
                if first is None:
                    continue
                place = item.place(first)
                if place > at:
                    self._add(place, item)
                    continue
                item.take()
                item.passed = place
                self._line_up(item)
                if first.jobs[0].after == place.after:
                    self._at = place
                    return first
                self.push(first)  # its first job has left it meanwhile
            elif item.jobs and (self._second or self._place(item) == at):
                self._at = at
                return item
            else:
                self.push(item)

    def put_off(self, eq_class: EquivalenceClass) -> bool:
        """Let all others go first, once, and then those in the order in which they stood, whoever
        else had nothing new to be told; False when they have gone already."""
        if not self._second:
            assert self._at is not None
            self._later.append((self._at, eq_class))
        return not self._second

    def push(self, eq_class: EquivalenceClass | None) -> None:
        """The first job of a class queues for its turn. Whoever has just started has changed the
        shares of the queues of its tenant."""
        if eq_class is None:
            return
        has_turn = bool(eq_class.jobs) and eq_class.head in self._turns
        if has_turn or eq_class.tenant not in self._queues.ordered:
            if eq_class.jobs:
                self._add(self._place(eq_class), eq_class)
            return
        lines = self._lines.setdefault(eq_class.tenant, {})
        if eq_class.jobs:
            after = eq_class.jobs[0].after
            line = lines.get(after)
            if line is None:
                line = lines[after] = TenantLine(
                    eq_class.tenant, self._queues, self._jobs, by_users=False
                )
            line.push(eq_class)
        for line in lines.values():
            self._line_up(line)

    def _place(self, eq_class: EquivalenceClass) -> OrderKey:
        first = eq_class.jobs[0]
        if first.job_id in self._turns:
            return OrderKey(first.after, -math.inf, first.gpu_milli, first.job_id)
        return first

    def _line_up(self, line: TenantLine) -> None:
        first = line.first()
        if first is not None:
            self._add(line.place(first), line)

    def _add(self, at: OrderKey, item: EquivalenceClass | TenantLine) -> None:
        self._number += 1
        heappush(self._heap, (at, self._number, item))
