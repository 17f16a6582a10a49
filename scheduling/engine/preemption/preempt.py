"""Preemption: plan on a statement, evict only if the preemptor then fits whole (paper 3.2.3).

Preemption is conservative. A plan places the preemptor for real, and each victim that still fits
beside it keeps its place. The places of the preemptor are booked at once, so nobody else can take
them; it starts when the last victim is reported gone. No job preempts one that preempted it.
"""

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from scheduling.engine.admission.candidates import Candidate, ask_of, assess
from scheduling.engine.admission.limits import jobs_to_stop, over_job_limit, over_queue_limit
from scheduling.engine.admission.out_of_service import within_reach
from scheduling.engine.admission.start import book, nomination
from scheduling.engine.decisions import Alternative, Preempted
from scheduling.engine.demand.never import demand_of, needs_of
from scheduling.engine.demand.requested import smallest_starts
from scheduling.engine.demand.shapes import narrowed
from scheduling.engine.memo import IN_VAIN, UNPLANNED, Finding, Question
from scheduling.engine.outcome import Outcome
from scheduling.engine.preemption.candidates import AnyOf, EvictionCandidate, PodAt, Victims
from scheduling.engine.preemption.feasibility import may_succeed_at
from scheduling.engine.preemption.ranks import Loss, rank
from scheduling.engine.preemption.returns import steadier
from scheduling.engine.preemption.rights import Claim
from scheduling.engine.preemption.trial import Plan, could_suffice, plan_for
from scheduling.engine.queue.job import JobRecord, NoPlan
from scheduling.engine.queue.preemption_delay import not_yet
from scheduling.engine.queue.reservations import Terms
from scheduling.engine.queue.waiting import EquivalenceClass, Unplanned, UnplannedAtAll
from scheduling.engine.quota.borrowing import Kept
from scheduling.engine.state import SchedulerState

# Limit of plans a cycle; the blocked jobs behind get theirs in later cycles.
PLANS_PER_CYCLE = 16
# Choices of GPU models whose costs are compared, the preferred ones first.
MODELS_COMPARED = 4
# An elastic gang can go whole, or give up only the pods beyond its minimum. With few candidates
# Kant tries this many combinations; with more, only "all whole" and "none whole".
ELASTIC_TRIED, ELASTIC_UNITS = 16, 200
# Alternatives that the record of a preemption names.
ALTERNATIVES_TOLD = 4
# Searches for victims where some jobs would lose more pods than their disruption budgets allow.
BUDGETS_TRIED = 16


class _Unplanned(UnplannedAtAll):
    """The finding that no preemption helps the first job of a class, with the check of it."""

    def check(
        self,
        state: SchedulerState,
        subject: EquivalenceClass,
        _known: Finding,
        depends_on: Unplanned,
    ) -> bool:
        record = state.jobs[subject.head]
        why = record.look_for_plan(NoPlan())
        again = Outcome(state.cluster.now, state.refresh_s, depends_on.just_started)
        found = bool(within_reach(state, record)) and (
            _first_plan(state, record, depends_on, frozenset(), again) is not None
        )
        record.look_for_plan(why)
        return found


class _Tried(NamedTuple):
    """What a failed plan depends on, for a job that may only preempt jobs backfilled past it.

    `terms`: the state of nodes and quotas. `reach`: the GPU-milli it could take, by GPU model. The
    plan still fails while the terms are the same and no reach has grown.
    """

    terms: tuple[int, int]
    reach: dict[str, int]


class _InVain(Question):
    """The finding that no preemption makes room for some pods of a job.

    The answer says whether only the minimum run time of others stands against it, and when the
    first of these may be preempted.
    """

    def stands(
        self, _state: SchedulerState, _subject: object, known: Finding, depends_on: _Tried
    ) -> bool:
        before: _Tried = known.depends_on
        more = any(milli > before.reach[model] for model, milli in depends_on.reach.items())
        return before.terms == depends_on.terms and not more


_UNPLANNED = _Unplanned(UNPLANNED)


def try_to_preempt(
    state: SchedulerState,
    eq_class: EquivalenceClass,
    claim: Terms,
    overdue: bool,
    out: Outcome,
) -> bool:
    """Preempt others for a blocked job; True when their places are booked for it.

    `claim`: the job, and what the jobs ahead of it leave to it. `overdue`: it may also preempt jobs
    that were backfilled past it.
    """
    record, kept = claim.record, claim.kept
    if not state.policy.preemption or not record.job.preempts or out.plans >= PLANS_PER_CYCLE:
        return False
    assess(state, eq_class)
    as_of = Unplanned(state.allows_plans, overdue, out.just_started, claim.barred, claim.turn_nodes)
    if eq_class.never is not None:
        return False
    if state.only_backfilled and over_job_limit(state, record) is not None:
        return False  # no job was backfilled past it
    if over_queue_limit(state, record) is not None:
        return False  # its queue is at its limit: places would not help
    if state.memo.recall(_UNPLANNED, eq_class, as_of) is not None:
        return False
    record.look_for_plan(NoPlan())
    if not within_reach(state, record):
        return False  # no preemption could make it fit
    plan = _first_plan(state, record, as_of, kept, out)
    if plan is not None:
        _carry_out(state, record, plan, out)
        return True
    if not kept:
        state.memo.note(_UNPLANNED, eq_class, False, as_of, record.no_plan.again_at)
    return False


