"""Preemption: planned on a statement, done only when the preemptor then fits whole (paper 3.2.3).

Conservative: the choice of victims is tried by really placing the preemptor, and whoever can keep
his place beside it does. The preemptor's places are booked at once and thereby held for it; it
starts when the last victim is reported gone. A job never preempts one that preempted it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from scheduling.engine.constraints import admits
from scheduling.engine.decisions import Preempted
from scheduling.engine.placement import PlacementFailure
from scheduling.engine.placement.request import HYPER_NODE
from scheduling.engine.queueing.admission import Candidate, assess
from scheduling.engine.queueing.asks import smallest_starts
from scheduling.engine.queueing.choice import Scan, cheapest
from scheduling.engine.queueing.eligibility import demand_of
from scheduling.engine.queueing.limits import over_job_limit
from scheduling.engine.queueing.relief import relieve, trial
from scheduling.engine.queueing.report import tell
from scheduling.engine.queueing.restore import can_return
from scheduling.engine.queueing.shapes import choices, narrowed
from scheduling.engine.queueing.start import place_on
from scheduling.engine.queueing.state import Outcome, SchedulerState
from scheduling.engine.queueing.victims import Preemptor, Unit, Victims
from scheduling.engine.queueing.waiting import JobRecord, Lane, Promise
from scheduling.engine.statement import Statement
from scheduling.engine.types import MILLI, JobRequest, PodPlacement, PodSet
from scheduling.engine.verdict import Reason, Verdict

# A narrower topology level may cost this much more than the cheapest choice.
NARROW_AT = 1.25
# Plans a cycle may make; the blocked jobs behind get theirs in later cycles.
PLANS_PER_CYCLE = 16
# Above this many eligible units no plan is made by evicting all of them first.
TRY_ALL_UNITS = 1000


@dataclass(slots=True)
class Plan:
    candidate: Candidate
    placements: tuple[PodPlacement, ...]
    units: list[Unit]
    alternative: float | None


def try_to_preempt(
    state: SchedulerState, lane: Lane, record: JobRecord, overdue: bool, out: Outcome
) -> bool:
    """Take places from others for a blocked job; True when they are promised to it now."""
    if not state.policy.preemption or not record.job.preempts or out.plans >= PLANS_PER_CYCLE:
        return False
    assess(state, lane)
    stamp = (state.cluster.version, state.book.version, overdue)
    if lane.never is not None or over_job_limit(state, record) is not None:
        return False
    if lane.unplanned_at == stamp and out.now < lane.unplanned_until:
        return False
    lane.unplanned_until = math.inf
    for candidate in _wanted(state, record):
        plan = _plan_for(state, record, candidate, overdue, out)
        if plan is not None:
            _carry_out(state, record, plan, out)
            return True
    lane.unplanned_at = (state.cluster.version, state.book.version, overdue)
    return False


def _wanted(state: SchedulerState, record: JobRecord) -> Iterator[Candidate]:
    """What may be promised to the job, in each choice of GPU models, whatever quota says: of a
    gang its least, of other jobs all missing pods, else one."""
    for models in choices(record.job, state.pools.models()):
        least = smallest_starts(record.job, record.missing())
        for counts in least if record.job.gang else dict.fromkeys((record.missing(), *least)):
            yield Candidate(narrowed(record.job, models), counts)


def _plan_for(
    state: SchedulerState, record: JobRecord, candidate: Candidate, overdue: bool, out: Outcome
) -> Plan | None:
    job = candidate.job
    models = tuple(s.gpu_models[0] if s.gpus else "" for s in job.pod_sets)
    asked = demand_of(job, models, candidate.counts, state.pools)
    borrows = any(state.book.would_borrow(job.tenant, m, milli) for m, milli in asked.items())
    victims = Victims(state, Preemptor(record, asked, borrows, overdue), out.now)
    for surplus_only in (True, False):
        units = victims.units(surplus_only=surplus_only)
        if _could_suffice(state, asked, units):
            out.plans += 1
            plan = _plan(state, record, candidate, asked, units)
            if plan is not None:
                return plan
    lane, until = record.lane, victims.protected_until
    if until is not None and lane is not None:
        lane.unplanned_until = min(lane.unplanned_until, until)
        state.wake_at(until)
    return None


def _could_suffice(state: SchedulerState, asked: dict[str, int], units: list[Unit]) -> bool:
    """Whether what is free and all that the units hold is as much as is asked for."""
    held: dict[str, int] = {}
    for unit in units:
        for pod in unit.pods:
            model, milli = unit.record.pods[pod]
            held[model] = held.get(model, 0) + milli
    return bool(units) and all(
        state.cluster.free_milli(m) + held.get(m, 0) >= milli for m, milli in asked.items()
    )


def _plan(
    state: SchedulerState,
    record: JobRecord,
    candidate: Candidate,
    asked: dict[str, int],
    units: list[Unit],
) -> Plan | None:
    first = relieve(state.book, record.job.tenant, asked, units)
    if first is None:
        return None
    scopes = _scopes(state, candidate, units, frozenset(first))
    limit = min((scope.cost for scope in scopes), default=0.0) * NARROW_AT
    narrow = [scope for scope in scopes if scope.cost <= limit]
    dear = sorted((s for s in scopes if s.cost > limit), key=lambda s: s.cost)
    for scope in (*narrow, *dear):
        done = _try(state, record, _at_level(candidate, scope.level), [*first, *scope.units])
        if done is not None:
            others = [s.cost for s in scopes if s is not scope]
            return Plan(candidate, *done, min(others, default=None))
    if len(units) <= TRY_ALL_UNITS:
        done = _try(state, record, candidate, units)
        if done is not None:
            return Plan(candidate, *done, None)
    return None


@dataclass(frozen=True, slots=True)
class Scope:
    """The cheapest victims found at one topology level; level "" is the whole pool."""

    level: str
    cost: float
    units: list[Unit]


def _at_level(candidate: Candidate, level: str) -> Candidate:
    job = candidate.job
    if not level or job.preferred_level or job.required_level:
        return candidate
    return Candidate(replace(job, preferred_level=level), candidate.counts)


def _scopes(
    state: SchedulerState, candidate: Candidate, units: list[Unit], first: frozenset[Unit]
) -> list[Scope]:
    """The cheapest choice at each level that could hold the job, the narrowest level first."""
    job = candidate.job
    sets = [(s, n) for s, n in zip(job.pod_sets, candidate.counts, strict=True) if s.gpus and n]
    levels = _levels(state, job, *sets[0]) if len(sets) == 1 else ("",)
    found: dict[str, list[Unit]] = {}
    scans = [_scan(state, s, n, tuple(filter(None, levels)), units) for s, n in sets]
    for level in levels:
        if len(scans) == 1:
            rooms = [[room] for room in scans[0].rooms(level)]
        else:
            rooms = [[scan.room for scan in scans]]
        for joint in rooms:
            chosen: list[Unit] | None = []
            for room in joint:
                more = cheapest(room, first.union(chosen or ()))
                chosen = None if more is None or chosen is None else [*chosen, *more]
            if chosen is not None and (level not in found or _cost(chosen) < _cost(found[level])):
                found[level] = chosen
    return [Scope(level, _cost(found[level]), found[level]) for level in levels if level in found]


def _cost(units: list[Unit]) -> float:
    return sum(unit.cost for unit in units)


def _levels(state: SchedulerState, job: JobRequest, s: PodSet, count: int) -> tuple[str, ...]:
    """Levels worth a look, nearest first: those with a group large enough, then the whole pool."""
    required = job.required_level or ("" if s.slice_size else s.required_level)
    names = (*state.cluster.levels, HYPER_NODE)
    ask = count * state.pools.milli_per_pod(s, s.gpu_models[0])
    wide = {n for at, n in enumerate(names) if _holds(state, s.gpu_models[0], at) >= ask}
    if required:
        return (required,) if required in wide else ()
    if count == 1:
        return ("",)
    preferred = {job.preferred_level, s.preferred_level}
    return (*(n for n in names if n in wide and (n != HYPER_NODE or n in preferred)), "")


def _holds(state: SchedulerState, model: str, at: int) -> int:
    return state.pools.largest_group(model, at) * MILLI


def _scan(
    state: SchedulerState, s: PodSet, pods: int, levels: tuple[str, ...], units: list[Unit]
) -> Scan:
    cluster, model = state.cluster, s.gpu_models[0]
    milli = state.pools.milli_per_pod(s, model)
    names = (*cluster.levels, HYPER_NODE)
    number = {name: at for at, name in enumerate(names)}
    groups_of = state.pools.groups_of

    def free_of(name: str) -> int | None:
        slot = cluster.slot_of.get(name)
        node = None if slot is None else cluster.facts[slot]
        if slot is None or node is None or not cluster.usable[slot]:
            return None
        if node.gpu_model != model or not admits(node, s):
            return None
        return cluster.free[slot] * MILLI + (sum(cluster.partial[slot].values()) % MILLI)

    wanted = -(-milli // MILLI)
    idle = {}
    for slot, free in enumerate(cluster.free):
        if free >= wanted and (left := free_of(cluster.names[slot])) is not None:
            idle[cluster.names[slot]] = left
    scan = Scan(milli, pods, free_of, idle, levels, lambda at, n: groups_of[n][number[at]])
    scan.read(units)
    return scan


def _try(
    state: SchedulerState, record: JobRecord, candidate: Candidate, units: list[Unit]
) -> tuple[tuple[PodPlacement, ...], list[Unit]] | None:
    """Evict, place, and let everybody return who still can; the cluster keeps it on success."""
    statement = Statement(state.cluster)
    returned: list[Unit] = []
    with trial(state.book, units) as books:
        for unit in units:
            for pod in unit.pods:
                statement.evict((unit.record.job.id, *pod))
        placed = place_on(statement, state, candidate, frozenset(record.blamed))
        if isinstance(placed, PlacementFailure) or books.refuses(
            record.job, state.pools, candidate
        ):
            statement.rollback()
            return None
        for unit in sorted(units, key=lambda u: u.order, reverse=True):
            if not can_return(state.cluster, unit.record.job, unit.places):
                continue
            books.give_back(unit)
            if books.refuses(record.job, state.pools, candidate):
                books.take(unit)
                continue
            for p in unit.places:
                statement.allocate(unit.record.job, p)
            returned.append(unit)
    statement.commit()
    return placed, [unit for unit in units if unit not in returned]


def _carry_out(state: SchedulerState, record: JobRecord, plan: Plan, out: Outcome) -> None:
    """Book what the plan says: victims leave, the preemptor's places are held for it."""
    awaited: set[tuple[str, int, int]] = set()
    for victim, units in _by_job(plan.units):
        pods = tuple(sorted(pod for unit in units for pod in unit.pods))
        whole = units[0].whole
        out.preempted.append(
            Preempted(
                victim.job.id,
                pods,
                whole,
                record.job.id,
                units[0].kind,
                sum(unit.cost for unit in units),
                plan.alternative,
            )
        )
        out.waiting.pop(victim.job.id, None)
        awaited.update(state.evict(victim, pods, whole, record.job.id))
    state.queue.remove(record)
    borrowed = state.hold(record, plan.placements, out.now, promised=True)
    record.promise = Promise(plan.placements, tuple(sorted(borrowed.items())), awaited)
    state.promised[record.job.id] = record
    tell(
        record,
        Verdict(
            Reason.WAITING_FOR_PREEMPTION,
            "Its places are held; it starts when the jobs that make room are gone.",
            {"pods_leaving": len(awaited)},
        ),
        out,
    )


def _by_job(units: list[Unit]) -> Iterator[tuple[JobRecord, list[Unit]]]:
    """Units joined by job, in the order of their jobs."""
    jobs: dict[str, list[Unit]] = {}
    for unit in units:
        jobs.setdefault(unit.record.job.id, []).append(unit)
    for job_id in sorted(jobs):
        yield jobs[job_id][0].record, jobs[job_id]
