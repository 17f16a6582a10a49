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
    """The expected start of a blocked head: at `at` on `nodes`, if the planned run times hold.

    If no job has ended by `until`, some job is past its planned end and the start has to be worked
    out anew. `hold`: what the job will need in addition to the nodes.
    """

    at: float
    nodes: frozenset[str]
    until: float = field(default=math.inf, compare=False)
    hold: Hold | None = field(default=None, compare=False)


copied_by_fields(Expected)


@dataclass(frozen=True, slots=True)
class Turn:
    """Nodes that are kept for a job because it has a turn.

    They were chosen by version `chosen_by` of the node facts. If they have not emptied by `until`,
    they are chosen again.
    """

    nodes: frozenset[str]
    until: float
    chosen_by: int


copied_by_fields(Turn)


@dataclass(slots=True)
class Nomination:
    """Places booked for a preemptor, how much of them is borrowed, and the pods that must go first.

    `borrowed`: (GPU model, milli-GPU).
    """

    placements: tuple[PodPlacement, ...]
    borrowed: tuple[tuple[str, int], ...]
    awaited: set[tuple[str, int, int]]


@dataclass(slots=True)
class NoPlan:
    """Why nobody was preempted for a job when that was last tried; written by preempt.py.

    `again_at`: until then, the passing of time alone makes no plan possible. `awaits_min_runtime`:
    the job could start if the jobs that were backfilled past it had all run for long enough to be
    preempted. `protected_until`: when enough of the jobs that it could preempt have run for long
    enough. `preempts_from`: when the job will have waited for long enough to preempt somebody. inf:
    the job does not wait for that.
    """

    again_at: float = math.inf
    awaits_min_runtime: bool = False
    protected_until: float = math.inf
    preempts_from: float = math.inf


NOT_LOOKED_FOR: Final = NoPlan()  # shared by all jobs for which no plan was tried yet
# Shared by all jobs without such pods or jobs, because an empty set of its own takes 216 bytes.
NO_PODS: Final[AbstractSet[tuple[int, int]]] = frozenset()
NO_JOBS: Final[frozenset[str]] = frozenset()


