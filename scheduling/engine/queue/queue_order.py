"""The order of tenants that have several queues: rank, weighted share, order inside the queue.

Among jobs of equal priority, a tenant's next job comes from its queue of the highest rank; among
queues of equal rank, from the one that holds least for its weight. Shares are read anew after each
start. Queues only decide which job of a tenant waits for another job of that tenant. They never
bring a job before an earlier job of another tenant. Where tenants are ordered by submission, a job
that waits for another job of its tenant therefore goes behind that job.
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
    """The classes of one tenant whose first jobs have the same priority.

    `by_users`: the policy tells users apart. `levels`: zeros in place of the share levels that
    other tenants have below the tenant itself.
    """

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
        """Put a class that has jobs into the line of its queue."""
        self._number += 1
        queue = eq_class.queue
        by_users = self._queues.fair_users(self._tenant, queue, policy=self._by_users)
        users = self._parts.setdefault(queue, {})
        heap = users.setdefault(eq_class.user if by_users else "", [])
        heappush(heap, (eq_class.jobs[0], self._number, eq_class))

    def first(self) -> EquivalenceClass | None:
        """Return the class that goes next in this tenant."""
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
        """Return the position of a class among the classes of other tenants."""
        key = first.jobs[0]
        return key if self.passed is None else max(key, self.passed)

    def take(self) -> EquivalenceClass:
        """Remove and return the first class; call `first` before this."""
        return heappop(self._next)[2]

    def eq_classes(self) -> list[EquivalenceClass]:
        """Return all classes that are left."""
        heaps = [heap for users in self._parts.values() for heap in users.values()]
        return [eq_class for heap in heaps for _, _, eq_class in heap]


def _settle(heap: _Heap) -> bool:
    """Move classes until the top of the heap is ordered by its present first job.

    Return False if no class is left.
    """
    while heap:
        key, number, eq_class = heap[0]
        if eq_class.jobs and eq_class.jobs[0] == key:
            return True
        heappop(heap)
        if eq_class.jobs:
            heappush(heap, (eq_class.jobs[0], number, eq_class))
    return False


class OrderByQueues(Merge):
    """All classes in the order of their first jobs; some tenants order theirs by queues.

    See `Merge`. Jobs that have a turn go first of their priority: the nodes that empty for them are
    not for the other jobs, to which they have left everything else.
    """

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
        self._at: OrderKey | None = None  # the position of the class that was popped last
        self._later: list[tuple[OrderKey, EquivalenceClass]] = []  # put off, with their positions
        for eq_class in eq_classes:
            self.push(eq_class)

    def pop(self) -> EquivalenceClass | None:
        """Remove and return the class that goes next."""
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
                self.push(first)  # its first job has left the class meanwhile
            elif item.jobs and (self._second or self._place(item) == at):
                self._at = at
                return item
            else:
                self.push(item)

    def put_off(self, eq_class: EquivalenceClass) -> bool:
        """Let all other classes go first, once.

        Classes that were put off then come in the order in which they stood, whichever others
        were skipped. Return False if all others have gone already.
        """
        if not self._second:
            assert self._at is not None
            self._later.append((self._at, eq_class))
        return not self._second

    def push(self, eq_class: EquivalenceClass | None) -> None:
        """Queue a class by its first job.

        Every line of the tenant is queued again, because a job that has just started has changed
        the shares of the tenant's queues.
        """
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
