"""The order of fair share: whose turn it is, asked anew after each start.

Among equal priorities the tree of tenants is descended by the smallest share at each level, then
the users of the tenant; a job stands in its tenant as in the order without shares. Branches lie in
heaps by a lower bound of their keys: a start makes shares larger only along its own path, so a
branch is looked at again when it comes first, and a start costs the depth of the tree, not its
width. Where a share becomes smaller all is set up again.
"""

from collections.abc import Iterable
from heapq import heappop, heappush, heapreplace

from scheduling.engine.queue.job import OrderKey
from scheduling.engine.queue.standings import Standing, Standings
from scheduling.engine.queue.waiting import Lane, Merge

# Shares from a branch downwards, 0 for the levels that it does not have, then the job's own key.
_Key = tuple[float | OrderKey, ...]


class _Branch:
    """Lanes of one branch of the tree, or the branches below it; in the heap the first is next."""

    def __init__(self, standing: Standing | None, filled: int) -> None:
        self.standing = standing
        self.filler: _Key = (0.0,) * filled
        self.heap: list[tuple[_Key, int, Lane | _Branch]] = []
        self.below: dict[object, _Branch] = {}
        self.known: _Key | None = None  # its key in the heap above, no larger than what it is now

    def key(self) -> _Key | None:
        """Of the first lane, with the shares from here downwards; None = there is none."""
        heap = self.heap
        while heap:
            known, number, item = heap[0]
            if isinstance(item, _Branch):
                key = item.key()
                item.known = key
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

    def lanes(self) -> list[Lane]:
        """All that are left, some of them more than once."""
        found: list[Lane] = []
        for _, _, item in self.heap:
            if isinstance(item, _Branch):
                found += item.lanes()
            else:
                found.append(item)
        return found

    def take(self) -> Lane:
        """Remove the first lane; `key` has been asked."""
        _, _, item = self.heap[0]
        if isinstance(item, _Branch):
            return item.take()
        heappop(self.heap)
        return item


class FairOrder(Merge):
    """All lanes by fair share; see `Merge`. Jobs that have their turn come first of their
    priority."""

    def __init__(self, lanes: Iterable[Lane], standings: Standings, turns: Iterable[str]) -> None:
        super().__init__(())
        self._standings = standings
        self._turns = frozenset(turns)
        self._lowered = standings.lowered
        self._paths: dict[str, list[Standing]] = {}
        self._depth = 1
        self._number = 0
        self._fill(list(lanes))

    def _fill(self, lanes: list[Lane]) -> None:
        self._roots: dict[float, _Branch] = {}
        self._first: dict[float, list[tuple[OrderKey, int, Lane]]] = {}
        self._priorities: list[float] = []
        standings, paths = self._standings, self._paths
        for lane in lanes:
            if lane.tenant not in paths:
                paths[lane.tenant] = standings.path(lane.tenant)
                self._depth = max(self._depth, len(paths[lane.tenant]))
        for lane in lanes:
            self.push(lane)

    def pop(self) -> Lane | None:
        """The lane whose turn it is now."""
        standings = self._standings
        if standings.lowered != self._lowered:
            self._lowered = standings.lowered
            self._fill(self._left())
        while True:
            if not self._priorities:
                if not self._put_off:
                    return None
                lanes, self._put_off, self._second = self._put_off, [], True
                self._fill(lanes)
                continue
            after = self._priorities[0]
            lane = self._next(after)
            if lane is None:
                heappop(self._priorities)
                del self._roots[after], self._first[after]
            elif lane.jobs[0].after == after:
                return lane
            else:
                self.push(lane)  # its first job has left it meanwhile

    def _next(self, after: float) -> Lane | None:
        first = self._first[after]
        while first:
            _, _, lane = heappop(first)
            if lane.jobs:
                return lane
        root = self._roots[after]
        return None if root.key() is None else root.take()

    def put_off(self, lane: Lane) -> bool:
        """Let all others go first, once; False when they have gone already."""
        if not self._second:
            self._put_off.append(lane)
        return not self._second

    def push(self, lane: Lane | None) -> None:
        """The first job of a lane queues for its turn; a lane without jobs is nothing to queue."""
        if lane is None or not lane.jobs:
            return
        key = lane.jobs[0]
        self._number += 1
        root = self._roots.get(key.after)
        if root is None:
            root = self._roots[key.after] = _Branch(None, 0)
            self._first[key.after] = []
            heappush(self._priorities, key.after)
        if key.job_id in self._turns:
            heappush(self._first[key.after], (key, self._number, lane))
            return
        path = self._path(lane)
        at, passed = root, [root]
        for depth, standing in enumerate(path, 1):
            below = at.below.get(standing)
            if below is None:
                last = len(self._paths[lane.tenant]) == depth
                below = _Branch(standing, self._depth - depth if last else 0)
                at.below[standing] = below
            at = below
            passed.append(at)
        heappush(at.heap, ((key,), self._number, lane))
        for above, branch in zip(passed[-2::-1], passed[:0:-1], strict=True):
            now = branch.key()
            assert now is not None
            if branch.known is not None and branch.known <= now:
                break
            branch.known = now
            self._number += 1
            heappush(above.heap, (now, self._number, branch))

    def _path(self, lane: Lane) -> list[Standing]:
        path = self._paths.get(lane.tenant)
        if path is None:
            path = self._paths[lane.tenant] = self._standings.path(lane.tenant)
        if not self._standings.of_users:
            return path
        return [*path, self._standings.of(lane.tenant, lane.user)]

    def _left(self) -> list[Lane]:
        """All lanes that have not come yet."""
        found = [lane for first in self._first.values() for _, _, lane in first]
        for root in self._roots.values():
            found += root.lanes()
        return list(dict.fromkeys(found))
