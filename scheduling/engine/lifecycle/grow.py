"""Give running elastic gangs more of their pods, after every waiting job was asked.

They started with what was free, or gave pods up to others since. A gang that grows takes nothing
that a blocked job ahead has closed or reserved, and preempts nobody. When somebody else needs room,
the pods gained in this way go first (`preemption/candidates.py`).
"""

from functools import partial
from operator import attrgetter
from typing import NamedTuple

from scheduling.engine.admission.candidates import Candidate, most_by_quota
from scheduling.engine.admission.start import place, place_on, started
from scheduling.engine.backfill.beside_holds import is_over
from scheduling.engine.backfill.kept_quota import closes_quota
from scheduling.engine.demand.never import demand_of
from scheduling.engine.demand.shapes import Wish, narrowed
from scheduling.engine.lifecycle.growth_reasons import (
    BACKING_OFF,
    BEHIND,
    BY_QUOTA,
    backs_off,
    behind,
    by_quota,
    no_room,
    stays,
)
from scheduling.engine.memo import GREW, Finding, Question
from scheduling.engine.outcome import Outcome
from scheduling.engine.placement import PlacementFailure
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.quota.borrowing import Kept
from scheduling.engine.state import SchedulerState
from scheduling.engine.statement import Statement
from scheduling.engine.types import JobRequest
from scheduling.engine.verdict import NO_ROOM


class _GrewAsOf(NamedTuple):
    """What the finding that a gang gets no more pods depends on."""

    room: tuple[int, int]
    missing: tuple[int, ...]
    closed: frozenset[str]
    avoid: frozenset[str]
    kept: Kept


class _Grew(Question):
    """Whether a running gang gets none of the pods that it lacks."""

    def check(
        self, state: SchedulerState, subject: JobRecord, _known: Finding, depends_on: _GrewAsOf
    ) -> bool:
        found = _more(state, subject, depends_on)
        if found is None:
            return False
        statement = Statement(state.cluster)
        placed = place_on(statement, state, found, depends_on.avoid)
        statement.rollback()
        return not isinstance(placed, PlacementFailure)


_GREW = _Grew(GREW, plain=True)


def grow(state: SchedulerState, out: Outcome) -> bool:
    """Place missing pods of running gangs, in the order of their jobs; return whether any was."""
    grown = False
    for record in sorted(state.growing.values(), key=attrgetter("key")):
        while _grows(state, record, out):
            grown = True
    return grown


def _grows(state: SchedulerState, record: JobRecord, out: Outcome) -> bool:
    """Place what fits now of a gang's missing pods; return whether any pod was placed.

    What failed is not tried again before the cluster or the quota book offers more, or the waiting
    jobs leave more.
    """
    held = record.held or state.queues.why_held(record.job) is not None
    if held or record.job.id not in state.growing:
        return False
    if record.not_before > out.now:
        stays(record, BACKING_OFF, partial(backs_off, record), out)
        return False
    job, missing, models = record.job, record.missing(), _models(record)
    sets = zip(job.pod_sets, models, missing, strict=True)
    wanted = [m for s, m, n in sets if n and (m or s.avoids_gpus)]
    closed = frozenset(m for m in wanted if _is_closed(state, job, m))
    way, on = state.queue_reservations, frozenset(wanted)
    heads = [way.heads[m] for m in wanted if m in way.heads]
    bound = [head for head in way.all_heads() if head.hold and not is_over(record, head, out.now)]
    heads += [h for h in bound if h.job_id in way.planned and not h.pools.isdisjoint(on)]
    reserved = (head.nodes for head in heads)
    # A pod placed where others still leave would have to wait for them, and meanwhile nobody could
    # preempt the other pods of its job.
    avoid = frozenset(record.avoided_nodes).union(state.leaving.nodes(), *reserved)
    kept = way.all_kept.union([head.hold for head in bound if head.hold])
    as_of = _GrewAsOf(state.memo.room, missing, closed, avoid, kept)
    if state.memo.recall(_GREW, record, as_of) is not None:
        return False
    most = _open(models, as_of)
    candidate = _more(state, record, as_of)
    if not any(most):
        stays(record, BEHIND, partial(behind, state, job, wanted), out)
    elif candidate is None:
        all_of_it = demand_of(job, models, most, state.pools)
        stays(record, BY_QUOTA, partial(by_quota, state, job, all_of_it, kept), out)
    else:
        placed = place(state, candidate, avoid)
        if not isinstance(placed, PlacementFailure):
            started(state, record, placed, out)
            return True
        stays(record, NO_ROOM, partial(no_room, state, candidate, placed), out)
    state.memo.note(_GREW, record, False, as_of)
    return False


def _open(models: tuple[str, ...], as_of: _GrewAsOf) -> tuple[int, ...]:
    """Return the missing pods of each pod set, without those whose pool a job ahead has closed."""
    return tuple(0 if m in as_of.closed else n for m, n in zip(models, as_of.missing, strict=True))


def _more(state: SchedulerState, record: JobRecord, as_of: _GrewAsOf) -> Candidate | None:
    """Return the most pods that quota lets the gang have in addition; None: no pod."""
    job, models = record.job, _models(record)
    most = _open(models, as_of)
    wish = Wish((0,) * len(most), most)
    all_of_it = demand_of(job, models, most, state.pools)
    counts = most_by_quota(state, job, models, wish, all_of_it, as_of.kept)
    if counts is None or not any(counts):
        return None
    return Candidate(narrowed(job, models), counts)


def _models(record: JobRecord) -> tuple[str, ...]:
    """Return the GPU model of each pod set: a gang stays on the models that it has."""
    on = {pod_set: model for (pod_set, _), (model, _) in record.pods.items()}
    sets = enumerate(record.job.pod_sets)
    return tuple(on.get(index, "") if s.gpus else "" for index, s in sets)


def _is_closed(state: SchedulerState, job: JobRequest, model: str) -> bool:
    """Return whether a blocked job closes the pool, or the tenant's quota for it, to this job.

    Under backfill, a head without a known start closes its pool as well.
    """
    way = state.queue_reservations
    if model in way.pools or (job.tenant, job.queue, model) in way.queues:
        return True
    if model in way.heads and not way.heads[model].nodes:
        return True
    return closes_quota(state, way, job.tenant, model)