@dataclass(slots=True, init=False)  # a native __init__ takes a fifth of the time
class JobRecord:
    """What the engine knows of one job, waiting or started.

    Its fields are written here, and by `state.py` when it begins to wait and when it gets or gives
    back places. A pod is (pod set, ordinal); times are seconds since the epoch.
    """

    # --- what it asks for, and its place in the queue
    job: JobRequest
    key: OrderKey  # its position among all jobs
    stands_at: float | None  # the time it is ordered by, if learned; None = its submission
    eq_class: "EquivalenceClass | None"  # the class in which it waits
    aside: "EquivalenceClass | None"  # the class in which it waited when its queue was held
    not_before: float  # its start time, or the end of its back-off
    held: bool
    avoided_nodes: dict[str, float]  # node -> until when; expired entries are dropped

    # --- how long it is likely to run if it declares nothing
    likely: LearnedTime | None  # None = nothing is known
    learned_s: float | None  # the run time that it is planned with now; None = none

    # --- how long it has waited, and for what
    queued_at: float  # when it last joined a class
    # Since when only quota, its position, places or the pods that it lacks keep it from starting.
    # None = something else does, or it does not wait.
    waits_since: float | None
    blocked_since: float | None  # when it was first blocked as a head
    reserved: bool  # it has passed quota; ends with its start
    verdict: Verdict | None  # the reason it was last told; None = it has to be told again
    verdict_at: float  # when it was told
    found: Found  # findings of the memo about it

    # --- what is kept for it while it waits
    expected: Expected | None  # its reservation
    turn: Turn | None  # nodes kept for it because it has a turn
    nomination: Nomination | None  # places that its victims still have to leave

    # --- what it holds
    started_at: float | None
    pods: dict[tuple[int, int], tuple[str, int]]  # pod -> GPU model and milli-GPU of its place
    placed_at: dict[tuple[int, int], float]  # when pods got places, if later than its start
    runs_since: dict[tuple[int, int], float]  # when pods began to run, if reported
    ended: AbstractSet[tuple[int, int]]  # pods that are done and will not be placed again
    limit_at: float | None  # the end of its run time that is being watched

    # --- preemption
    no_plan: NoPlan  # why nobody was preempted for it
    preemptions: int  # how often it was preempted
    preempted_by: frozenset[str]  # the jobs that preempted it
    preempted_at: float  # the last time, as far as this scheduler knows
    disruptions: int | None  # how many of its pods its disruption budget allows to evict now
    checkpoint_at: float  # when it last saved its work
    leaving: dict[tuple[int, int], Booking]  # evicted pods that are not gone yet -> their places
    left: bool  # all of it was evicted
    lost_gpu_s: float  # work lost by moves

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
        """The name of the subject of a finding, see `memo.Subject`."""
        return f"job {self.job.id}"

    @property
    def planned_s(self) -> float | None:
        """The planned run time in seconds from its start: as declared, otherwise as learned.

        None: nothing is known.
        """
        declared = self.job.declared_s
        return self.learned_s if declared is None else declared

    @property
    def passed_since(self) -> float | None:
        """Since when jobs behind it that start pass it by: since it waits for nothing but places.

        None if it is the head of no pool.
        """
        if self.blocked_since is None or self.eq_class is None:
            return None
        return min(self.blocked_since, max(self.queued_at, self.eq_class.admitted_at))

    # --- what its owner asks for --------------------------------------------------------------
    def submitted(self, not_before: float, *, held: bool, waits_since: float | None = None) -> None:
        """Note that the job was submitted or changed just now.

        It is told its reason anew, because the change may be what keeps it waiting. `waits_since`:
        only for a new job.
        """
        self.held, self.not_before = held, not_before
        if waits_since is not None:
            self.waits_since = waits_since
        self.verdict = None

    def asks_for(self, job: JobRequest, *, front: bool) -> None:
        """Replace the request. `front`: the job goes before all other jobs of its priority."""
        self.job = job
        self.key = order_key(job, front=front, stands_at=self.stands_at)

    def stand(self, at: float | None) -> None:
        """Order the job by this time; None: by its submission. The job must not be in a class."""
        self.stands_at = at
        self.asks_for(self.job, front=self.key.stands_at == -math.inf)

    def may_use(self, job: JobRequest) -> None:
        """Replace the request by one that differs only in its nodes; the job keeps its position."""
        self.job = job

    def saved(self, at: float) -> None:
        """Note when the job saved its work."""
        self.checkpoint_at = at

    def allow_disruptions(self, pods: int | None) -> bool:
        """Note how many of its pods may be evicted now (None: any); return whether that is more."""
        before, self.disruptions = self.disruptions, pods
        return before is not None and (pods is None or pods > before)

    # --- how long it is likely to run ---------------------------------------------------------
    def learned(self, likely: LearnedTime) -> None:
        """Note the run times of jobs like it."""
        self.likely = likely

    def go_by_learned(self, age_s: float | None) -> bool:
        """Plan with a learned run time; return whether that changed `learned_s`.

        `age_s`: for how long the job has run. If it still waits (None), it is planned with the time
        in which most jobs like it are over. If it runs, with the median of those that run longer
        than `age_s`; a job that outlives them all is taken to be half through.
        """
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
        """Plan with no learned run time; return whether that changed `learned_s`."""
        before, self.learned_s = self.learned_s, None
        return before is not None

    # --- what it is told ----------------------------------------------------------------------
    def tell(self, verdict: Verdict, at: float) -> None:
        """Note the reason why it waits, and when it was told."""
        self.verdict, self.verdict_at = verdict, at

    def tell_anew(self) -> None:
        """Have the job told its reason again, whatever it was told before."""
        self.verdict = None

    def tell_soon(self) -> None:
        """Have new numbers told at once, although the last were told only a while ago."""
        self.verdict_at = -math.inf

    # --- waiting ------------------------------------------------------------------------------
    def wait_in(self, eq_class: "EquivalenceClass | None") -> None:
        """Note the class in which it waits; None: in none."""
        self.eq_class = eq_class

    def put_off(self, until: float) -> None:
        """Make the job wait at least until then."""
        self.not_before = max(self.not_before, until)

    def avoid(self, nodes: Iterable[str], until: float) -> None:
        """Avoid nodes on which its pods failed, until then."""
        self.avoided_nodes.update(dict.fromkeys(nodes, until))

    def forgive(self, now: float) -> float | None:
        """Stop avoiding the nodes whose time is up; return when the next one is due."""
        if not self.avoided_nodes:
            return None
        self.avoided_nodes = {n: until for n, until in self.avoided_nodes.items() if until > now}
        return min(self.avoided_nodes.values(), default=None)

    def requeued(self, not_before: float, *, front: bool) -> None:
        """Start the whole job anew, not before `not_before`."""
        self.ended = NO_PODS
        self.reserved = False
        self.verdict = self.waits_since = None
        self.not_before = not_before
        self.key = order_key(self.job, front=front, stands_at=self.stands_at)
        if self.learned_s is not None:
            self.go_by_learned(None)

    def passed_quota(self, *, passed: bool) -> bool:
        """Note whether the job has passed quota; return whether that changed."""
        news = self.reserved != passed
        self.reserved = passed
        return news

    def blocked(self, since: float | None) -> bool:
        """Note since when it is blocked as a head, None: not; return whether that changed."""
        news = self.blocked_since != since
        self.blocked_since = since
        return news

    def set_aside(self) -> None:
        """Take the job out of the queue because its queue is held; its class keeps it."""
        self.aside = self.eq_class
        self.eq_class = self.waits_since = None

    def goes_on(self, eq_class: "EquivalenceClass", now: float) -> None:
        """Let the job wait again in the class in which it was set aside."""
        self.eq_class = eq_class
        self.queued_at = self.waits_since = now

    def scattered(self) -> None:
        """Forget the class in which it was set aside: jobs like it are in another class now."""
        self.aside = None

    def expect(self, start: Expected | None) -> None:
        """Note its expected start; None: none is known."""
        self.expected = start

    def take_turn(self, turn: Turn | None) -> None:
        """Note the nodes that are kept for it; None: no longer any."""
        self.turn = turn

    def happened_before(self, history: JobHistory, now: float) -> None:
        """Take over what happened to the job under an earlier scheduler."""
        self.preemptions = len(history.preempted_by)
        self.preempted_by = NO_JOBS.union(history.preempted_by, history.gave_way_to)
        self.blocked_since = history.blocked_since
        self.lost_gpu_s = history.lost_gpu_s
        if self.waits_since is not None and history.back_at is not None:
            self.waits_since = min(now, max(self.waits_since, history.back_at))

    # --- preemption ---------------------------------------------------------------------------
    def look_for_plan(self, why: NoPlan) -> NoPlan:
        """Begin to look for victims; obstacles are noted in `why`. Return what was noted before."""
        before, self.no_plan = self.no_plan, why
        return before

    def preempted(self, by: str, at: float, *, counts: bool) -> None:
        """Note a preemption. `counts`: it cost the job more than it can do without."""
        self.preempted_by = self.preempted_by.union((by,))
        if counts:
            self.preemptions += 1
            self.preempted_at = at

    def moved(self, cost_gpu_s: float) -> None:
        """Count work (GPU-seconds) that the job has to repeat because it moves."""
        self.lost_gpu_s += cost_gpu_s

    # --- what it holds ------------------------------------------------------------------------
    def starts(self) -> None:
        """Note that the job got places: it no longer waits for quota, and has no reason to wait."""
        self.verdict, self.reserved = None, False

    def nominate(self, places: Nomination) -> None:
        """Book places for the job in which it starts once others have left them."""
        self.nomination = places

    def take_nominated(self, at: float) -> Nomination | None:
        """Take the nomination if its places are free by now; the job holds them since `at`.

        Return None if there is no nomination or somebody is still in the places.
        """
        held = self.nomination
        if held is None or held.awaited:
            return None
        self.nomination = None
        for p in held.placements:
            if (p.pod_set, p.ordinal) in self.placed_at:
                self.placed_at[p.pod_set, p.ordinal] = at  # not when the place was booked
        return held

    def restored(self, ended: Iterable[tuple[int, int]]) -> None:
        """Take over the pods that ended under an earlier scheduler."""
        self.ended = set(ended) or NO_PODS

    def placed_later(self, pod: tuple[int, int], at: float) -> None:
        """Note that a pod got its place after the start of the job."""
        self.placed_at[pod] = at

    def runs(self, pod: tuple[int, int], at: float) -> None:
        """Note since when a placed pod runs; the first report counts."""
        if pod in self.pods:
            self.runs_since.setdefault(pod, at)

    def pod_ended(self, pod: tuple[int, int]) -> None:
        """Note that a pod is done and will not be placed again."""
        if isinstance(self.ended, set):
            self.ended.add(pod)
        else:
            self.ended = {pod}

    def watch_limit(self) -> float | None:
        """Begin to watch the run-time limit; return when it is reached.

        None if the job has not started, has no limit, or is watched for that time already.
        """
        if self.job.run_limit_s is None or self.started_at is None:
            return None
        ends_at = self.started_at + self.job.run_limit_s
        if ends_at == self.limit_at:
            return None
        self.limit_at = ends_at
        return ends_at

    def placed_since(self, pod: tuple[int, int]) -> float:
        """Return since when a pod of the started job holds its place."""
        assert self.started_at is not None
        return self.placed_at.get(pod, self.started_at)

    def protected(self, pods: int) -> int:
        """Return how many of `pods` of its pods the disruption budget protects.

        The budget may not yet account for the pods that are leaving, so these are subtracted.
        """
        if self.disruptions is None:
            return 0
        return max(0, pods - max(0, self.disruptions - len(self.leaving)))

    @property
    def may_lose(self) -> bool:
        """Whether its disruption budget lets a pod go; of a gang that is not elastic, all pods."""
        pods = len(self.pods)
        return self.protected(pods) < (1 if self.job.gang and not self.job.elastic else pods)

    def missing(self) -> tuple[int, ...]:
        """Return by pod set how many pods have no place and have not ended.

        Pods that ended with an ordinal beyond the present count of their pod set do not count.
        """
        sets = self.job.pod_sets
        counts = [s.count for s in sets]
        for pod_set, _ in self.pods:
            counts[pod_set] -= 1
        ended = {(i, ordinal) for i, ordinal in self.ended if ordinal < sets[i].count}
        for pod_set, _ in ended.union(self.leaving):
            counts[pod_set] -= 1
        return tuple(max(0, n) for n in counts)

    def twin(self, memo: dict[int, Any]) -> "JobRecord":
        """Return an independent copy of the record that is in no class.

        The general way to copy is too slow for so many records.
        """
        twin = JobRecord(self.job, self.key)
        for name in _FIELDS:
            value = getattr(self, name)
            setattr(twin, name, value.copy() if isinstance(value, dict | set) else value)
        twin.eq_class = None
        twin.expected = deepcopy(self.expected, memo)  # starts are noted in its hold
        if self.nomination is not None:
            twin.nomination = replace(self.nomination, awaited=self.nomination.awaited.copy())
        return twin


_FIELDS: Final = tuple(field.name for field in fields(JobRecord))