def _first_plan(
    state: SchedulerState,
    record: JobRecord,
    as_of: Unplanned,
    kept: Kept,
    out: Outcome,
) -> Plan | None:
    """Return a plan for as many pods of the job as possible; None if there is none."""
    for counts in _wanted(record) if as_of.overdue or not state.only_backfilled else ():
        plan = _cheapest(state, record, counts, as_of, frozenset(), kept, out)
        if plan is not None and not plan.units and as_of.turn_nodes:
            # The job fits on free GPUs, but these are kept for a job that comes first.
            plan = _cheapest(state, record, counts, as_of, as_of.turn_nodes, kept, out)
        if plan is not None and plan.units:
            return plan
    return None


def _wanted(record: JobRecord) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of pods, by pod set, to plan for: the minimum of a gang; for other jobs all
    missing pods, then a single one."""
    missing = record.missing()
    least = smallest_starts(record.job, missing)
    yield from least if record.job.gang else dict.fromkeys((missing, *least))


def _cheapest(
    state: SchedulerState,
    record: JobRecord,
    counts: tuple[int, ...],
    as_of: Unplanned,
    shut: frozenset[str],
    kept: Kept,
    out: Outcome,
) -> Plan | None:
    """Return the cheapest plan over the first `MODELS_COMPARED` choices of GPU models, else that of
    the first later choice that has one. No plan uses a node in `shut`."""
    plans: list[Plan] = []
    avoid, barred = shut.union(record.avoided_nodes), as_of.barred
    for at, way in enumerate(ask_of(state, record).ways):
        if plans and at >= MODELS_COMPARED:
            break
        wanted = zip(way.models, counts, strict=True)
        if barred and any(n and model in barred for model, n in wanted):
            continue
        candidate = Candidate(narrowed(record.job, way.models), counts, avoid=avoid)
        plan = _plan_for(state, record, candidate, bool(as_of.overdue), kept, out)
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
    """Return the sort key of a plan; the smaller one is better."""
    return len(plan.returning), plan.loss


def _models(plan: Plan) -> str:
    """Return the GPU models of a plan in words: "A100", "H100 and L4"."""
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
    # Non-preemptible jobs of its tenant hold the guarantee that it needs: nobody may evict those.
    non_preemptible = {} if job.preemptible else asked
    if any(book.beyond_guarantee(job.tenant, m, milli) for m, milli in non_preemptible.items()):
        return None
    borrows = any(book.would_borrow(job.tenant, m, milli) for m, milli in asked.items())
    if kept and book.wants(job.tenant, asked, kept):
        return None
    if state.queues.beyond(job, asked) is not None:
        return None
    claim = Claim(state, record, asked, needs, borrows=borrows, overdue=overdue)
    only, just_started = state.only_backfilled, out.just_started
    possible_at = out.now if only else may_succeed_at(state, claim, candidate, out.now)
    kinds, due = not_yet(state.policy, record, out.now)
    if possible_at < math.inf and not kinds.isdisjoint(state.policy.preemption):
        record.no_plan.preempts_from = due
        _try_again_at(state, record, due, math.inf)
        claim = Claim(state, record, asked, needs, borrows=borrows, overdue=overdue, not_yet=kinds)
        possible_at = may_succeed_at(state, claim, candidate, out.now)
    if possible_at == math.inf or (possible_at > out.now and not overdue):
        _try_again_at(state, record, possible_at, possible_at)
        return None
    stops = bool(jobs_to_stop(state, record))
    victims = Victims(state, claim, out.now, just_started, stops=stops)
    reach, in_vain = (
        victims.within_reach(),
        _InVain(f"{IN_VAIN} {candidate.counts + models}", checked=False),
    )
    if victims.none or any(reach[m] < milli for m, milli in needs.items()):
        state.memo.forget(in_vain.name, record)  # reach that was lost may come back elsewhere
        return None
    # A job that is backfilled now, or ends, adds nothing to what was within reach before.
    tried = _Tried(state.memo.terms, reach)
    last = state.memo.recall(in_vain, record, tried) if only else None
    if last is not None:
        state.memo.note(in_vain, record, last.answer, tried, last.until)
        awaits_min_runtime, protected_until = last.answer
        record.no_plan.awaits_min_runtime |= awaits_min_runtime
        _try_again_at(state, record, last.until, protected_until)
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
            plan = steadier(state, claim, candidate, units, plan, out.now)
        if plan is not None and (best is None or _judged(plan) < _judged(best)):
            best = plan
            if victims.any_elastic and not stops and len(units) <= ELASTIC_UNITS:
                ways += _near(plan, units, whole, ways)
    if victims.any_budget and not stops:
        for whole in (None, frozenset[str]()) if victims.any_elastic else (None,):
            plan = _of_any_pods(state, record, candidate, asked, claim, victims, whole, out)
            if plan is not None and (best is None or _judged(plan) < _judged(best)):
                best = plan
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
    if only:
        why = (ripe is not None, victims.protected_until)
        state.memo.note(in_vain, record, why, tried, until)
    record.no_plan.awaits_min_runtime |= ripe is not None
    _try_again_at(state, record, until, victims.protected_until)
    return None


def _of_any_pods(
    state: SchedulerState,
    record: JobRecord,
    candidate: Candidate,
    asked: dict[str, int],
    claim: Claim,
    victims: Victims,
    whole: frozenset[str] | None,
    out: Outcome,
) -> Plan | None:
    """Return the best plan if victims may lose any of their pods up to their disruption budget.

    The search starts as if there were no budgets. Where a job would lose more pods than allowed, it
    tries again without one of these pods, and with only the cheapest ones; the best plan first.
    """
    found: list[tuple[tuple[int, Loss], int, Plan, AnyOf]] = []
    seen: set[frozenset[tuple[str, frozenset[PodAt]]]] = set()

    def look(any_of: AnyOf) -> None:
        if len(seen) >= BUDGETS_TRIED or frozenset(any_of.items()) in seen:
            return
        seen.add(frozenset(any_of.items()))
        units = victims.units(whole=whole, any_of=any_of)
        if not could_suffice(state, claim.needs, units):
            return
        rank(state, claim, units)
        plan = plan_for(state, record, candidate, asked, units)
        if plan is not None:
            plan = steadier(state, claim, candidate, units, plan, out.now)
        if plan is not None:
            heappush(found, (_judged(plan), len(seen), plan, any_of))

    largest = victims.largest_within_budgets(whole=whole)
    if not could_suffice(state, claim.needs, victims.units(whole=whole, any_of=largest)):
        return None
    out.plans += 1
    look({})
    while found:
        _, _, plan, any_of = heappop(found)
        beyond = victims.beyond_budget(plan.units)
        if beyond is None:
            return plan
        mine, most = beyond
        name = mine[0].record.job.id
        few: list[PodAt] = []
        for unit in mine:
            if len(few) + len(unit.pods) <= most:
                few += unit.pods
        look(any_of | {name: frozenset(few)})
        left = any_of.get(name) or frozenset(mine[0].record.pods)
        unlike = {(unit.cost, *sorted(unit.on.items())): unit for unit in mine}
        for unit in unlike.values():
            look(any_of | {name: left.difference(unit.pods)})
    return None


def _near(
    plan: Plan,
    units: list[EvictionCandidate],
    whole: frozenset[str] | None,
    tried: list[frozenset[str] | None],
) -> list[frozenset[str] | None]:
    """Return combinations of elastic gangs that go whole, each different from the plan's in one
    gang, without those already `tried`."""
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
    """Note that the passing of time alone allows no plan before `until`."""
    why = record.no_plan
    why.protected_until = min(why.protected_until, protected_until)
    if until < math.inf:
        why.again_at = min(why.again_at, until)
        state.wake_at(until)


def _carry_out(state: SchedulerState, record: JobRecord, plan: Plan, out: Outcome) -> None:
    """Evict the victims of the plan, and book its places for the preemptor."""
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
        counts = whole or not victim.job.gang  # else it only gave up pods beyond its minimum
        victim.preempted(record.job.id, out.now, counts=counts)
        if counts:
            state.displaced[victim.job.id] = None
    awaited |= book(state, plan.candidate.job, plan.placements)
    nomination(state, record, plan.placements, awaited, out)


def _by_job(units: list[EvictionCandidate]) -> Iterator[tuple[JobRecord, list[EvictionCandidate]]]:
    """Yield each job with its eviction candidates, by job ID."""
    jobs: dict[str, list[EvictionCandidate]] = {}
    for unit in units:
        jobs.setdefault(unit.record.job.id, []).append(unit)
    for job_id in sorted(jobs):
        yield jobs[job_id][0].record, jobs[job_id]
