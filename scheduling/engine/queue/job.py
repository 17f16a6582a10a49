"""What the engine knows of one job, waiting or started."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from scheduling.engine.cluster.columns import Booking
from scheduling.engine.memo import Found
from scheduling.engine.native import copied_by_fields
from scheduling.engine.quota.holds import Hold
from scheduling.engine.types import JobRequest, PodPlacement
from scheduling.engine.verdict import Verdict

if TYPE_CHECKING:
    from scheduling.engine.queue.waiting import EquivalenceClass


@dataclass(frozen=True, slots=True)
class Expected:
    """A blocked head starts at `at` on `nodes`, when declared run times hold. Once it is `until`
    and no job has ended, that is to be worked out anew: a job is past its declared end then.
    `hold`: what it will need beside the nodes."""

    at: float
    nodes: frozenset[str]
    until: float = field(default=math.inf, compare=False)
    hold: Hold | None = field(default=None, compare=False)


copied_by_fields(Expected)


@dataclass(frozen=True, slots=True)
class Turn:
    """These nodes are kept for a job whose turn it is. They were chosen by the facts of the nodes
    as of `chosen_by`, and are again when they have not emptied by `until`."""

    nodes: frozenset[str]
    until: float
    chosen_by: int


copied_by_fields(Turn)


@dataclass(slots=True)
class Nomination:
    """Places booked for a preemptor, what of them is borrowed, and the pods that must go first."""

    placements: tuple[PodPlacement, ...]
    borrowed: tuple[tuple[str, int], ...]
    awaited: set[tuple[str, int, int]]


@dataclass(slots=True)
class NoPlan:
    """Why nobody was preempted for a job when that was last looked for; written by preempt.py.

    `again_at`: no plan is possible before that by the passing of time alone. `awaits_min_runtime`:
    what was backfilled past it has not all run long enough to be preempted, else it could start.
    `protected_until`: when enough of those whom it could preempt have run long enough, and
    `preempts_from`: when it will have waited for long enough to preempt anybody that it could; inf
    = that is not what it waits for.
    """

    again_at: float = math.inf
    awaits_min_runtime: bool = False
    protected_until: float = math.inf
    preempts_from: float = math.inf


NOT_LOOKED_FOR: Final = NoPlan()  # of all jobs for which nobody was to be preempted yet


class OrderKey(NamedTuple):
    """The place of a job among all: a total order."""

    after: float  # the higher its priority, the smaller
    submitted_at: float
    gpu_milli: int
    job_id: str


def order_key(job: JobRequest, *, front: bool = False) -> OrderKey:
    """Priority (high first), submission time, size (small first), then the id.

    `front`: before all other jobs of its priority.
    """
    submitted_at = -math.inf if front else job.submitted_at
    return OrderKey(-job.priority, submitted_at, job.gpu_milli, job.id)


@dataclass(slots=True, init=False)  # a native __init__ takes a fifth of the time
class JobRecord:
    """What the engine knows of one job, waiting or started. Beside each field: who writes it, where
    that is not only the state (`state.py`) and what is told of the job (`apply_deltas.py`). A pod
    is (pod set, ordinal); times are seconds since the epoch."""

    # --- what it asks for, and its place in the queue
    job: JobRequest
    key: OrderKey  # its place among all jobs
    eq_class: "EquivalenceClass | None"  # where it waits; by the queue (waiting.py) alone
    aside: "EquivalenceClass | None"  # where it stood when its queue was held; by held_queues.py
    not_before: float  # its start time, or the end of its back-off
    held: bool
    avoided_nodes: dict[str, float]  # node -> until when; dropped when that has passed

    # --- how long it has waited, and for what
    queued_at: float  # when it last came into a class
    # Since when nothing but quota, its turn and places, or the pods that it misses, keeps it from a
    # start; None = it does not wait so.
    waits_since: float | None
    blocked_since: float | None  # when it was first blocked at the head; by outcome.py
    reserved: bool  # it has passed quota; by quota_admission.py, ends with its start
    verdict: Verdict | None  # what it was last told; by reasons/tell.py, None = tell it anew
    verdict_at: float  # when
    found: Found  # what the memo knows of it

    # --- what is kept for it while it waits
    expected: Expected | None  # its reservation; by policies.py
    turn: Turn | None  # nodes, as it is its turn by fair share; by policies.py
    nomination: Nomination | None  # places that others leave first; by start.py

    # --- what it holds
    started_at: float | None
    pods: dict[tuple[int, int], tuple[str, int]]  # pod -> GPU model and milli of its place
    placed_at: dict[tuple[int, int], float]  # since when, where that is not since its start
    runs_since: dict[tuple[int, int], float]  # when pods began to run, as far as that was told
    ended: set[tuple[int, int]]  # pods that are done and not to be placed again
    limit_at: float | None  # when its run time ends, as it is watched; by limits.py

    # --- preemption
    no_plan: NoPlan  # why nobody was preempted for it; by preempt.py alone
    preemptions: int  # how often it was preempted; by preempt.py
    preempted_by: set[str]  # by which jobs; by preempt.py
    preempted_at: float  # when last, as far as this scheduler knows; by preempt.py
    disruptions: int | None  # how many of its pods may be evicted now, by its disruption budget
    checkpoint_at: float  # when it last saved its work
    leaving: dict[tuple[int, int], Booking]  # evicted pods that are not gone yet, and their places
    left: bool  # all of it was evicted

    def __init__(self, job: JobRequest, key: OrderKey) -> None:
        self.job = job
        self.key = key
        self.eq_class = None
        self.aside = None
        self.not_before = 0.0
        self.held = False
        self.reserved = False
        self.verdict = None
        self.verdict_at = 0.0
        self.pods = {}
        self.placed_at = {}
        self.runs_since = {}
        self.ended = set()
        self.started_at = None
        self.avoided_nodes = {}
        self.queued_at = -math.inf
        self.waits_since = None
        self.blocked_since = None
        self.no_plan = NOT_LOOKED_FOR
        self.expected = None
        self.found = {}
        self.turn = None
        self.preemptions = 0
        self.preempted_by = set()
        self.preempted_at = -math.inf
        self.disruptions = None
        self.checkpoint_at = -math.inf
        self.leaving = {}
        self.left = False
        self.nomination = None
        self.limit_at = None

    @property
    def about(self) -> str:
        """Of whom something was found out."""
        return f"job {self.job.id}"

    @property
    def passed_since(self) -> float | None:
        """Since when the jobs behind it that start pass it by: since it waits for nothing but
        places. None where it is the head of no pool."""
        if self.blocked_since is None or self.eq_class is None:
            return None
        return min(self.blocked_since, max(self.queued_at, self.eq_class.admitted_at))

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
