"""What the engine knows of one job, waiting or started."""

import math
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from scheduling.engine.cluster.columns import Booking
from scheduling.engine.deltas import JobHistory, LearnedTime
from scheduling.engine.memo import Found
from scheduling.engine.native import copied_by_fields
from scheduling.engine.queue.order import OrderKey, order_key
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
# Of all jobs to which it has not happened: a set of its own is 216 bytes.
NO_PODS: Final[AbstractSet[tuple[int, int]]] = frozenset()
NO_JOBS: Final[frozenset[str]] = frozenset()


@dataclass(slots=True, init=False)  # a native __init__ takes a fifth of the time
class JobRecord:
    """What the engine knows of one job, waiting or started. Its fields are written here, and by the
    state (`state.py`) where it comes to wait, and gets and gives back places. A pod is (pod set,
    ordinal); times are seconds since the epoch."""

    # --- what it asks for, and its place in the queue
    job: JobRequest
    key: OrderKey  # its place among all jobs
    stands_at: float | None  # since when, by a learned run time; None = since its submission
    eq_class: "EquivalenceClass | None"  # where it waits
    aside: "EquivalenceClass | None"  # where it stood when its queue was held
    not_before: float  # its start time, or the end of its back-off
    held: bool
    avoided_nodes: dict[str, float]  # node -> until when; dropped when that has passed

    # --- how long it is likely to run, where it declares nothing
    likely: LearnedTime | None  # None = nobody knows
    learned_s: float | None  # the run time that it goes by now; None = by none

    # --- how long it has waited, and for what
    queued_at: float  # when it last came into a class
    # Since when nothing but quota, its turn and places, or the pods that it misses, keeps it from a
    # start; None = it does not wait so.
    waits_since: float | None
    blocked_since: float | None  # when it was first blocked at the head
    reserved: bool  # it has passed quota; ends with its start
    verdict: Verdict | None  # what it was last told; None = tell it anew
    verdict_at: float  # when
    found: Found  # what the memo knows of it

    # --- what is kept for it while it waits
    expected: Expected | None  # its reservation
    turn: Turn | None  # nodes, as it is its turn by fair share
    nomination: Nomination | None  # places that others leave first

    # --- what it holds
    started_at: float | None
    pods: dict[tuple[int, int], tuple[str, int]]  # pod -> GPU model and milli of its place
    placed_at: dict[tuple[int, int], float]  # since when, where that is not since its start
    runs_since: dict[tuple[int, int], float]  # when pods began to run, as far as that was told
    ended: AbstractSet[tuple[int, int]]  # pods that are done and not to be placed again
    limit_at: float | None  # when its run time ends, as it is watched

    # --- preemption
    no_plan: NoPlan  # why nobody was preempted for it
    preemptions: int  # how often it was preempted
    preempted_by: frozenset[str]  # by which jobs
    preempted_at: float  # when last, as far as this scheduler knows
    disruptions: int | None  # how many of its pods may be evicted now, by its disruption budget
    checkpoint_at: float  # when it last saved its work
    leaving: dict[tuple[int, int], Booking]  # evicted pods that are not gone yet, and their places
    left: bool  # all of it was evicted
    lost_gpu_s: float  # by moves

    def __init__(self, job: JobRequest, key: OrderKey) -> None:
        self.job = job
        self.key = key
        self.stands_at = None
        self.eq_class = None
        self.aside = None
        self.not_before = 0.0
        self.held = False
        self.likely = None
        self.learned_s = None
        self.reserved = False
        self.verdict = None
        self.verdict_at = 0.0
        self.pods = {}
        self.placed_at = {}
        self.runs_since = {}
        self.ended = NO_PODS
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
        self.preempted_by = NO_JOBS
        self.preempted_at = -math.inf
        self.disruptions = None
        self.checkpoint_at = -math.inf
        self.leaving = {}
        self.left = False
        self.lost_gpu_s = 0.0
        self.nomination = None
        self.limit_at = None

    @property
    def about(self) -> str:
        """Of whom something was found out."""
        return f"job {self.job.id}"

    @property
    def planned_s(self) -> float | None:
        """How long it is taken to run from its start on, as declared, else as learned; None =
        nobody knows."""
        declared = self.job.declared_s
        return self.learned_s if declared is None else declared

    @property
    def passed_since(self) -> float | None:
        """Since when the jobs behind it that start pass it by: since it waits for nothing but
        places. None where it is the head of no pool."""
        if self.blocked_since is None or self.eq_class is None:
            return None
        return min(self.blocked_since, max(self.queued_at, self.eq_class.admitted_at))

    # --- what its owner says ------------------------------------------------------------------
    def submitted(self, not_before: float, *, held: bool, waits_since: float | None = None) -> None:
        """As it is submitted, or changed, now. It is told anew: who changes a job may say otherwise
        what holds it. `waits_since`: of a new one."""
        self.held, self.not_before = held, not_before
        if waits_since is not None:
            self.waits_since = waits_since
        self.verdict = None

    def asks_for(self, job: JobRequest, *, front: bool) -> None:
        """This from now on; `front`: before all other jobs of its priority."""
        self.job = job
        self.key = order_key(job, front=front, stands_at=self.stands_at)

    def stand(self, at: float | None) -> None:
        """In the queue since then, None = since its submission; it is in no class meanwhile."""
        self.stands_at = at
        self.asks_for(self.job, front=self.key.stands_at == -math.inf)

    def may_use(self, job: JobRequest) -> None:
        """The same as before on other nodes; its place in the queue stays."""
        self.job = job

    def saved(self, at: float) -> None:
        """Its work, then."""
        self.checkpoint_at = at

    def allow_disruptions(self, pods: int | None) -> bool:
        """So many of its pods may be evicted now, None = any; returns whether these are more."""
        before, self.disruptions = self.disruptions, pods
        return before is not None and (pods is None or pods > before)

    # --- how long it is likely to run ---------------------------------------------------------
    def learned(self, likely: LearnedTime) -> None:
        """What is known of its like."""
        self.likely = likely

    def go_by_learned(self, age_s: float | None) -> bool:
        """`age_s`: for how long it runs, None = it waits: then by what most of its like take, else
        by what half of those take that run for longer; returns whether that is news."""
        before, self.learned_s = self.learned_s, None
        if self.likely is not None and age_s is None:
            self.learned_s = self.likely.most_s
        elif self.likely is not None and age_s is not None:
            self.learned_s = 2 * age_s
            for seconds in self.likely.middles:
                if seconds > age_s:
                    self.learned_s = seconds
                    break
        return self.learned_s != before

    def forget_learned(self) -> bool:
        """Go by no learned run time; returns whether it did."""
        before, self.learned_s = self.learned_s, None
        return before is not None

    # --- what it is told ----------------------------------------------------------------------
    def tell(self, verdict: Verdict, at: float) -> None:
        """Why it waits, as it was told then."""
        self.verdict, self.verdict_at = verdict, at

    def tell_anew(self) -> None:
        """Whatever it was told, it is to be told why it waits."""
        self.verdict = None

    def tell_soon(self) -> None:
        """New numbers are told at once, not a while after the last."""
        self.verdict_at = -math.inf

    # --- waiting ------------------------------------------------------------------------------
    def wait_in(self, eq_class: "EquivalenceClass | None") -> None:
        """From now on; None = in no class."""
        self.eq_class = eq_class

    def put_off(self, until: float) -> None:
        """It waits at least until then."""
        self.not_before = max(self.not_before, until)

    def avoid(self, nodes: Iterable[str], until: float) -> None:
        """Nodes on which pods of it failed, for a while."""
        self.avoided_nodes.update(dict.fromkeys(nodes, until))

    def forgive(self, now: float) -> float | None:
        """Drop the blame of nodes that has passed; returns when the next of it will have."""
        if not self.avoided_nodes:
            return None
        self.avoided_nodes = {n: until for n, until in self.avoided_nodes.items() if until > now}
        return min(self.avoided_nodes.values(), default=None)

    def requeued(self, not_before: float, *, front: bool) -> None:
        """All of it starts anew, not before then."""
        self.ended = NO_PODS
        self.reserved = False
        self.verdict = self.waits_since = None
        self.not_before = not_before
        self.key = order_key(self.job, front=front, stands_at=self.stands_at)
        if self.learned_s is not None:
            self.go_by_learned(None)

    def passed_quota(self, *, passed: bool) -> bool:
        """Whether that is news."""
        news = self.reserved != passed
        self.reserved = passed
        return news

    def blocked(self, since: float | None) -> bool:
        """Since when it is blocked at the head, None = no longer; returns whether that is news."""
        news = self.blocked_since != since
        self.blocked_since = since
        return news

    def set_aside(self) -> None:
        """Its queue is held: its class keeps it, and it waits for nothing else."""
        self.aside = self.eq_class
        self.eq_class = self.waits_since = None

    def goes_on(self, eq_class: "EquivalenceClass", now: float) -> None:
        """It waits again in the class in which it was set aside."""
        self.eq_class = eq_class
        self.queued_at = self.waits_since = now

    def scattered(self) -> None:
        """The class in which it was set aside is no longer that of its like."""
        self.aside = None

    def expect(self, start: Expected | None) -> None:
        """Then and there, as far as is known; None = nothing is."""
        self.expected = start

    def take_turn(self, turn: Turn | None) -> None:
        """Nodes are kept for it; None = no longer."""
        self.turn = turn

    def happened_before(self, history: JobHistory, now: float) -> None:
        """This became of it under a scheduler before."""
        self.preemptions = len(history.preempted_by)
        self.preempted_by = NO_JOBS.union(history.preempted_by, history.gave_way_to)
        self.blocked_since = history.blocked_since
        self.lost_gpu_s = history.lost_gpu_s
        if self.waits_since is not None and history.back_at is not None:
            self.waits_since = min(now, max(self.waits_since, history.back_at))

    # --- preemption ---------------------------------------------------------------------------
    def look_for_plan(self, why: NoPlan) -> NoPlan:
        """`why`: what is found to be in the way is noted there; returns what was found before."""
        before, self.no_plan = self.no_plan, why
        return before

    def preempted(self, by: str, at: float, *, counts: bool) -> None:
        """`counts`: it lost more than what it can do without."""
        self.preempted_by = self.preempted_by.union((by,))
        if counts:
            self.preemptions += 1
            self.preempted_at = at

    def moved(self, cost_gpu_s: float) -> None:
        """It has to do so much of its work again because it moves."""
        self.lost_gpu_s += cost_gpu_s

    # --- what it holds ------------------------------------------------------------------------
    def starts(self) -> None:
        """It got places: it does not wait for quota, nor for what it was told last."""
        self.verdict, self.reserved = None, False

    def nominate(self, places: Nomination) -> None:
        """It starts in these places when others have left them."""
        self.nomination = places

    def take_nominated(self, at: float) -> Nomination | None:
        """Its nomination where nobody is in the places any more; they are its own since `at`."""
        held = self.nomination
        if held is None or held.awaited:
            return None
        self.nomination = None
        for p in held.placements:
            if (p.pod_set, p.ordinal) in self.placed_at:
                self.placed_at[p.pod_set, p.ordinal] = at  # not since it was promised
        return held

    def restored(self, ended: Iterable[tuple[int, int]]) -> None:
        """These of its pods ended under a scheduler before."""
        self.ended = set(ended) or NO_PODS

    def placed_later(self, pod: tuple[int, int], at: float) -> None:
        """A pod got its place after the job started."""
        self.placed_at[pod] = at

    def runs(self, pod: tuple[int, int], at: float) -> None:
        """A pod that has a place is told to run since then; what was told first stands."""
        if pod in self.pods:
            self.runs_since.setdefault(pod, at)

    def pod_ended(self, pod: tuple[int, int]) -> None:
        """It is done and not to be placed again."""
        if isinstance(self.ended, set):
            self.ended.add(pod)
        else:
            self.ended = {pod}

    def watch_limit(self) -> float | None:
        """When its run time is up, from now on watched; None where it has not started or has no
        limit, or that is watched already."""
        if self.job.run_limit_s is None or self.started_at is None:
            return None
        ends_at = self.started_at + self.job.run_limit_s
        if ends_at == self.limit_at:
            return None
        self.limit_at = ends_at
        return ends_at

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

    def twin(self, memo: dict[int, Any]) -> "JobRecord":
        """An independent record that is the same, but in no class; the general way to copy is slow,
        and records are many."""
        twin = JobRecord(self.job, self.key)
        for name in _FIELDS:
            value = getattr(self, name)
            setattr(twin, name, value.copy() if isinstance(value, dict | set) else value)
        twin.eq_class = None
        twin.expected = deepcopy(self.expected, memo)  # what starts is noted in it
        if self.nomination is not None:
            twin.nomination = replace(self.nomination, awaited=self.nomination.awaited.copy())
        return twin


_FIELDS: Final = tuple(field.name for field in fields(JobRecord))
