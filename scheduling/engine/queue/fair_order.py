"""The order by fair share: which class goes next, asked anew after each start.

Among jobs of equal priority the search descends the tree of tenants, at each level into the branch
with the smallest share, then to the user of the tenant with the smallest share. Inside a tenant (or
user) jobs are ordered as without shares, or by queues if the tenant has several (queue_order.py).

Branches lie in heaps by a lower bound of their keys. A start makes shares larger only on its own
path, so a branch is checked only when it comes to the top. A start therefore costs the depth of the
tree, not its width. If a share becomes smaller, everything is rebuilt.
"""

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush, heapreplace

from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.order import OrderKey
from scheduling.engine.queue.queue_order import TenantLine
from scheduling.engine.queue.queues import Queues
from scheduling.engine.queue.standings import Standing, Standings
from scheduling.engine.queue.waiting import EquivalenceClass, Merge

# The shares from a branch downwards, 0 for levels that it lacks, then the key of the job itself.
_Key = tuple[float | OrderKey, ...]


class _Branch:
    """One branch of the tree: its classes, or the branches below it, in a heap."""

    def __init__(self, standing: Standing | None, filled: int) -> None:
        self.standing = standing
        self.filler: _Key = (0.0,) * filled
        self.heap: list[tuple[_Key, int, EquivalenceClass | _Branch | TenantLine]] = []
        self.line: TenantLine | None = None  # for a tenant whose jobs are ordered by queues
        self.below: dict[object, _Branch] = {}
        self.known: _Key | None = None  # its key in the heap above; at most its present key

    def key(self) -> _Key | None:
        """Return the key of the first class, with the shares from here downwards; None if empty."""
        heap = self.heap
        while heap:
            known, number, item = heap[0]
            if isinstance(item, _Branch):
                key = item.key()
                item.known = key
            elif isinstance(item, TenantLine):
                key = _key_of(item)
            else:
                key = (item.jobs[0],) if item.jobs else None
            if key is None:
                heappop(heap)
            elif key == known:
                own: _Key = () if self.standing is None else (self.standing.share,)
                return own + self.filler + known
            else:
                heapreplace(heap, (key, number, item))
        return None

    def eq_classes(self) -> list[EquivalenceClass]:
        """Return all classes that are left; some may appear more than once."""
        found: list[EquivalenceClass] = []
        for _, _, item in self.heap:
            if isinstance(item, _Branch | TenantLine):
                found += item.eq_classes()
            else:
                found.append(item)
        return found

    def take(self) -> EquivalenceClass:
        """Remove and return the first class; call `key` before this."""
        _, _, item = self.heap[0]
        if isinstance(item, _Branch | TenantLine):
            return item.take()
        heappop(self.heap)
        return item


def _key_of(line: TenantLine) -> _Key | None:
    """Return the key of the first class of a line among the classes of other tenants."""
    first = line.first()
    return None if first is None else (*line.levels, first.jobs[0])


class FairOrder(Merge):
    """All classes by fair share; see `Merge`. Jobs with a turn go first of their priority."""

    def __init__(
        self,
        eq_classes: Iterable[EquivalenceClass],
        standings: Standings,
        turns: Iterable[str],
        queues: Queues,
        jobs: Mapping[str, JobRecord],
    ) -> None:
        super().__init__(())
        self._queues = queues
        self._jobs = jobs
        self._standings = standings
        self._turns = frozenset(turns)
        self._lowered = standings.lowered
        self._paths: dict[str, list[Standing]] = {}
        self._depth = 1
        self._number = 0
        self._fill(list(eq_classes))

    def _fill(self, eq_classes: list[EquivalenceClass]) -> None:
        self._roots: dict[float, _Branch] = {}
        self._first: dict[float, list[tuple[OrderKey, int, EquivalenceClass]]] = {}
        self._priorities: list[float] = []
        standings, paths = self._standings, self._paths
        for eq_class in eq_classes:
            if eq_class.tenant not in paths:
                paths[eq_class.tenant] = standings.path(eq_class.tenant)
                self._depth = max(self._depth, len(paths[eq_class.tenant]))
        for eq_class in eq_classes:
            self.push(eq_class)

    def pop(self) -> EquivalenceClass | None:
        """Remove and return the class that goes next."""
        standings = self._standings
        if standings.lowered != self._lowered:
            self._lowered = standings.lowered
            self._fill(self._left())
        while True:
            if not self._priorities:
                if not self._put_off:
                    return None
                eq_classes, self._put_off, self._second = self._put_off, [], True
                self._fill(eq_classes)
                continue
            after = self._priorities[0]
            eq_class = self._next(after)
            if eq_class is None:
                heappop(self._priorities)
                del self._roots[after], self._first[after]
            elif eq_class.jobs[0].after == after:
                return eq_class
            else:
                self.push(eq_class)  # its first job has left the class meanwhile

    def _next(self, after: float) -> EquivalenceClass | None:
        first = self._first[after]
        while first:
            _, _, eq_class = heappop(first)
            if eq_class.jobs:
                return eq_class
        root = self._roots[after]
        return None if root.key() is None else root.take()

    def push(self, eq_class: EquivalenceClass | None) -> None:
        """Queue a class by its first job; do nothing for a class without jobs."""
        if eq_class is None or not eq_class.jobs:
            return
        key = eq_class.jobs[0]
        self._number += 1
        root = self._roots.get(key.after)
        if root is None:
            root = self._roots[key.after] = _Branch(None, 0)
            self._first[key.after] = []
            heappush(self._priorities, key.after)
        if key.job_id in self._turns:
            heappush(self._first[key.after], (key, self._number, eq_class))
            return
        path = self._path(eq_class)
        at, passed = root, [root]
        for depth, standing in enumerate(path, 1):
            below = at.below.get(standing)
            if below is None:
                last = len(self._paths[eq_class.tenant]) == depth
                below = _Branch(standing, self._depth - depth if last else 0)
                at.below[standing] = below
            at = below
            passed.append(at)
        if eq_class.tenant in self._queues.ordered:
            self._line_up(at, eq_class)
        else:
            heappush(at.heap, ((key,), self._number, eq_class))
        for above, branch in zip(passed[-2::-1], passed[:0:-1], strict=True):
            now = branch.key()
            assert now is not None
            if branch.known is not None and branch.known <= now:
                break
            branch.known = now
            self._number += 1
            heappush(above.heap, (now, self._number, branch))

    def _line_up(self, at: _Branch, eq_class: EquivalenceClass) -> None:
        """Put a class into the line of its tenant, which is the only item of its branch."""
        line, by_users = at.line, self._standings.of_users
        if line is None:
            levels = (0.0,) if by_users else ()
            line = at.line = TenantLine(
                eq_class.tenant, self._queues, self._jobs, by_users=by_users, levels=levels
            )
        line.push(eq_class)
        key = _key_of(line)
        assert key is not None
        heappush(at.heap, (key, self._number, line))

    def _path(self, eq_class: EquivalenceClass) -> list[Standing]:
        path = self._paths.get(eq_class.tenant)
        if path is None:
            path = self._paths[eq_class.tenant] = self._standings.path(eq_class.tenant)
        if not self._standings.of_users or eq_class.tenant in self._queues.ordered:
            return path
        return [*path, self._standings.of(eq_class.tenant, eq_class.user)]

    def _left(self) -> list[EquivalenceClass]:
        """Return all classes that have not been popped yet."""
        found = [eq_class for first in self._first.values() for _, _, eq_class in first]
        for root in self._roots.values():
            found += root.eq_classes()
        return list(dict.fromkeys(found))
