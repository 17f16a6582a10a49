"""Eviction candidates: who may lose a place to a waiting job (paper 3.2.3).

The code calls an eviction candidate a unit. A gang is one unit, except that an elastic gang first
gives up the pods beyond its minimum. Other jobs lose single pods.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.columns import Booking
from scheduling.engine.preemption.cost import cost_of
from scheduling.engine.preemption.rights import Claim
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import PodPlacement, PreemptionKind

PodAt = tuple[int, int]  # pod set, ordinal
# Job -> which of its pods may go.
AnyOf = dict[str, frozenset[PodAt]]
# Pods of a job that go together, the kind of preemption, and since when they hold their places.
_Part = tuple[tuple[PodAt, ...], PreemptionKind, float]


@dataclass(slots=True, eq=False)
class EvictionCandidate:
    """Pods of a job that go together or not at all.

    `on`: node -> GPU-milli that they hold there. ranks.py sets `rank`, `weight` and `order` (the
    smallest loss first, a job's last pods first).
    """

    record: JobRecord
    pods: tuple[PodAt, ...]
    whole: bool
    kind: PreemptionKind
    cost: float
    on: dict[str, int]
    places: tuple[PodPlacement, ...]
    rank: tuple[bool, int, int, int] = (False, 0, 0, 0)
    weight: int = 0
    order: tuple[int, str, tuple[PodAt, ...]] = (0, "", ())


def bookings_of(cluster: ClusterState, unit: EvictionCandidate) -> Iterator[Booking]:
    """Yield what the unit's pods hold, while they are not evicted."""
    for pod in unit.pods:
        booking = cluster.booking((unit.record.job.id, *pod))
        if booking is not None:
            yield booking


class Victims:
    """The units that one preemptor may take.

    - `protected_until`: when the next protection ends, so that more units may become eligible; inf
      = never.
    - `soon_at`: when some units with a longer minimum run time have no more of it left than the
      policy's; inf = there are none.
    - `just_started`: jobs that get places in this cycle. Nobody may take these places before
      the shell has been told of them.
    - `gone`: jobs to ignore.
    - `stops`: jobs have to stop, so that a limit of running jobs lets the preemptor start. The GPU
      models on which they run do not matter then.
    """

    def __init__(
        self,
        state: SchedulerState,
        claim: Claim,
        now: float,
        just_started: frozenset[str],
        gone: frozenset[str] = frozenset(),
        *,
        stops: bool = False,
    ) -> None:
        self._state = state
        self._claim = claim
        self._now = now
        self._just_started = just_started
        self._gone = gone
        self._stops = stops
        self.protected_until = math.inf
        self.soon_at = math.inf
        self._before_min_runtime = False
        self._any_of: Mapping[str, frozenset[PodAt]] | None = None
        self._only_backfilled = state.only_backfilled
        self._records = self._who_may_lose()
        self.none = not self._records
        self.any_elastic = any(record.job.elastic for record in self._records)

    def _in_question(self) -> Iterable[JobRecord]:
        """Return running jobs, without those that surely cannot lose anything."""
        state, since = self._state, self._claim.record.passed_since
        if not self._only_backfilled:
            return self._claim.members()
        if since is None or not self._claim.overdue:
            return ()
        return [state.running[name] for name in state.placed.since(since) if name in state.running]

    def _who_may_lose(self) -> list[JobRecord]:
        by, asked, only = self._claim.record, self._claim.asked, self._only_backfilled
        key, spared, most = by.key, by.preempted_by, self._state.policy.max_preemptions
        return [
            record
            for record in self._in_question()
            if record is not by
            and record.preemptions < most
            and record.job.preemptible
            and record.started_at is not None
            and record.nomination is None  # its own victims would have gone in vain
            and record.job.id not in spared
            and record.job.id not in self._gone
            and (record.key > key or not only)
            and (
                any(model in asked for model, _ in record.pods.values())
                or (self._stops and not record.job.without_gpus)
            )
        ]

    def within_reach(self) -> dict[str, int]:
        """Return GPU-milli by asked model that are free or held by jobs that may lose something."""
        found = {m: self._state.cluster.free_milli(m) for m in self._claim.asked}
        for record in self._records:
            for model, milli in record.pods.values():
                if model in found:
                    found[model] += milli
        return found

    def jobs(self) -> list[EvictionCandidate]:
        """Return units that each are a whole job, which stops."""
        found: list[EvictionCandidate] = []
        for record in self._records:
            units = list(
                self._units_of_gang(record, None) if record.job.gang else self._single_pods(record)
            )
            pods = tuple(sorted(pod for unit in units for pod in unit.pods))
            if len(pods) == len(record.pods):
                since = max(map(record.placed_since, pods))
                job = self._unit(record, pods, True, units[0].kind, since)
                job.cost = sum([unit.cost for unit in units])
                found.append(job)
        return found

    def units(
        self,
        *,
        whole: frozenset[str] | None = None,
        before_min_runtime: bool = False,
        any_of: Mapping[str, frozenset[PodAt]] | None = None,
    ) -> list[EvictionCandidate]:
        """Return all eligible units.

        Elastic gangs offer only what exceeds their minimum; those named in `whole` (None: all) go
        as a whole. With `before_min_runtime`, units count that have not run for long enough yet but
        will have within the policy's minimum run time. If a disruption budget protects some pods of
        a job that goes on, the last of its pods are offered as far as the budget allows. With
        `any_of` the pods named there are offered instead, and all pods of a job that it does not
        name, which is more than the budget allows.
        """
        found: list[EvictionCandidate] = []
        self._before_min_runtime, self._any_of = before_min_runtime, any_of
        for record in self._records:
            if record.job.gang:
                found += self._units_of_gang(record, whole)
            else:
                found += self._single_pods(record)
        return found

    def min_runtime_ends_at(self, unit: EvictionCandidate) -> float:
        """Return when all pods of the unit will be past their minimum run time."""
        state = self._state
        return state.runs_from(unit.record, unit.pods) + state.min_runtime_of(unit.record.job)

    def _kind(
        self, record: JobRecord, pods: tuple[PodAt, ...], since: float
    ) -> PreemptionKind | None:
        """Return the first kind of preemption by which the preemptor may take these places.

        `since`: when the places were got. None if it may not take them.
        """
        tenant, allowed = record.job.tenant, self._state.policy.preemption
        if PreemptionKind.BACKFILL in allowed and self._was_backfilled(record, since):
            kind = PreemptionKind.BACKFILL
        elif self._claim.outranks(tenant, record.job.priority):
            kind = PreemptionKind.PRIORITY
        elif self._claim.reclaims_from(tenant):
            kind = PreemptionKind.RECLAIM
        else:
            return None
        return kind if self._long_enough(record, pods, since) else None

    def _was_backfilled(self, record: JobRecord, since: float) -> bool:
        by = self._claim.record
        passed = by.passed_since if self._claim.overdue else None
        return passed is not None and since >= passed and record.key > by.key

    def _long_enough(self, record: JobRecord, pods: tuple[PodAt, ...], since: float) -> bool:
        least = self._state.min_runtime_of(record.job)
        runs_from = self._state.runs_from(record, pods)
        until = max(runs_from, since) + least
        if until <= self._now and not self._just_got(record, pods):
            return True
        until = max(until, self._now)
        self.protected_until = min(until, self.protected_until)
        if not self._before_min_runtime:
            return False
        soon_at = runs_from + (least - self._state.policy.min_runtime_s)
        if soon_at > self._now:
            self.soon_at = min(self.soon_at, soon_at)
        return soon_at <= self._now

    def _just_got(self, record: JobRecord, pods: tuple[PodAt, ...]) -> bool:
        """Return whether the job gets any of these places in this very cycle.

        If nothing else protects it, it may lose them in the next cycle.
        """
        if record.job.id not in self._just_started:
            return False
        return any(record.placed_since(pod) >= self._now for pod in pods)

    def _single_pods(self, record: JobRecord) -> Iterator[EvictionCandidate]:
        """Yield the pods of a job that is no gang, each held since its own time."""
        offered = []
        for pod in sorted(record.pods):
            since = record.placed_since(pod)
            if (kind := self._kind(record, (pod,), since)) is not None:
                offered.append((pod, kind, since))
        left = self._within_budget([((pod,), kind, since) for pod, kind, since in offered], record)
        for pods, kind, since in left:
            yield self._unit(record, pods, False, kind, since)

    def _units_of_gang(
        self, record: JobRecord, whole: frozenset[str] | None
    ) -> Iterator[EvictionCandidate]:
        assert record.started_at is not None
        pods = sorted(record.pods)
        gives = whole is not None and record.job.id not in whole and record.job.elastic
        if gives and (surplus := _surplus(record, pods)):
            yield from self._surplus_units(record, surplus)
            return
        since = record.started_at
        kind = self._kind(record, tuple(pods), since)
        if kind is not None and record.protected(len(pods)) == 0:
            yield self._unit(record, tuple(pods), True, kind, since)

    def _surplus_units(
        self, record: JobRecord, surplus: list[tuple[PodAt, ...]]
    ) -> Iterator[EvictionCandidate]:
        """Yield the pods beyond the minimum of an elastic gang, each held since its own time."""
        offered = []
        for together in surplus:
            since = max(map(record.placed_since, together))
            if (kind := self._kind(record, together, since)) is not None:
                offered.append((together, kind, since))
        for together, kind, since in self._within_budget(offered, record):
            yield self._unit(record, together, False, kind, since)

    def _within_budget(self, offered: list[_Part], record: JobRecord) -> list[_Part]:
        """Return those of the parts that the disruption budget lets the job lose now."""
        pods = sum(len(together) for together, _, _ in offered)
        spared = record.protected(pods)
        if not spared:
            return offered
        if self._any_of is not None and spared < pods:
            chosen = self._any_of.get(record.job.id)
            return [part for part in offered if chosen is None or chosen.issuperset(part[0])]
        for at, (together, _, _) in enumerate(offered):
            if spared <= 0:
                return offered[at:]
            spared -= len(together)
        return []

    def beyond_budget(
        self, units: Iterable[EvictionCandidate]
    ) -> tuple[list[EvictionCandidate], int] | None:
        """Return a job's units if it loses more of them than its disruption budget allows.

        With these units, the smallest loss first, return how many pods the job may lose. None if
        there is no such job.
        """
        of: dict[str, list[EvictionCandidate]] = {}
        for unit in units:
            if not unit.whole:
                of.setdefault(unit.record.job.id, []).append(unit)
        for name in sorted(of):
            pods = sum(len(unit.pods) for unit in of[name])
            if spared := of[name][0].record.protected(pods):
                return sorted(of[name], key=lambda u: u.order), pods - spared
        return None

    def largest_within_budgets(self, *, whole: frozenset[str] | None) -> AnyOf:
        """Return, for jobs that budgets let lose only some pods, those with the most GPUs."""
        of: dict[str, list[EvictionCandidate]] = {}
        for unit in self.units(whole=whole, any_of={}):
            if not unit.whole:
                of.setdefault(unit.record.job.id, []).append(unit)
        found: AnyOf = {}
        for name, mine in of.items():
            pods = sum(len(unit.pods) for unit in mine)
            if spared := mine[0].record.protected(pods):
                mine.sort(key=lambda u: sum(u.on.values()) / len(u.pods), reverse=True)
                most = [pod for unit in mine for pod in unit.pods]
                whole_units = -(-(pods - spared) // len(mine[0].pods)) * len(mine[0].pods)
                found[name] = frozenset(most[:whole_units])
        return found

    @property
    def any_budget(self) -> bool:
        """Whether budgets protect some but not all pods of jobs that could go on without them."""
        return any(
            record.disruptions is not None
            and (record.job.elastic or not record.job.gang)
            and record.may_lose
            and record.protected(len(record.pods))
            for record in self._records
        )

    def _unit(
        self,
        record: JobRecord,
        pods: tuple[PodAt, ...],
        whole: bool,
        kind: PreemptionKind,
        since: float,
    ) -> EvictionCandidate:
        held = self._state.cluster.held_by(record.job.id)
        on: dict[str, int] = {}
        places = tuple(held[pod].placement for pod in pods)
        for p in places:
            on[p.node] = on.get(p.node, 0) + p.milli * len(p.devices)
        cost = cost_of(sum(on.values()), since, record.checkpoint_at, self._now)
        sets = record.job.pod_sets
        if any(s.gpu_memory_mib for s in sets):
            for p in places:
                on[p.node] += int(sets[p.pod_set].gpu_memory_mib > 0)  # it may hold a fraction more
        return EvictionCandidate(record, pods, whole, kind, cost, on, places)


def _surplus(record: JobRecord, pods: list[PodAt]) -> list[tuple[PodAt, ...]]:
    """Return the pods of an elastic gang beyond its minimum, those with the highest ordinals.

    The rest of a slice is of no use, so the pods of a slice go together.
    """
    found: dict[PodAt, list[PodAt]] = {}
    for i, s in enumerate(record.job.pod_sets):
        mine = [pod for pod in pods if pod[0] == i]
        for pod in mine[s.least :]:
            found.setdefault((i, pod[1] // (s.slice_size or 1)), []).append(pod)
    return [tuple(together) for together in found.values()]
