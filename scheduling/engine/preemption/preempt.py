"""Preemption: planned on a statement, done only when the preemptor then fits whole (paper 3.2.3).

Conservative: the choice of victims is tried by really placing the preemptor, and whoever can keep
his place beside it does. The preemptor's places are booked at once and thereby held for it; it
starts when the last victim is reported gone. A job never preempts one that preempted it.
"""

import math
from collections.abc import Iterator

from scheduling.engine.admission.candidates import Candidate, ask_of, assess
from scheduling.engine.admission.limits import jobs_to_stop, over_job_limit
from scheduling.engine.admission.out_of_service import within_reach
from scheduling.engine.admission.start import book, nomination
from scheduling.engine.decisions import Alternative, Preempted
from scheduling.engine.demand.never import demand_of, needs_of
from scheduling.engine.demand.requested import smallest_starts
from scheduling.engine.demand.shapes import narrowed
from scheduling.engine.outcome import Outcome
from scheduling.engine.preemption.candidates import EvictionCandidate, Victims
from scheduling.engine.preemption.feasibility import may_succeed_at
from scheduling.engine.preemption.ranks import Loss, rank
from scheduling.engine.preemption.returns import steadier
from scheduling.engine.preemption.rights import Claim
from scheduling.engine.preemption.trial import Plan, could_suffice, plan_for
from scheduling.engine.queue.job import InVain, JobRecord
from scheduling.engine.queue.preemption_delay import preempts_from
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.quota.book import Kept
from scheduling.engine.state import SchedulerState

# Plans a cycle may make; the blocked jobs behind get theirs in later cycles.
PLANS_PER_CYCLE = 16
# Choices of GPU models compared by what they cost, the preferred first; and alternatives told.
MODELS_COMPARED = 4
# Ways to decide which elastic gangs go whole and which give up what exceeds their minimum, where no
# more units than these are in question; else all of them or none.
ELASTIC_TRIED, ELASTIC_UNITS = 16, 200
ALTERNATIVES_TOLD = 4


def try_to_preempt(
    state: SchedulerState,
    eq_class: EquivalenceClass,
    record: JobRecord,
    overdue: bool,
    kept: Kept,
    out: Outcome,
) -> bool:
    """Take places from others for a blocked job; True when they are promised to it now. `kept`:
    quota that a job ahead waits to borrow."""
    if not state.policy.preemption or not record.job.preempts or out.plans >= PLANS_PER_CYCLE:
        return False
    assess(state, eq_class)
    stamp = (*state.plans_at, overdue)
    if eq_class.never is not None:
        return False
    if state.only_backfilled and over_job_limit(state, record) is not None:
        return False  # nothing was backfilled past it
    if eq_class.unplanned_at == stamp and out.now < eq_class.unplanned_until:
        return False
    eq_class.unplanned_until = math.inf
    record.awaits_min_runtime = False
    record.protected_until = record.preempts_from = math.inf
    if not within_reach(state, record):
        return False  # whoever made room for it would do so in vain
    for counts in _wanted(record) if overdue or not state.only_backfilled else ():
        plan = _cheapest(state, record, counts, overdue, kept, out)
        if plan is not None and plan.units:  # else it would pass those for whom room is kept
            _carry_out(state, record, plan, out)
            return True
    if not kept:
        eq_class.unplanned_at = stamp
    return False


def _wanted(record: JobRecord) -> Iterator[tuple[int, ...]]:
    """Pods of each set that may be promised to the job, whatever quota says: of a gang its least,
    of other jobs all missing pods, else one."""
    missing = record.missing()
    least = smallest_starts(record.job, missing)
    yield from least if record.job.gang else dict.fromkeys((missing, *least))


def _cheapest(
    state: SchedulerState,
    record: JobRecord,
    counts: tuple[int, ...],
    overdue: bool,
    kept: Kept,
    out: Outcome,
) -> Plan | None:
    """The plan that costs least: over the first choices of GPU models, else of the first that
    has one."""
    plans: list[Plan] = []
    for at, way in enumerate(ask_of(state, record).ways):
        if plans and at >= MODELS_COMPARED:
            break
        candidate = Candidate(narrowed(record.job, way.models), counts)
        plan = _plan_for(state, record, candidate, overdue, kept, out)
        if plan is not None:
            plans.append(plan)
    if not plans:
        return None
    best = min(plans, key=_judged)
    rest = [plan for plan in plans if plan is not best]
    best.examined += len(rest)
    best.others += tuple(Alternative(f"on {_models(plan)}", plan.jobs, plan.cost) for plan in rest)
    return best


def _judged(plan: Plan) -> tuple[int, Loss]:
    """The plan with the smaller one is the better one."""
    return len(plan.returning), plan.loss


def _models(plan: Plan) -> str:
    """GPU models of a plan in words: "A100", "H100 and L4"."""
    names = dict.fromkeys(s.gpu_models[0] for s in plan.candidate.job.pod_sets if s.gpus)
    return " and ".join(names)


