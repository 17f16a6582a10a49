"""What the blocked jobs ahead leave to a class: pools, nodes, and quota to borrow."""

import math

from scheduling.engine.admission.candidates import assess, pools_wanted, quota_stands
from scheduling.engine.admission.limits import over_job_limit
from scheduling.engine.backfill.beside_holds import beside_holds
from scheduling.engine.backfill.kept_quota import closes_quota, kept_from
from scheduling.engine.backfill.walk import ANYBODY, Walk
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.reservations import Ahead, Terms
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.types import NO_GPUS, PreemptionKind


def terms_of(walk: Walk, eq_class: EquivalenceClass, *, again: bool = False) -> Terms:
    """What the blocked jobs ahead leave to this class; `again`: to the job of it that is in the
    way of the fewest of those whose start is known."""
    first = walk.state.jobs[eq_class.head]
    way = walk.way
    if not (walk.way.pools or walk.way.accounts or walk.way.heads or way.planned or way.queues):
        return Terms(first)
    models = pools_wanted(walk.state, first)
    ahead = way.ahead_of.get(models) or ahead_in(walk, models)
    terms = _left_by_heads(walk, eq_class, first, models, ahead, again)
    state, now = walk.state, walk.out.now
    if eq_class.refusal is not None and not quota_stands(state, eq_class):
        assess(state, eq_class)
    if ahead.holds and eq_class.refusal is None:
        # Whom quota refuses need not be told what else is kept from it.
        way, of_heads = walk.way, terms
        terms = beside_holds(state, way, eq_class, of_heads, models, ahead, now, again=again)
    state.note_terms(terms.until)
    if terms.later and (eq_class.refusal is not None or over_job_limit(state, first) is not None):
        # It starts nowhere, whoever goes first; of what it waits for it is the first in order.
        return terms._replace(later=False)
    return terms


def _left_by_heads(
    walk: Walk,
    eq_class: EquivalenceClass,
    first: JobRecord,
    models: frozenset[str],
    ahead: Ahead,
    again: bool,
) -> Terms:
    """What is left by those that are blocked in pools, and those that close quota."""
    way = walk.way
    window = ahead.starts_at - walk.out.now
    short = None if eq_class.shortest > window else _ends_within(walk, eq_class, window)
    # Where nobody leads, the first of the class may start before those that are over in time.
    elsewhere = not again and not way.heads.keys() >= models
    waits = elsewhere and short is not None and short is not first
    short = None if waits else short
    passes = short is not None, bool(way.closers) and _yields(walk, first)
    queue = eq_class.queue if way.queues else ANYBODY
    of = (eq_class.tenant, queue, models, *passes)
    closed = way.closed_to.get(of)
    if closed is None:
        closed = frozenset(m for m in models if _is_closed(walk, eq_class, m, *passes))
        way.closed_to[of] = closed
    kept = frozenset() if passes[1] or closed >= models else way.all_kept
    if kept:
        closed |= kept_from(walk.state, way, first, models, kept)
    barred = closed.union([m for m in models if m in way.heads and way.heads[m].expected])
    if short is not None or not ahead.heads:
        until = math.inf
        if short is not None and short.planned_s is not None:
            until = ahead.starts_at - short.planned_s
        return Terms(
            short or first,
            closed,
            kept=kept,
            behind=short is not None,
            until=until,
            wanted=models,
            barred=barred,
        )
    return Terms(
        first,
        closed,
        ahead.nodes,
        kept,
        ahead.later,
        turns=ahead.turns,
        unsure=waits,
        shorter=waits,
        wanted=models,
        barred=barred,
    )


def ahead_in(walk: Walk, models: frozenset[str]) -> Ahead:
    """The heads of these pools together, and who else will need something that they offer."""
    way = walk.way
    heads = [walk.way.heads[m] for m in sorted(models) if m in walk.way.heads]
    starts = [head.expected.at if head.expected else -math.inf for head in heads]
    reserved = any(head.expected is not None for head in heads)
    starts_at = min(starts, default=-math.inf)
    avoid = frozenset[str]().union(*[head.nodes for head in heads])
    holds = tuple(
        head
        for head in way.all_heads()
        if head.hold is not None and (head.hold.limited or not models.isdisjoint(head.pools))
    )
    turns = bool(avoid) and not reserved
    # Who is asked late would find that somebody behind it leads a pool that had no head.
    later = reserved and all(model in way.heads for model in models)
    found = Ahead(tuple(heads), starts_at, avoid, later, turns, holds)
    way.ahead_of[models] = found
    return found


def _yields(walk: Walk, record: JobRecord) -> bool:
    """Whether the job, once started, could be preempted for each job that closes anything."""
    state, job, closers = walk.state, record.job, walk.way.closers
    return (
        PreemptionKind.BACKFILL in state.policy.preemption
        and job.preemptible
        and record.disruptions is None
        and not state.at_preemption_limit(record)
        and state.min_runtime_of(job) <= state.policy.min_runtime_s
        and not any(closers.values())
        and not any(job.id in state.jobs[ahead].preempted_by for ahead in closers)
        # Where it is fair, an older job may be behind; it was never backfilled past a younger.
        and not (state.by_shares and any(state.jobs[ahead].key > record.key for ahead in closers))
    )


def _is_closed(
    walk: Walk, eq_class: EquivalenceClass, model: str, short: bool, yields: bool
) -> bool:
    tenant = eq_class.tenant
    if model in walk.way.pools or (tenant, eq_class.queue, model) in walk.way.queues:
        return True
    head = walk.way.heads.get(model)
    if yields and model != NO_GPUS:  # where nobody takes anything back
        return False
    if head is not None and head.closes and not short:
        return True
    return closes_quota(walk.state, walk.way, tenant, model)


def _ends_within(walk: Walk, eq_class: EquivalenceClass, window: float) -> JobRecord | None:
    """The first job of the class that, as planned, is over when the heads can start."""
    for key in eq_class.jobs:
        record = walk.state.jobs[key.job_id]
        if record.planned_s is not None and record.planned_s <= window:
            return record
    return None
