"""The wait queue: one lane per tenant (or user of it) and request shape, in one global order.

Jobs of a lane differ in nothing but their order, so what is found out about the first holds for
all of them: an attempt that fails, a quota that refuses, a reason. A cycle therefore costs what
it starts and the number of lanes, not the number of waiting jobs.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduling.engine.cluster import ClusterState
from scheduling.engine.columns import Booking
from scheduling.engine.native import copied_by_fields
from scheduling.engine.queueing.asks import Ask
from scheduling.engine.queueing.fairness import NO_SHARES, Shares
from scheduling.engine.queueing.quota import Kept, QuotaBook, Refusal
from scheduling.engine.queueing.shapes import Key
from scheduling.engine.types import JobRequest, PodPlacement
from scheduling.engine.verdict import Verdict

if TYPE_CHECKING:
    from scheduling.engine.queueing.ahead import Settled


@dataclass(frozen=True, slots=True)
class Expected:
    """A blocked head starts at `at` on `nodes`, when declared run times hold. Once it is `until`
    and no job has ended, that is to be worked out anew: a job is past its declared end then."""

    at: float
    nodes: frozenset[str]
    until: float = field(default=math.inf, compare=False)


copied_by_fields(Expected)


@dataclass(slots=True)
class Promise:
    """Places booked for a preemptor, what of them is borrowed, and the pods that must go first."""

    placements: tuple[PodPlacement, ...]
    borrowed: tuple[tuple[str, int], ...]
    awaited: set[tuple[str, int, int]]


class InVain(NamedTuple):
    """That no preemption could make room, by these facts and the GPU-milli by model that were
    within reach; `nearly`: not before `until`. `protected_until`: when the first of those that are
    in their minimum run time may be preempted, inf = there are none."""

    facts: tuple[int, int]
    reach: dict[str, int]
    until: float
    nearly: bool
    protected_until: float

    def holds(self, facts: tuple[int, int], reach: dict[str, int], now: float) -> bool:
        """Whether a new plan would fail as well."""
        more = any(milli > self.reach[model] for model, milli in reach.items())
        return facts == self.facts and now < self.until and not more


OrderKey = tuple[float, float, int, str]


def order_key(job: JobRequest, *, front: bool = False) -> OrderKey:
    """Priority (high first), submission time, size (small first), then the id: a total order.

    `front`: before all other jobs of its priority.
    """
    return (-job.priority, -math.inf if front else job.submitted_at, job.gpu_milli, job.id)


@dataclass(slots=True)
class JobRecord:
    """What the engine knows of one job, waiting or started.

    `pods`: (pod set, ordinal) -> (GPU model, milli) of every place it holds, `placed_at` since
    when, where not since its start. `ended`: pods that are done and not to be placed again.
    `blamed`: node -> until when it is avoided. `queued_at`: when it last came into a lane;
    `waits_since`: since when nothing but quota, its turn and places keeps it, or the pods that it
    misses, from a start, None = it does not wait so. `blocked_since`: when it was first blocked at
    the head. `nearly`: what was backfilled past it has not all run long enough to be preempted,
    else it could start; `protected_until`: when enough of those whom it could preempt may have,
    `preempts_from`: when it will have waited for long enough to preempt anybody that it could,
    inf = it does not wait for that. `in_vain`: by
    what was to be placed, when no preemption could make room for it. `expected` is its reservation
    as of `expected_at`: the versions of the cluster and of the quotas, and the pools it was the
    head of. `disruptions`: how many of its pods may be evicted now, by its disruption budget.
    `leaving`: evicted pods that are not gone yet, and the places they had; `left`: all of it was
    evicted.
    `promise`: places held for it while others leave them. `grew_at`: as of when nothing more was
    found for an elastic gang that runs. `limit_at`: when its run time ends, as it is watched.
    """

    job: JobRequest
    key: OrderKey
    lane: "Lane | None" = None
    not_before: float = 0.0
    held: bool = False
    reserved: bool = False
    verdict: Verdict | None = None
    verdict_at: float = 0.0
    pods: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    placed_at: dict[tuple[int, int], float] = field(default_factory=dict)
    ended: set[tuple[int, int]] = field(default_factory=set)
    started_at: float | None = None
    blamed: dict[str, float] = field(default_factory=dict)
    queued_at: float = -math.inf
    waits_since: float | None = None
    blocked_since: float | None = None
    nearly: bool = False
    protected_until: float = math.inf
    preempts_from: float = math.inf
    in_vain: dict[object, InVain] = field(default_factory=dict)
    expected: Expected | None = None
    expected_at: tuple[int, int, frozenset[str]] | None = None
    preemptions: int = 0
    preempted_by: set[str] = field(default_factory=set)
    disruptions: int | None = None
    checkpoint_at: float = -math.inf
    leaving: dict[tuple[int, int], Booking] = field(default_factory=dict)
    left: bool = False
    promise: Promise | None = None
    grew_at: Any = None
    limit_at: float | None = None

    @property
    def passed_since(self) -> float | None:
        """Since when the jobs behind it that start pass it by: since it waits for nothing but
        places. None where it is the head of no pool."""
        if self.blocked_since is None or self.lane is None:
            return None
        return min(self.blocked_since, max(self.queued_at, self.lane.admitted_at))

    def placed_since(self, pod: tuple[int, int]) -> float:
        """Since when a pod of the job, which has started, holds its place."""
        assert self.started_at is not None
        return self.placed_at.get(pod, self.started_at)

    def protected(self, pods: int) -> int:
        """How many of so many of its pods the disruption budget protects; those that leave already
        may not show in it yet."""
        if self.disruptions is None:
            return 0
        return max(0, pods - max(0, self.disruptions - len(self.leaving)))

    @property
    def may_lose(self) -> bool:
        """Whether its disruption budget lets any pod go: of a gang that is not elastic, all."""
        pods = len(self.pods)
        return self.protected(pods) < (1 if self.job.gang and not self.job.elastic else pods)

    def missing(self) -> tuple[int, ...]:
        """Pods per pod set that have no place and have not ended. What ended beyond the count that
        a pod set has now is none of its pods."""
        sets = self.job.pod_sets
        counts = [s.count for s in sets]
        for pod_set, _ in self.pods:
            counts[pod_set] -= 1
        ended = {(i, ordinal) for i, ordinal in self.ended if ordinal < sets[i].count}
        for pod_set, _ in ended.union(self.leaving):
            counts[pod_set] -= 1
        return tuple(max(0, n) for n in counts)


UNASKED = (-1, -1)
UNPLANNED = (-1, -1, False)

# Lanes without jobs that are kept, as another job of their shape may come.
MAX_EMPTY = 1_000


@dataclass(slots=True, eq=False)
class Lane:
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
    told. No job of the lane declares less than `shortest` seconds. `settled`: what its last answer
    rested on. `would_start`: behind these jobs, as found out then, only reserved nodes keep it
    waiting.
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

    @property
    def head(self) -> str:
        return self.jobs[0][3]

    def quota_stands(self, book: QuotaBook) -> bool:
        """Whether quota would answer the lane as it did, be it with other numbers."""
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
        self.lanes: dict[Lane, None] = {}  # those with jobs
        self.ordered: list[tuple[OrderKey, Lane]] = []  # by the lanes' first jobs
        self.touched: dict[Lane, None] = {}  # those that got jobs since the last walk
        self._by_key: dict[Key, Lane] = {}
        self._empty: dict[Lane, None] = {}  # the longest without jobs first

    def add(self, record: JobRecord, key: Key, user: str) -> None:
        """Put a job into the lane of its shape; it stays where its order key says."""
        lane = self._by_key.get(key)
        if lane is None:
            lane = self._by_key[key] = Lane(key, record.job.tenant, user)
        if not lane.jobs:
            self._empty.pop(lane, None)
            self.lanes[lane] = None
            insort(self.ordered, (record.key, lane))
        elif record.key < lane.jobs[0]:
            lane.fresh.add(lane.head)  # it was the first and now gets the reason of the rest
            self._out_of_order(lane)
            insort(self.ordered, (record.key, lane))
        self.touched[lane] = None
        insort(lane.jobs, record.key)
        lane.shortest = min(lane.shortest, record.job.declared_s or math.inf)
        lane.fresh.add(record.job.id)
        record.lane = lane

    def remove(self, record: JobRecord) -> None:
        lane = record.lane
        if lane is None:
            return
        at = bisect_left(lane.jobs, record.key)
        if not at:
            self._out_of_order(lane)
        lane.jobs.pop(at)
        lane.fresh.discard(record.job.id)
        if not lane.jobs:
            del self.lanes[lane]
            self._keep(lane)
        elif not at:
            insort(self.ordered, (lane.jobs[0], lane))
        record.lane = None

    def _keep(self, lane: Lane) -> None:
        """What was found out about the shape holds for its next job, not what its jobs were told;
        nor is a lane kept that is one job's own."""
        lane.rest = lane.settled = lane.would_start = None
        lane.shortest = math.inf
        if isinstance(lane.key[1], tuple):
            self._empty[lane] = None
            if len(self._empty) > MAX_EMPTY:
                self._drop(next(iter(self._empty)))
        else:
            del self._by_key[lane.key]

    def _drop(self, empty: Lane) -> None:
        del self._empty[empty], self._by_key[empty.key]

    def _out_of_order(self, lane: Lane) -> None:
        """Its first job changes; another one may preempt others than the first did."""
        lane.unplanned_at = UNPLANNED
        self.ordered.pop(bisect_left(self.ordered, (lane.jobs[0],)))

    def awake(self, cluster: ClusterState, since: int) -> list[tuple[OrderKey, Lane]]:
        """The lanes in order without those of which `still_settled` would say that they are, as
        seen from what was given back since the walk before. All must be assessed, and nobody be in
        anybody's way."""
        most, gains, now = cluster.gained(since), cluster.gains, cluster.now
        if most is None:
            return self.ordered
        found = []
        for first, lane in self.ordered:
            known = lane.settled
            if (
                known is None
                or known.needs <= most
                or known.until <= now
                or known.first != first
                or known.ask is not lane.ask
                or known.refused != (lane.refusal is not None)
                or lane.never is not None
                or lane.fresh
            ):
                found.append((first, lane))
            else:
                known.gained = gains
        return found

    def plan_anew(self) -> None:
        """Preemptions that were not possible may be now."""
        for lane in self.lanes:
            lane.unplanned_at = UNPLANNED
            lane.settled = None

    def forget_verdicts(self) -> None:
        """Everything found out about the lanes may be wrong now."""
        for lane in tuple(self._empty):
            self._drop(lane)
        for lane in self.lanes:
            lane.never_at = lane.failed_at = (-1, -1)
            lane.unplanned_at = UNPLANNED
            lane.quota_at = UNASKED
            lane.settled = None


