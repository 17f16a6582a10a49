"""Which victims of a plan would come back at once by their own right, at the expense of others."""

from collections.abc import Iterator

from scheduling.engine.admission.candidates import Candidate
from scheduling.engine.admission.limits import jobs_to_stop
from scheduling.engine.admission.start import place_on
from scheduling.engine.demand.never import demand_of, needs_of
from scheduling.engine.demand.requested import smallest_starts, work_out
from scheduling.engine.demand.shapes import narrowed
from scheduling.engine.placement import PlacementFailure
from scheduling.engine.preemption.candidates import EvictionCandidate, Victims
from scheduling.engine.preemption.quota_relief import trial
from scheduling.engine.preemption.ranks import rank
from scheduling.engine.preemption.rights import Claim
from scheduling.engine.preemption.trial import Plan, could_suffice, plan_for
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.state import SchedulerState
from scheduling.engine.statement import Statement
from scheduling.engine.types import PreemptionKind

# Victims of a plan that are looked at, those of the highest rank first, and plans that are made to
# do without those that would come back.
LOOKED_AT = 8
REPLANS = 4


def steadier(
    state: SchedulerState,
    claim: Claim,
    candidate: Candidate,
    units: list[EvictionCandidate],
    plan: Plan,
    now: float,
    just_started: frozenset[str],
) -> Plan | None:
    """The plan, or one of which fewer victims would evict somebody in turn. None where some would
    whatever is done, unless the preemptor reclaims from them."""
    record, asked = claim.record, claim.asked
    back = plan.returning = returning(state, record, asked, plan, now, just_started)
    without: set[str] = set()
    tries = [back, *([name] for name in back)] if len(back) > 1 else [back]
    for _ in range(REPLANS):
        if not back or not tries:
            break
        names = without.union(tries.pop(0))
        left = [unit for unit in units if unit.record.job.id not in names]
        if not could_suffice(state, claim.needs, left):
            continue
        other = plan_for(state, record, candidate, asked, left)
        if other is None:
            continue
        other.returning = returning(state, record, asked, other, now, just_started)
        if len(other.returning) < len(back):
            plan, back, without = other, other.returning, names
            tries = [back]
    for unit in plan.units if back else ():
        job = unit.record.job
        if job.id in back and not claim.reclaims_from(job.tenant):
            return None
    return plan


def returning(
    state: SchedulerState,
    record: JobRecord,
    asked: dict[str, int],
    plan: Plan,
    now: float,
    just_started: frozenset[str],
) -> list[str]:
    """Victims that would take places from jobs that stay, once the plan for `record` is carried
    out; the state is as before."""
    kinds = state.policy.preemption
    if PreemptionKind.PRIORITY not in kinds and PreemptionKind.RECLAIM not in kinds:
        return []
    lost: dict[str, list[int]] = {}  # of each victim how many pods of each pod set
    for unit in sorted(plan.units, key=lambda u: u.order, reverse=True):
        job = unit.record.job
        counts = lost.setdefault(job.id, [0] * len(job.pod_sets))
        if not job.preempts or (job.gang and not unit.whole):
            continue  # a gang that runs grows at nobody's expense
        for pod_set, _ in unit.pods:
            counts[pod_set] += 1
    found: list[str] = []
    statement = Statement(state.cluster)
    at_limit = jobs_to_stop(state, record).keys()  # the preemptor takes the place of the victim
    taken = [(record.job.tenant, {model: -milli for model, milli in asked.items()})]
    with trial(state.book, plan.units), state.book.without(taken):
        for unit in plan.units:
            for pod in unit.pods:
                statement.evict((unit.record.job.id, *pod))
        for p in plan.placements:
            statement.allocate(plan.candidate.job, p)
        for job_id in [name for name, counts in lost.items() if any(counts)][:LOOKED_AT]:
            victim = state.jobs[job_id]
            if at_limit and not at_limit.isdisjoint(state.book.lineage(victim.job.tenant)):
                continue
            if _comes_back(state, victim, tuple(lost[job_id]), frozenset(lost), now, just_started):
                found.append(job_id)
    statement.rollback()
    return found


def _comes_back(
    state: SchedulerState,
    victim: JobRecord,
    missing: tuple[int, ...],
    gone: frozenset[str],
    now: float,
    just_started: frozenset[str],
) -> bool:
    """Whether it would start at the expense of others than those who are `gone`, and not beside
    them."""
    job, statement = victim.job, Statement(state.cluster)
    some = list(_starts(state, victim, missing, gone, now, just_started))
    for candidate, asked, _ in some:
        if state.book.refusal_of(job.tenant, asked) is not None:
            continue
        beside = candidate if job.gang else Candidate(candidate.job, missing)
        placed = place_on(statement, state, beside, frozenset())
        if not isinstance(placed, PlacementFailure):
            if job.gang or len(placed) >= sum(missing):
                statement.rollback()
                return False
            break  # the other pods it would have to take
    found = any(
        plan_for(state, victim, candidate, asked, units) is not None
        for candidate, asked, units in some
    )
    statement.rollback()
    return found


def _starts(
    state: SchedulerState,
    victim: JobRecord,
    missing: tuple[int, ...],
    gone: frozenset[str],
    now: float,
    just_started: frozenset[str],
) -> Iterator[tuple[Candidate, dict[str, int], list[EvictionCandidate]]]:
    """Ways to start for which it could take enough by count: what it asks for, and from whom."""
    job, book = victim.job, state.book
    for way in work_out(job, missing, state.pools).ways:
        for counts in smallest_starts(job, missing):
            candidate = Candidate(narrowed(job, way.models), counts)
            models = tuple([s.gpu_models[0] if s.gpus else "" for s in candidate.job.pod_sets])
            asked = demand_of(candidate.job, models, counts, state.pools)
            borrows = any(book.would_borrow(job.tenant, m, milli) for m, milli in asked.items())
            needs = needs_of(candidate.job, models, counts, state.pools)
            claim = Claim(state, victim, asked, needs, borrows=borrows, overdue=False, early=False)
            if not claim.groups:
                continue
            units = Victims(state, claim, now, just_started, gone).units()
            if could_suffice(state, needs, units):
                rank(state, claim, units)
                yield candidate, asked, units
