"""Elastic gangs that run get more of their pods, after everybody who waits was asked.

They took what was free when they started, or gave pods up to others since. Growing is not waiting:
it takes nothing that a blocked job ahead has closed or reserved, and preempts nobody. What is got
so goes first when somebody else needs it (`victims`).
"""

from functools import partial
from operator import attrgetter

from scheduling.engine.admission.candidates import Candidate, most_by_quota
from scheduling.engine.admission.start import place, started
from scheduling.engine.backfill.beside_holds import is_over
from scheduling.engine.backfill.kept_quota import closes_quota
from scheduling.engine.demand.never import demand_of
from scheduling.engine.demand.shapes import Wish, narrowed
from scheduling.engine.lifecycle.growth_reasons import (
    BACKING_OFF,
    BEHIND,
    BY_QUOTA,
    NO_ROOM,
    backs_off,
    behind,
    by_quota,
    no_room,
    stays,
)
from scheduling.engine.outcome import Outcome
from scheduling.engine.placement import PlacementFailure
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.state import SchedulerState


def grow(state: SchedulerState, out: Outcome) -> bool:
    """Place missing pods of the gangs that run, in the order of their jobs; whether any was."""
    grown = False
    for record in sorted(state.growing.values(), key=attrgetter("key")):
        while _grows(state, record, out):
            grown = True
    return grown


def _grows(state: SchedulerState, record: JobRecord, out: Outcome) -> bool:
    """Place what fits now of a gang's missing pods. What failed is not tried again before the
    cluster or the quota books give more, or the jobs that wait leave more."""
    if record.job.id not in state.growing or record.held:
        return False
    if record.not_before > out.now:
        stays(record, BACKING_OFF, partial(backs_off, record), out)
        return False
    job, missing, models = record.job, record.missing(), _models(record)
    sets = zip(job.pod_sets, models, missing, strict=True)
    wanted = [m for s, m, n in sets if n and (m or s.avoids_gpus)]
    closed = frozenset(m for m in wanted if _is_closed(state, job.tenant, m))
    way, on = state.queue_reservations, frozenset(wanted)
    heads = [way.heads[m] for m in wanted if m in way.heads]
    bound = [head for head in way.all_heads() if head.hold and not is_over(record, head, out.now)]
    heads += [h for h in bound if h.job_id in way.planned and not h.pools.isdisjoint(on)]
    reserved = (head.nodes for head in heads)
    # Who is placed where pods still leave would have to wait for them, and nobody may take its
    # other pods meanwhile.
    avoid = frozenset(record.avoided_nodes).union(state.leaving.nodes(), *reserved)
    kept = way.all_kept.union([head.hold for head in bound if head.hold])
    as_of = (state.cluster.version, state.book.loosened, missing, closed, avoid, kept)
    if record.grew_at == as_of:
        return False
    most = tuple(0 if m in closed else n for m, n in zip(models, missing, strict=True))
    wish = Wish((0,) * len(most), most)
    all_of_it = demand_of(job, models, most, state.pools)
    counts = most_by_quota(state, job, models, wish, all_of_it, kept)
    if not any(most):
        stays(record, BEHIND, partial(behind, state, job.tenant, wanted), out)
    elif counts is None or not any(counts):
        stays(record, BY_QUOTA, partial(by_quota, state, job, all_of_it, kept), out)
    else:
        candidate = Candidate(narrowed(job, models), counts)
        placed = place(state, candidate, avoid)
        if not isinstance(placed, PlacementFailure):
            started(state, record, placed, out)
            return True
        stays(record, NO_ROOM, partial(no_room, state, candidate, placed), out)
    record.grew_at = as_of
    return False


def _models(record: JobRecord) -> tuple[str, ...]:
    """The GPU model that each pod set runs on: a gang stays with what it has."""
    on = {pod_set: model for (pod_set, _), (model, _) in record.pods.items()}
    sets = enumerate(record.job.pod_sets)
    return tuple(on.get(index, "") if s.gpus else "" for index, s in sets)


def _is_closed(state: SchedulerState, tenant: str, model: str) -> bool:
    """Whether a blocked job closes the pool, or the tenant's quota for it; under backfill any head
    does of which no start is known."""
    way = state.queue_reservations
    if model in way.pools:
        return True
    if model in way.heads and not way.heads[model].nodes:
        return True
    return closes_quota(state, way, tenant, model)
