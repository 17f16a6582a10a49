"""When and where a blocked head will start, from declared run times (paper 3.2.2, backfill).

Placement-true: running jobs are ended one after the other on a what-if copy of the cluster until
the head is really placed there, on whole nodes and in its groups, not by a count of GPUs.
"""

from scheduling.engine.cluster import ClusterState
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.queueing.admission import Candidate
from scheduling.engine.queueing.state import SchedulerState
from scheduling.engine.queueing.waiting import Expected
from scheduling.engine.statement import Statement


def expected_start(state: SchedulerState, candidate: Candidate, now: float) -> Expected | None:
    """The earliest start that declared run times promise; None when they promise none."""
    models = {m for s in candidate.job.pod_sets for m in s.gpu_models}
    ends = sorted(
        (max(now, record.started_at + record.job.declared_s), job_id)
        for job_id, record in state.jobs.items()
        if record.started_at is not None
        and record.job.declared_s is not None
        and any(model in models for model, _ in record.pods.values())
    )
    low, high = 0, len(ends)
    if not high:
        return None
    found = _place_after(state, candidate, ends, high)
    if found is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        nodes = _place_after(state, candidate, ends, middle)
        if nodes is None:
            low = middle
        else:
            high, found = middle, nodes
    return Expected(ends[high - 1][0], found)


def _place_after(
    state: SchedulerState, candidate: Candidate, ends: list[tuple[float, str]], count: int
) -> frozenset[str] | None:
    """Nodes of the candidate once the first `count` jobs have ended; None when it does not fit."""
    what_if: ClusterState = state.cluster.copy()
    for _, job_id in ends[:count]:
        what_if.release_job(job_id)
    placed = place_job(
        Statement(what_if),
        candidate.job,
        strategy=state.strategy_of(candidate.job),
        counts=candidate.counts,
    )
    if isinstance(placed, PlacementFailure):
        return None
    return frozenset(p.node for p in placed)
