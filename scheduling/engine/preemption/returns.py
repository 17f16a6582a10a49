"""Which victims of a plan would come back at once by their own right, at others' expense."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from scheduling.engine.admission.candidates import Candidate
from scheduling.engine.admission.limits import jobs_to_stop
from scheduling.engine.admission.start import place_on
from scheduling.engine.demand.never import demand_of, needs_of
from scheduling.engine.demand.requested import smallest_starts, work_out
from scheduling.engine.demand.shapes import narrowed
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.preemption.candidates import EvictionCandidate, Victims
from scheduling.engine.preemption.quota_relief import trial
from scheduling.engine.preemption.ranks import rank
from scheduling.engine.preemption.rights import Claim
from scheduling.engine.preemption.trial import Plan, could_suffice, plan_for
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.order import OrderKey
from scheduling.engine.state import SchedulerState
from scheduling.engine.statement import Statement
from scheduling.engine.types import PreemptionKind

# How many victims of a plan are checked, those of the highest rank first, and how many plans are
# made that spare the victims which would come back.
LOOKED_AT = 8
REPLANS = 8
# How many jobs that were displaced before are checked, of those that go before a victim.
DISPLACED_LOOKED_AT = 16


def steadier(
    state: SchedulerState,
    claim: Claim,
    candidate: Candidate,
    units: list[EvictionCandidate],
    plan: Plan,
    now: float,
) -> Plan | None:
    """Return the plan, or one in which fewer victims would evict somebody in turn.

    None if some victims would do so in every plan, unless the preemptor reclaims from them.
    """
    record, asked = claim.record, claim.asked
    back = plan.returning = returning(state, record, asked, plan, now)
    # First without all victims that would come back, of the new plans as well; then without one.
    tries = [frozenset(back)]
    if len(back) > 1:
        tries = [frozenset((name,)) for name in reversed(back)] + tries
    for _ in range(REPLANS):
        if not plan.returning or not tries:
            break
        names = tries.pop()
        left = [unit for unit in units if unit.record.job.id not in names]
        if not could_suffice(state, claim.needs, left):
            continue
        other = plan_for(state, record, candidate, asked, left)
        if other is None:
            continue
        other.returning = returning(state, record, asked, other, now)
        if len(other.returning) < len(plan.returning):
            plan = other
        tries.append(names.union(other.returning))
    for unit in plan.units if plan.returning else ():
        job = unit.record.job
        if job.id in plan.returning and not claim.reclaims_from(job.tenant):
            return None
    return plan


def returning(
    state: SchedulerState, record: JobRecord, asked: dict[str, int], plan: Plan, now: float
) -> list[str]:
    """Return the victims that would take places from jobs that stay.

    They would do so once the plan for `record` is carried out. Victims of earlier plans are assumed
    to come back as well. The state is left unchanged.
    """
    kinds = state.policy.preemption
    if PreemptionKind.PRIORITY not in kinds and PreemptionKind.RECLAIM not in kinds:
        return []
    lost: dict[str, list[int]] = {}  # victim -> how many pods of each pod set it loses
    for unit in sorted(plan.units, key=lambda u: u.order, reverse=True):
        job = unit.record.job
        counts = lost.setdefault(job.id, [0] * len(job.pod_sets))
        if not job.preempts or (job.gang and not unit.whole):
            continue  # a gang that still runs grows at nobody's expense
        for pod_set, ordinal in unit.pods:
            # A pod beyond the present count of its pod set does not come back.
            counts[pod_set] += ordinal < job.pod_sets[pod_set].count
    some = [state.jobs[name] for name, counts in lost.items() if any(counts)][:LOOKED_AT]
    if not some:
        return []
    gone, displaced = frozenset(lost), _displaced(state, max([each.key for each in some]))
    others = [each for each in displaced if each is not record and each.job.id not in gone]
    found: list[str] = []
    statement = Statement(state.cluster)
    at_limit = jobs_to_stop(state, record).keys()  # the preemptor takes over the victim's place
    with trial(state.book, plan.units), ExitStack() as taken:
        _take(state, taken, record.job.tenant, asked)
        for unit in plan.units:
            for pod in unit.pods:
                statement.evict((unit.record.job.id, *pod))
        for p in plan.placements:
            statement.allocate(plan.candidate.job, p)
        # In the order of the queue: the first one gets what the preemptor leaves.
        for each in sorted([*some, *others], key=_place):
            job = each.job
            held: dict[str, int] | None
            if at_limit and not at_limit.isdisjoint(state.book.lineage(job.tenant)):
                continue
            if job.id in gone:
                held = _after(state, statement, each, tuple(lost[job.id]), gone, now)
            else:
                held = _beside(state, statement, each)
            if held is None:
                found.append(job.id)
            else:
                _take(state, taken, job.tenant, held)
    statement.rollback()
    return found


def _displaced(state: SchedulerState, before: OrderKey) -> list[JobRecord]:
    """Return the first displaced jobs that will come back and go before this position."""
    found = [
        record
        for record in [state.jobs[name] for name in state.displaced]
        if record.key < before and (record.eq_class is not None or record.leaving or record.left)
    ]
    return sorted(found, key=_place)[:DISPLACED_LOOKED_AT]


def _place(record: JobRecord) -> OrderKey:
    return record.key


def _beside(state: SchedulerState, statement: Statement, record: JobRecord) -> dict[str, int]:
    """Return what a displaced job gets back of what is free, in milli by GPU model.

    Its places are then allocated on the statement.
    """
    job, missing = record.job, list(record.missing())
    for pod_set, _ in record.leaving:
        missing[pod_set] += 1
    for way in work_out(job, tuple(missing), state.pools).ways:
        for counts in smallest_starts(job, tuple(missing)):
            wanted = narrowed(job, way.models)
            models = tuple([s.gpu_models[0] if s.gpus else "" for s in wanted.pod_sets])
            asked = demand_of(wanted, models, counts, state.pools)
            if state.book.refusal_of(job.tenant, asked) is not None:
                continue
            strategy = state.strategy_of(job)
            placed = place_job(statement, wanted, strategy=strategy, counts=counts)
            if not isinstance(placed, PlacementFailure):
                return asked
    return {}


def _take(state: SchedulerState, taken: ExitStack, tenant: str, asked: dict[str, int]) -> None:
    taken.enter_context(state.book.without([(tenant, {m: -milli for m, milli in asked.items()})]))


class _Start(NamedTuple):
    """A way to start: the demand, and the units from which it could take enough by count."""

    candidate: Candidate
    models: tuple[str, ...]
    asked: dict[str, int]
    units: list[EvictionCandidate]


def _after(
    state: SchedulerState,
    statement: Statement,
    victim: JobRecord,
    missing: tuple[int, ...],
    gone: frozenset[str],
    now: float,
) -> dict[str, int] | None:
    """Return what the victim gets beside all others, in milli by GPU model.

    Its places are then allocated on the statement. None if it would start at the expense of jobs
    other than those that are `gone`.
    """
    job, mark = victim.job, statement.checkpoint()
    starts = list(_starts(state, victim, missing, gone, now))
    for start in starts:
        if state.book.refusal_of(job.tenant, start.asked) is not None:
            continue
        beside = start.candidate if job.gang else Candidate(start.candidate.job, missing)
        placed = place_on(statement, state, beside, frozenset())
        if not isinstance(placed, PlacementFailure):
            if job.gang or len(placed) >= sum(missing):
                return demand_of(beside.job, start.models, beside.counts, state.pools)
            break  # it would have to take places for its other pods
    takes = any(
        plan_for(state, victim, start.candidate, start.asked, start.units) is not None
        for start in starts
    )
    statement.rollback(mark)
    return None if takes else {}


def _starts(
    state: SchedulerState,
    victim: JobRecord,
    missing: tuple[int, ...],
    gone: frozenset[str],
    now: float,
) -> Iterator[_Start]:
    job, book = victim.job, state.book
    avoid = frozenset(victim.avoided_nodes)
    for way in work_out(job, missing, state.pools).ways:
        for counts in smallest_starts(job, missing):
            candidate = Candidate(narrowed(job, way.models), counts, avoid=avoid)
            models = tuple([s.gpu_models[0] if s.gpus else "" for s in candidate.job.pod_sets])
            asked = demand_of(candidate.job, models, counts, state.pools)
            borrows = any(book.would_borrow(job.tenant, m, milli) for m, milli in asked.items())
            needs = needs_of(candidate.job, models, counts, state.pools)
            claim = Claim(state, victim, asked, needs, borrows=borrows, overdue=False)
            if not claim.groups:
                continue
            # A job that has just started is protected in this cycle but not in the next, so it
            # counts.
            units = Victims(state, claim, now, frozenset(), gone).units()
            if could_suffice(state, needs, units):
                rank(state, claim, units)
                yield _Start(candidate, models, asked, units)
