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
    """Return what the blocked jobs ahead leave to this class.

    With `again`, the terms are for the job of the class that is in the way of the fewest heads with
    a known start.
    """
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
        # A class that quota refuses need not know what else is kept from it.
        way, of_heads = walk.way, terms
        terms = beside_holds(state, way, eq_class, of_heads, models, ahead, now, again=again)
    state.note_terms(terms.until)
    if terms.later and (eq_class.refusal is not None or over_job_limit(state, first) is not None):
        # It starts nowhere, whoever goes first. For what it waits for, it is the first in the
        # order.
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
    """Return what the jobs that are blocked in pools or that close quota leave to the class."""
    way = walk.way
    window = ahead.starts_at - walk.out.now
    short = None if eq_class.shortest > window else _ends_within(walk, eq_class, window)
    # Where there is no head, the first job of the class may start before the jobs that end in time.
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
    """Return the heads of these pools, and the heads that will need something of them later."""
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
    # If a pool had no head, a class put off might find that a job behind it has become that head.
    later = reserved and all(model in way.heads for model in models)
    found = Ahead(tuple(heads), starts_at, avoid, later, turns, holds)
    way.ahead_of[models] = found
    return found


def _yields(walk: Walk, record: JobRecord) -> bool:
    """Return whether every job that closes anything could preempt this job once it has started."""
    state, job, closers = walk.state, record.job, walk.way.closers
    return (
        PreemptionKind.BACKFILL in state.policy.preemption
        and job.preemptible
        and record.disruptions is None
        and not state.at_preemption_limit(record)
        and state.min_runtime_of(job) <= state.policy.min_runtime_s
        and not any(closers.values())
        and not any(job.id in state.jobs[ahead].preempted_by for ahead in closers)
        # By shares an older job may be behind, and an older job was never backfilled past a
        # younger.
        and not (state.by_shares and any(state.jobs[ahead].key > record.key for ahead in closers))
    )


def _is_closed(
    walk: Walk, eq_class: EquivalenceClass, model: str, short: bool, yields: bool
) -> bool:
    tenant = eq_class.tenant
    if model in walk.way.pools or (tenant, eq_class.queue, model) in walk.way.queues:
        return True
    head = walk.way.heads.get(model)
    if yields and model != NO_GPUS:  # without GPUs nobody takes anything back
        return False
    if head is not None and head.closes and not short:
        return True
    return closes_quota(walk.state, walk.way, tenant, model)


def _ends_within(walk: Walk, eq_class: EquivalenceClass, window: float) -> JobRecord | None:
    """Return the first job of the class that, as planned, ends before the heads can start."""
    for key in eq_class.jobs:
        record = walk.state.jobs[key.job_id]
        if record.planned_s is not None and record.planned_s <= window:
            return record
    return None