# Order; or priority, share, order; or priority, share of the tenant and of the user, order.
_MergeKey = OrderKey | tuple[float, float, OrderKey] | tuple[float, float, float, OrderKey]


class Merge:
    """Lanes in the global order of their first jobs; a lane comes again while it is put back.

    `ordered`: the lanes in the order of their first jobs. With `shares`, among equal priorities
    the tenant with the smallest share goes first, and of its users the one with the smallest.
    """

    def __init__(
        self,
        ordered: Iterable[tuple[OrderKey, Lane]],
        shares: Shares = NO_SHARES,
    ) -> None:
        self.shares = shares
        self._tenants, self._users = shares
        entries: list[tuple[_MergeKey, Lane]] = list(ordered)
        if shares.tenants:
            entries = sorted((self._key(lane), lane) for _, lane in entries)
        self._rest = entries[::-1]  # the next at the end
        self._put_back: list[tuple[_MergeKey, Lane]] = []
        self._later: list[tuple[_MergeKey, Lane]] = []
        self._second = False

    def pop(self) -> Lane | None:
        """The lane whose first job comes next; a victim of preemption may have left its lane."""
        while True:
            rest, put_back = self._rest, self._put_back
            if put_back and (not rest or put_back[0] < rest[-1]):
                key, lane = heappop(put_back)
            elif rest:
                key, lane = rest.pop()
            elif self._later:
                self._rest = sorted(self._later, reverse=True)
                self._later, self._second = [], True
                continue
            else:
                return None
            if lane.jobs and self._key(lane) == key:
                return lane
            self.push(lane)

    def put_off(self, lane: Lane) -> bool:
        """Let all others go first, once; False when they have gone already."""
        if not self._second:
            self._later.append((self._key(lane), lane))
        return not self._second

    def push(self, lane: Lane | None) -> None:
        """The first job of a lane queues for its turn; a lane without jobs is nothing to queue."""
        if lane is not None and lane.jobs:
            heappush(self._put_back, (self._key(lane), lane))

    def _key(self, lane: Lane) -> _MergeKey:
        first = lane.jobs[0]
        if not self._tenants:
            return first
        share = self._tenants.get(lane.tenant, 0.0)
        if self._users is None:
            return (first[0], share, first)
        return (first[0], share, self._users.get((lane.tenant, lane.user), 0.0), first)