def _plan_for(
    state: SchedulerState,
    record: JobRecord,
    candidate: Candidate,
    overdue: bool,
    kept: Kept,
    out: Outcome,
) -> Plan | None:
    job = candidate.job
    models = tuple(s.gpu_models[0] if s.gpus else "" for s in job.pod_sets)
    asked = demand_of(job, models, candidate.counts, state.pools)
    needs = needs_of(job, models, candidate.counts, state.pools)
    book = state.book
    # Whoever could go for it holds nothing of what such a job waits for.
    non_preemptible = {} if job.preemptible else asked
    if any(book.beyond_guarantee(job.tenant, m, milli) for m, milli in non_preemptible.items()):
        return None
    borrows = any(book.would_borrow(job.tenant, m, milli) for m, milli in asked.items())
    if kept and book.wants(job.tenant, asked, kept):
        return None
    claim = Claim(state, record, asked, needs, borrows=borrows, overdue=overdue, early=False)
    only, just_started = state.only_backfilled, out.just_started
    possible_at = out.now if only else may_succeed_at(state, claim, candidate, out.now)
    due = preempts_from(state.policy, record)
    if possible_at < math.inf and due > out.now:
        record.preempts_from = due
        claim = Claim(state, record, asked, needs, borrows=borrows, overdue=overdue, early=True)
        possible_at = may_succeed_at(state, claim, candidate, out.now)
    if possible_at == math.inf or (possible_at > out.now and not overdue):
        _try_again_at(state, record, possible_at, possible_at)
        return None
    stops = bool(jobs_to_stop(state, record))
    victims = Victims(state, claim, out.now, just_started, stops=stops)
    reach, what = victims.within_reach(), candidate.counts + models
    if victims.none or any(reach[m] < milli for m, milli in needs.items()):
        record.in_vain.pop(what, None)  # what is lost may come back elsewhere
        return None
    # What is backfilled past a job, or ends that was, brings it nothing that was not in its reach.
    facts = state.cluster.facts_version, book.structure
    last = record.in_vain.get(what) if only else None
    if last is not None and last.holds(facts, reach, out.now):
        record.in_vain[what] = last._replace(reach=reach)
        record.awaits_min_runtime |= last.awaits_min_runtime
        _try_again_at(state, record, last.until, last.protected_until)
        return None
    best: Plan | None = None
    ways: list[frozenset[str] | None] = [None]
    if victims.any_elastic and not stops:
        ways = [frozenset(), None]
    for whole in ways:
        units = victims.jobs() if stops else victims.units(whole=whole)
        if whole == frozenset() and all(u.whole or not u.record.job.gang for u in units):
            continue
        if not could_suffice(state, needs, units):
            continue
        out.plans += whole is None or not whole
        rank(state, claim, units)
        plan = plan_for(state, record, candidate, asked, units)
        if plan is not None:
            plan = steadier(state, claim, candidate, units, plan, out.now, just_started)
        if plan is not None and (best is None or _judged(plan) < _judged(best)):
            best = plan
            if victims.any_elastic and not stops and len(units) <= ELASTIC_UNITS:
                ways += _near(plan, units, whole, ways)
    if best is not None:
        return best
    until, ripe = victims.protected_until, None
    if until < math.inf and overdue:
        out.plans += 1
        units = victims.units(before_min_runtime=True)
        rank(state, claim, units)
        ripe = plan_for(state, record, candidate, asked, units)
        if only and ripe is not None:
            until = max(out.now, *map(victims.min_runtime_ends_at, ripe.units))
            if until == out.now and not any(u.record.job.id in just_started for u in ripe.units):
                return ripe
        else:
            until = victims.soon_at if only else min(until, victims.soon_at)
    last = InVain(facts, reach, until, ripe is not None, victims.protected_until)
    if only:
        record.in_vain[what] = last
    record.awaits_min_runtime |= last.awaits_min_runtime
    _try_again_at(state, record, last.until, last.protected_until)
    return None


def _near(
    plan: Plan,
    units: list[EvictionCandidate],
    whole: frozenset[str] | None,
    tried: list[frozenset[str] | None],
) -> list[frozenset[str] | None]:
    """Other ways than those that were tried to have elastic gangs go whole or not: one gang of the
    plan, or that could have been in it, is treated otherwise."""
    elastic = {u.record.job.id for u in units if u.record.job.elastic}
    if whole is None:
        whole = frozenset(elastic)
    mine = [u.record.job.id for u in plan.units if u.record.job.elastic]
    names = dict.fromkeys([*mine, *sorted(elastic)])
    found: dict[frozenset[str] | None, None] = {}
    found[frozenset(u.record.job.id for u in plan.units if u.whole and u.record.job.elastic)] = None
    for name in names:
        found[whole ^ {name}] = None
    new = [way for way in found if way not in tried]
    return new[: max(0, ELASTIC_TRIED - len(tried))]


def _try_again_at(
    state: SchedulerState, record: JobRecord, until: float, protected_until: float
) -> None:
    """No plan is possible before that by the passing of time alone."""
    assert record.eq_class is not None
    record.protected_until = min(record.protected_until, protected_until)
    if until < math.inf:
        record.eq_class.unplanned_until = min(record.eq_class.unplanned_until, until)
        state.wake_at(until)


def _carry_out(state: SchedulerState, record: JobRecord, plan: Plan, out: Outcome) -> None:
    """Book what the plan says: victims leave, the preemptor's places are held for it."""
    alternatives = sorted(plan.others, key=lambda a: (a.cost_gpu_s, a.jobs, a.choice))
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
                plan.cost,
                tuple(alternatives[:ALTERNATIVES_TOLD]),
                plan.examined,
            )
        )
        out.waiting.pop(victim.job.id, None)
        awaited.update(state.evict(victim, pods, whole=whole))
        victim.preempted_by.add(record.job.id)
        if whole or not victim.job.gang:  # else it only gave up what it can do without
            victim.preemptions += 1
    awaited |= book(state, plan.candidate.job, plan.placements)
    nomination(state, record, plan.placements, awaited, out)


def _by_job(units: list[EvictionCandidate]) -> Iterator[tuple[JobRecord, list[EvictionCandidate]]]:
    """Units joined by job, in the order of their jobs."""
    jobs: dict[str, list[EvictionCandidate]] = {}
    for unit in units:
        jobs.setdefault(unit.record.job.id, []).append(unit)
    for job_id in sorted(jobs):
        yield jobs[job_id][0].record, jobs[job_id]
