"""What one cluster's scheduler remembers between two cycles."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush

from scheduling.engine.cluster.cluster import ClusterState, PodKey
from scheduling.engine.cluster.when_all_ended import Cleared
from scheduling.engine.demand.never import wrong_times
from scheduling.engine.demand.pools import Pools
from scheduling.engine.demand.shapes import Key, shape_of
from scheduling.engine.memo import EXPECTED, IN_VAIN, Memo
from scheduling.engine.native import mypyc_attr
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.queue.dependencies import DependentJobs
from scheduling.engine.queue.fair_order import FairOrder
from scheduling.engine.queue.fair_share import NO_SHARES, Shares, Usage
from scheduling.engine.queue.job import Expected, JobRecord
from scheduling.engine.queue.order import OrderKey, order_key
from scheduling.engine.queue.preemption_delay import Early, preempts_from
from scheduling.engine.queue.queue_order import OrderByQueues
from scheduling.engine.queue.queues import QueueName, Queues, own_lane
from scheduling.engine.queue.reservations import Reservations
from scheduling.engine.queue.standings import Standings
from scheduling.engine.queue.waiting import EquivalenceClass, Merge, WaitQueue
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.running.forecast import Forecast
from scheduling.engine.running.last_look import Look
from scheduling.engine.running.leaving import LeavingPods
from scheduling.engine.running.placed import Placed
from scheduling.engine.running.preemptible import PreemptibleIndex
from scheduling.engine.types import (
    BEYOND,
    DEFAULT_LEVELS,
    JobRequest,
    PodPlacement,
    Policy,
    PreemptionKind,
)

# The numbers in reasons change with every job that starts or ends. Without this limit, 10,000
# waiting jobs would mean 10,000 writes per cycle.
REFRESH_S = 60.0


@mypyc_attr(allow_interpreted_subclasses=True)
class SchedulerState:
    """Capacity, quota, jobs and their order; only deltas and decisions change it.

    Each job in `jobs` either waits or runs. A waiting job that may be attempted is in `queue`;
    held jobs are in no queue, backing-off jobs in `_due` by time. `_early` has the jobs that may
    not preempt yet. `running` has the started jobs; `growing` the elastic gangs among them that
    miss pods; `promised` the preemptors whose nominated places others still leave (`leaving`).
    `aside_of` has the classes of held queues.
    `queue_reservations`: what blocked jobs have closed, as of the last walk over the queue.
    `refresh_s`: while the reason of a waiting job stays the same, report new numbers at most this
    often, in seconds. `told_of_runs`: deltas report when pods begin to run; otherwise pods run as
    soon as they have places.
    """

    def __init__(
        self,
        *,
        levels: tuple[str, ...] = DEFAULT_LEVELS,
        policy: Policy | None = None,
        refresh_s: float = REFRESH_S,
        told_of_runs: bool = False,
        memo: Memo | None = None,
    ) -> None:
        self.refresh_s = refresh_s
        self.told_of_runs = told_of_runs
        self.cluster = ClusterState(levels)
        self.cleared = Cleared(self.cluster)
        self.mended = Cleared(self.cluster, mended=True)
        self.policy = policy or Policy()
        self.judges = judging(self.policy)
        self.pools = Pools()
        self.book = QuotaBook()
        self.memo = memo or Memo()
        self.memo.follow(self, self.cluster, self.book, self.pools)
        self.jobs: dict[str, JobRecord] = {}  # every job that waits or runs
        self.running: dict[str, JobRecord] = {}  # the started jobs
        self.jobs_started = 0  # starts so far, and nominations
        self.jobs_stopped = 0  # so far, counted only while tenants have job limits
        self.growing: dict[str, JobRecord] = {}  # running elastic gangs that miss pods
        self.placed = Placed()
        self.promised: dict[str, JobRecord] = {}  # jobs whose places others still leave (`leaving`)
        self.leaving = LeavingPods()
        # Preempted jobs that have not got their places back, and how often one of them has ended or
        # stopped waiting for its places.
        self.displaced: dict[str, None] = {}
        self.displaced_out = 0
        self.reserving: set[str] = set()  # heads whose reservation was reported
        self.turns: dict[str, JobRecord] = {}  # jobs whose turn keeps places for them
        self.queue = WaitQueue()
        self.queue_reservations = Reservations()
        self.usage = Usage(of_users=self.policy.fair_users)
        self.queues = Queues()
        # Classes of held queues: one hold sets thousands of jobs aside at once.
        self.aside_of: dict[QueueName, list[EquivalenceClass]] = {}
        self.turns_aside: set[str] = set()  # their jobs that resume a turn when the queue does
        self.set_aside: list[EquivalenceClass] = []  # since the last cycle, like `parked`
        self.kept_of: dict[QueueName, dict[str, None]] = {}  # jobs of held queues outside classes
        self.gpus_elsewhere: dict[str, int] = {}  # GPUs of other scopes, by GPU model
        self.preemptible_jobs = PreemptibleIndex(self.cluster, self)
        self.look = Look()
        self.forecasts: dict[frozenset[str], Forecast] = {}  # by GPU models
        self.run_ends: list[tuple[float, float, str, bool]] = []
        self.learned_ends: list[tuple[float, str]] = []  # when jobs outlive their learned run times
        self.dependencies = DependentJobs(self.jobs)
        self.dirty = True  # something happened other than jobs arriving
        self.parked: list[str] = []  # jobs put on hold or into back-off since the last cycle
        self._due: list[tuple[float, str]] = []
        self._early = Early()
        self._timers: list[float] = []
        self._terms_until = math.inf  # until when the terms of the last walk hold for every class
        self._walked = 0  # `Memo.gains` at the last walk over all classes

    # --- the place of a job in the queue ------------------------------------------------------
    def enqueue(self, record: JobRecord, now: float) -> None:
        """Put a job where it belongs now: held, backing off, or in its class.

        A started gang does not wait for more pods, though an elastic one may grow. Other started
        jobs wait while pods are missing.
        """
        waited, since = record.eq_class is not None, record.waits_since
        self.queue.remove(record)
        record.aside = None
        if record.left or record.nomination is not None:
            return
        record.waits_since = None
        if record.started_at is not None and record.job.gang:
            self._let_grow(record, now)
            return
        if record.started_at is not None and not any(record.missing()):
            if not record.leaving:
                self.displaced.pop(record.job.id, None)
            return
        if self.kept_back(record, now):
            self.displaced_out += record.job.id in self.displaced
            self.dependencies.waits(record.job)
            if record.not_before > now:
                heappush(self._due, (record.not_before, record.job.id))
            self.parked.append(record.job.id)
            name = (record.job.tenant, record.job.queue)
            if name in self.queues.held:
                self.kept_of.setdefault(name, {})[record.job.id] = None
            return
        if self.dependencies.any_doomed:
            self.doom(record, None)
        if not waited:
            record.queued_at = now
            self.memo.forget_all(IN_VAIN, record)
        record.waits_since = now if since is None else since
        self._line_up(record, now)

    def _line_up(self, record: JobRecord, now: float) -> None:
        """Put a job that is in no class into its equivalence class."""
        by_users = self.queues.by_users(record.job, policy=self.policy.fair_users)
        user = record.job.user if by_users else ""
        self.queue.add(record, self._lane_key(record, now, user), user)

    def stand(self, record: JobRecord, at: float | None, now: float) -> None:
        """Order a job in the queue by the time `at`; None = by its submission time."""
        waits = record.eq_class is not None
        self.queue.remove(record)
        record.stand(at)
        if waits:
            self._line_up(record, now)
            self.dirty = True
        elif record.aside is not None:  # its class of a held queue has the old order key
            self.enqueue(record, now)

    def regroup(self, record: JobRecord, now: float) -> None:
        """Move a waiting job to the equivalence class to which it belongs by now."""
        before = record.eq_class
        assert before is not None
        self.queue.remove(record)
        self._line_up(record, now)
        assert record.eq_class is not None
        record.eq_class.come_from(before)

    def _let_grow(self, record: JobRecord, now: float) -> None:
        """Note whether a running gang may get more pods; it may not once one of its pods ended."""
        self.growing.pop(record.job.id, None)
        if any(record.missing()) and record.job.elastic and not record.ended:
            self.growing[record.job.id] = record
            self._forgive(record, now)
            if record.not_before > now:
                heappush(self._due, (record.not_before, record.job.id))

    def kept_back(self, record: JobRecord, now: float) -> bool:
        """Whether the job may not be attempted yet.

        It or its queue is held, its earliest start is in the future, or it waits for other jobs.
        """
        if record.held or record.not_before > now or self.queues.why_held(record.job) is not None:
            return True
        return bool(self.dependencies.waits_for(record.job))

    def doom(self, record: JobRecord, by: str | None) -> None:
        """Note that a job can never start because `by` failed; None = nothing prevents it.

        If that changed, the jobs that wait for this one are told in this cycle.
        """
        self.parked += self.dependencies.doom(record.job, by)

    def _lane_key(self, record: JobRecord, now: float, user: str) -> Key:
        job = record.job
        whose: object = (job.tenant, user) if user else job.tenant
        if lane := own_lane(job):
            whose = (job.tenant, user, lane)
        self._forgive(record, now)
        early = (due := preempts_from(self.policy, record)) > now
        if early:
            self._early.note(due, job.id)
        own_pods = record.pods or record.ended or record.leaving  # no other job misses the same
        if record.avoided_nodes or own_pods or self.at_preemption_limit(record) or wrong_times(job):
            return (whose, job.id)
        # A job that may preempt already must not wait behind one in its class that may not yet.
        return (whose, shape_of(job), early) if early else (whose, shape_of(job))

    def _forgive(self, record: JobRecord, now: float) -> None:
        """Stop avoiding nodes whose blame has expired; wake up when the next blame expires."""
        if (next_at := record.forgive(now)) is not None:
            heappush(self._due, (next_at, record.job.id))

    def wake(self, now: float) -> None:
        """Requeue jobs whose back-off or blame has expired, and note timers that went off."""
        while self._timers and self._timers[0] <= now:
            heappop(self._timers)
            self.dirty = True
        if self.reserving and min(self._reserved_until(), default=math.inf) <= now:
            self.dirty = True
        while self._due and self._due[0][0] <= now:
            record = self.jobs.get(heappop(self._due)[1])
            if record is not None:
                self.enqueue(record, now)
                self.dirty |= record.job.id in self.growing
        for job_id in self._early.take(now):
            if self._waits(job_id):
                self.regroup(self.jobs[job_id], now)

    def next_wake(self, now: float) -> float | None:
        """When the passing of time alone next changes something; None = never."""
        first = self._timers[0] if self._timers else math.inf
        if self._due:
            first = min(first, self._due[0][0])
        if self.run_ends:
            first = min(first, self.run_ends[0][0])
        first = min(first, self._early.first(self._waits))
        if self.reserving:
            first = min([first, *(until for until in self._reserved_until() if until > now)])
        return first if first < math.inf else None

    def _waits(self, job_id: str) -> bool:
        record = self.jobs.get(job_id)
        return record is not None and record.eq_class is not None

    def _reserved_until(self) -> list[float]:
        """Until when each reported reservation holds if nothing happens."""
        return [expected.until for expected in self.reservations()]

    def reservations(self) -> list[Expected]:
        """The reservations that were reported."""
        heads = [self.jobs[name].expected for name in self.reserving if name in self.jobs]
        return [expected for expected in heads if expected is not None]

    def wake_at(self, at: float) -> None:
        """Decide again at that time, even if nothing is reported."""
        if at not in self._timers:
            heappush(self._timers, at)

    def at_rest(self) -> bool:
        """Whether there is nothing to decide: nothing happened, or no job waits for a decision."""
        if self.parked or self.set_aside or self.queue.touched:
            return False
        return not self.dirty or not (self.queue.eq_classes or self.reserving or self.growing)

    def next_walk(self) -> Merge:
        """Return the classes to ask in this walk, in the global order.

        Usually these are all classes. If jobs arrived and nothing else happened, and they all stand
        behind the last blocked job, only their classes are asked. This shortcut does not hold if
        shares decide the order, if jobs other than backfilled ones may be preempted, or if time has
        changed what a class may use (some of its jobs would now end too late for those ahead).
        """
        came, last = self.queue.touched, self.queue_reservations.last
        ahead = last is not None and any(
            eq_class.jobs and eq_class.jobs[0] <= last for eq_class in came
        )
        anybody = self.policy.preemption and not self.only_backfilled
        if not self.memo.remembers:
            self._make_anew()
        elif not (self.dirty or ahead or self.by_shares or anybody or self._terms_are_over):
            return Merge(sorted((eq_class.jobs[0], eq_class) for eq_class in came if eq_class.jobs))
        self.dirty = False
        self._terms_until = math.inf
        self.queue_reservations = self.queue_reservations.next_walk()
        eq_classes = self.queue.ordered
        if self.turns:
            self._drop_lost_turns()
        if self.policy.fair_share:
            self.usage.standings = self.standings()
        elif self.nobody_in_the_way:
            eq_classes = self.queue.awake(self.memo, self._walked, self.cluster.now)
            self._walked = self.memo.gains
        return self._merge(eq_classes, self.usage.standings)

    def note_terms(self, until: float) -> None:
        """Note when the terms of a class change by time alone: its jobs would then end too late."""
        self._terms_until = min(self._terms_until, until)

    @property
    def _terms_are_over(self) -> bool:
        return self._terms_until < self.cluster.now

    def _merge(
        self, eq_classes: list[tuple[OrderKey, EquivalenceClass]], standings: Standings | None
    ) -> Merge:
        """Put classes in the global order; by `standings` if the policy orders by fair share."""
        if standings is not None:
            found = [eq_class for _, eq_class in eq_classes]
            return FairOrder(found, standings, self.turns, self.queues, self.jobs)
        if self.queues.ordered:
            found = [eq_class for _, eq_class in eq_classes]
            return OrderByQueues(found, self.queues, self.jobs, self.turns)
        return Merge(eq_classes)

    def order_now(self, most: int) -> list[str]:
        """Return the first `most` queued jobs, in the order of a walk in which none of them starts.

        Changes nothing.
        """
        copies = [
            EquivalenceClass(c.key, c.tenant, c.user, c.queue, list(c.jobs))
            for _, c in self.queue.ordered
        ]
        standings = self.standings() if self.policy.fair_share else None
        walk = self._merge([(c.jobs[0], c) for c in copies], standings)
        found: list[str] = []
        while len(found) < most and (eq_class := walk.pop()) is not None:
            found.append(eq_class.pop())
            walk.push(eq_class)
        return found

    def _make_anew(self) -> None:
        """With the memo off, drop everything else that was derived from jobs and nodes, too."""
        self.preemptible_jobs.forget()
        self.cluster.infeasible.clear()
        for forecast in self.forecasts.values():
            forecast.close()
        self.forecasts.clear()

    @property
    def by_shares(self) -> bool:
        """Whether the order depends on shares, and so changes with each start."""
        return self.policy.fair_share or bool(self.queues.ordered)

    @property
    def nobody_in_the_way(self) -> bool:
        """Whether, during a walk, no job can hold back or preempt another, or free anything."""
        policy = self.policy
        return policy.blocks_nobody and not (
            policy.preemption or policy.spare_nodes or self.by_shares
        )

    @property
    def takes_turns(self) -> bool:
        """Whether places may be kept for a job because its tenant or queue has its turn."""
        return self.policy.blocks_nobody and self.by_shares

    def drop_turn(self, record: JobRecord) -> None:
        """End the turn of a job: keep no more places for it."""
        record.take_turn(None)
        self.turns.pop(record.job.id, None)

    def _drop_lost_turns(self) -> None:
        """End the turns of jobs that have left, or are no longer the first of their class."""
        for job_id, record in list(self.turns.items()):
            first = record.eq_class is not None and record.eq_class.head == job_id
            if not (first and self.takes_turns and self.jobs.get(job_id) is record):
                self.drop_turn(record)

    def standings(self) -> Standings:
        """Return how tenants and users stand by what they hold in the whole cluster."""
        half_life_s = self.policy.usage_half_life_s
        book = self.book
        return Standings(self.usage, book.tenants, book.lineage, self._capacity(), half_life_s)

    def _capacity(self) -> Counter[str]:
        """GPUs of the whole cluster, other scopes included, by model."""
        capacity = Counter({model: self.pools.capacity(model) for model in self.pools.models()})
        capacity.update(self.gpus_elsewhere)
        return capacity

    def shares(self) -> Shares:
        """Return dominant shares if the policy orders by fair share, else NO_SHARES."""
        return self.standings().shares() if self.policy.fair_share else NO_SHARES

    def count_asked(self, job: JobRequest) -> None:
        """Count the request of a new job in the typical mix, if placement needs the mix.

        The first call counts all jobs that are known by then.
        """
        cluster = self.cluster
        if not (self.judges or cluster.mixed):
            return
        there = [job] if cluster.asked else [record.job for record in self.jobs.values()]
        for each in there:
            cluster.asks(each.pod_sets)

    def strategy_of(self, job: JobRequest) -> str:
        """Return the policy's placement strategy for the job; its own `strategy` has precedence."""
        return self.policy.strategies.get(job.kind, "binpack")

    def min_runtime_of(self, job: JobRequest) -> float:
        """Return the min runtime of the job in seconds, by its tenant or the policy."""
        return self.book.min_runtimes.get(job.tenant, self.policy.min_runtime_s)

    def runs_from(self, record: JobRecord, pods: Sequence[tuple[int, int]]) -> float:
        """Return the start of the min runtime of these pods of a started job.

        It is the time since which all of them run; for a whole gang only the pods with which it
        started count. Pods that do not run yet are protected until the gang timeout, counted from
        when they got their places.
        """
        started, whole = record.started_at, record.job.gang and len(pods) == len(record.pods)
        assert started is not None
        least = self.min_runtime_of(record.job)
        if not (self.told_of_runs and least):
            return started if whole else max([record.placed_since(pod) for pod in pods])
        wait = max(0.0, self.policy.gang_timeout_s - least)
        some = [p for p in pods if p not in record.placed_at] if whole else pods
        return max([self._runs_from(record, pod, wait) for pod in some or pods], default=started)

    def _runs_from(self, record: JobRecord, pod: tuple[int, int], wait: float) -> float:
        since = record.placed_since(pod)
        return max(since, record.runs_since.get(pod, since + wait))

    # --- holding and giving back --------------------------------------------------------------
    def hold(
        self,
        record: JobRecord,
        placements: tuple[PodPlacement, ...],
        at: float,
        *,
        promised: bool = False,
    ) -> dict[str, int]:
        """Note places that the cluster has booked; return {GPU model: GPU-milli borrowed}.

        `promised`: others still leave these places, so the job does not start yet.
        """
        job, models, since = record.job, self.pools.model_of, record.placed_at
        on_its_own = not job.gang or record.started_at is not None
        got, borrowed = dict[str, int](), dict[str, int]()
        more_of = dict[str, int]()  # what shares by memory hold beyond whole GPU-milli
        for p in placements:
            model, milli = models.get(p.node, ""), p.milli * len(p.devices)
            record.pods[p.pod_set, p.ordinal] = (model, milli)
            got[model] = got.get(model, 0) + milli
            if p.beyond:
                more_of[model] = more_of.get(model, 0) + p.beyond
            if on_its_own:
                since[p.pod_set, p.ordinal] = at
        for model, milli in got.items():
            if not milli:
                continue
            beyond, non_preemptible = more_of.get(model, 0), not job.preemptible
            self.usage.change(job, model, milli + beyond / BEYOND)
            self.queues.change(job, model, milli + beyond / BEYOND)
            more = self.book.book(
                job.id, job.tenant, model, milli, at, non_preemptible=non_preemptible, beyond=beyond
            )
            if more:
                borrowed[model] = more
        self.queue_reservations.starts += 1
        if self.queue_reservations.before:
            began = record.started_at if job.gang and record.started_at is not None else at
            known = record.planned_s is not None and not promised
            ends_at = began + (record.planned_s or 0.0) if known else math.inf
            whole = record.started_at is None and (job.gang or not any(record.missing()))
            self.queue_reservations.note_start(job, got, ends_at, whole=whole)
        if job.uses_spares and self.policy.spare_nodes:
            self.cluster.widened()  # the rest of a spare node may have room for others now
            self.dirty = True
        if not promised:
            self.note_started(record, at)
        return borrowed

    @property
    def only_backfilled(self) -> bool:
        """Whether the policy allows only preemption of jobs backfilled past the preemptor."""
        kinds = self.policy.preemption
        return 0 < len(kinds) == kinds.count(PreemptionKind.BACKFILL)

    @property
    def allows_plans(self) -> tuple[int, int, int]:
        """A version: while it stays the same, no impossible preemption has become possible.

        If only backfilled jobs may be preempted, another start does not help a preemptor: what the
        newcomer holds was free before. Otherwise any booking counts, and so does an earlier victim
        that stops waiting: while it waits, its return may rule out a preemption.
        """
        if self.only_backfilled:
            version, freed = self.memo.room
            return version, freed, 0
        version, booked = self.memo.holders
        # A job that holds no quota still counts in a job limit, so its end is a change, too.
        return version, booked, self.displaced_out + self.jobs_stopped

    def at_preemption_limit(self, record: JobRecord) -> bool:
        """Whether the job has been preempted as often as it may be."""
        return record.preemptions >= self.policy.max_preemptions

    def drop_expected(self, record: JobRecord) -> None:
        """Forget the expected start of the job."""
        record.expect(None)
        self.memo.forget(EXPECTED, record)

    def note_started(self, record: JobRecord, at: float) -> None:
        self.placed.note(record.job.id, at, self.running)
        if record.started_at is None:
            record.started_at = at
            self.running[record.job.id] = record
            self.jobs_started += 1
            if record.job.gang:
                self.displaced.pop(record.job.id, None)
            self.cluster.began(record.job.id, at, record.job.declared_s)
            if record.learned_s is not None:
                record.go_by_learned(0.0)
                self.watch_learned(record)
        self.preemptible_jobs.touch(record)

    def watch_learned(self, record: JobRecord) -> None:
        """Note when a started job will have outlived its learned run time, if it has one."""
        if record.learned_s is not None and record.started_at is not None:
            heappush(self.learned_ends, (record.started_at + record.learned_s, record.job.id))

    def give_back(self, record: JobRecord, pods: Sequence[tuple[int, int]]) -> None:
        """Release the places of pods in the cluster and in the quota book."""
        if not pods:
            return
        held, more_of = dict[str, int](), dict[str, int]()
        places = self.cluster.held_by(record.job.id)
        for pod in pods:
            model, milli = record.pods.pop(pod)
            if beyond := places[pod].placement.beyond:
                more_of[model] = more_of.get(model, 0) + beyond
            record.placed_at.pop(pod, None)
            record.runs_since.pop(pod, None)
            held[model] = held.get(model, 0) + milli
            self.cluster.release(record.job.id, *pod)
        for model, milli in held.items():
            if milli:
                beyond = more_of.get(model, 0)
                self.usage.change(record.job, model, -milli - beyond / BEYOND)
                self.queues.change(record.job, model, -milli - beyond / BEYOND)
                self.book.unbook(record.job.id, model, milli, beyond)
        self.preemptible_jobs.touch(record)
        self.dirty = True

    def give_back_all(self, record: JobRecord) -> None:
        self.give_back(record, sorted(record.pods))
        stopped = self.running.pop(record.job.id, None) is not None
        self.jobs_stopped += stopped and self.book.limits_jobs
        self.growing.pop(record.job.id, None)
        self.cluster.times.pop(record.job.id, None)
        self.promised.pop(record.job.id, None)
        record.started_at = record.nomination = None

    def forget(self, record: JobRecord, now: float, *, succeeded: bool) -> None:
        """Remove a job for good; jobs that waited for its end may proceed."""
        self.give_back_all(record)
        self.gone(record)
        self.queue.remove(record)
        record.aside = None
        if self.dependencies.any_doomed:
            self.doom(record, None)
        del self.jobs[record.job.id]
        if record.job.id in self.displaced:
            del self.displaced[record.job.id]
            self.displaced_out += 1
        self.parked += self.dependencies.stick(record.job, None)
        for name in self.dependencies.over(record.job, succeeded=succeeded):
            for job_id in self.dependencies.take(name):
                if (other := self.jobs.get(job_id)) is not None:
                    self.enqueue(other, now)

    def is_idle(self, node: str) -> bool:
        """Whether no pod of Kant is on the node, holds a place there, or is still leaving it."""
        return not self.cluster.pods_on(node) and not self.leaving.is_on(node)

    # --- preemption ---------------------------------------------------------------------------
    def evict(
        self, record: JobRecord, pods: tuple[tuple[int, int], ...], *, whole: bool
    ) -> set[PodKey]:
        """Take pods away from a job; return the pods that must still be reported gone."""
        for pod in pods:
            booking = self.cluster.booking((record.job.id, *pod))
            assert booking is not None
            record.leaving[pod] = booking
            self.leaving.add((record.job.id, *pod), booking)
        if whole:
            self.give_back_all(record)
            record.left = True
        else:
            self.give_back(record, pods)
        record.verdict = record.waits_since = None  # from now on it waits for something else
        self.queue.remove(record)
        return {(record.job.id, *pod) for pod in pods}

    def gone(self, record: JobRecord, pod: tuple[int, int] | None = None) -> None:
        """Note that a victim's pod (None: all its pods) is gone; preemptors stop waiting for it."""
        self.dirty = True
        pods = tuple(record.leaving) if pod is None else (pod,)
        if not pods:
            record.left = False
            return
        keys = {(record.job.id, *p) for p in pods}
        for p in pods:
            if p in record.leaving:
                self.leaving.remove((record.job.id, *p), record.leaving.pop(p))
        record.left = record.left and bool(record.leaving)
        self.preemptible_jobs.touch(record)
        for other in self.promised.values():
            if other.nomination is not None:
                other.nomination.awaited -= keys

    def drop_promise(self, record: JobRecord, now: float) -> None:
        """Release the nominated places of a preemptor, which are useless now; it waits again."""
        assert record.nomination is not None
        promised = [(p.pod_set, p.ordinal) for p in record.nomination.placements]
        self.give_back(record, [pod for pod in promised if pod in record.pods])
        record.nomination = None
        self.preemptible_jobs.touch(record)
        del self.promised[record.job.id]
        self.enqueue(record, now)

    def record(self, job: JobRequest) -> JobRecord:
        """Return the record of a job, created or updated to its present request."""
        record = self.jobs.get(job.id)
        if record is None:
            record = self.jobs[job.id] = JobRecord(job, order_key(job))
            self.dependencies.came(job)
            return record
        self.queue.remove(record)
        front = record.key.stands_at == -math.inf
        if record.started_at is not None and len(job.pod_sets) != len(record.job.pod_sets):
            job = replace(job, pod_sets=record.job.pod_sets)  # its places refer to these pod sets
        if job.user != record.job.user:
            job = replace(job, user=record.job.user)  # what it holds is counted for this user
        if record.pods and job.queue != record.job.queue:
            job = replace(job, queue=record.job.queue)  # likewise
        if job.queue != record.job.queue:
            self.drop_turn(record)  # the turn belonged to the queue that the job left
        self.preemptible_jobs.leave(record)
        record.asks_for(job, front=front)
        self.preemptible_jobs.touch(record)
        self.book.rebook(job.id, non_preemptible=not job.preemptible)
        if record.started_at is not None:
            self.cluster.began(job.id, record.started_at, job.declared_s)
        else:
            self.cluster.note(job.id)
        return record


def judging(policy: Policy) -> bool:
    """Whether a strategy of the policy always uses the typical mix of requests."""
    return any(STRATEGIES[name].judges for name in policy.strategies.values() if name in STRATEGIES)
