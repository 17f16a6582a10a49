"""Dynamic admission and placement of the first job of a lane (paper 3.2.1, 3.3.2)."""

from scheduling.engine.decisions import Started
from scheduling.engine.placement import PlacementFailure, explain, place_job
from scheduling.engine.queueing.admission import Candidate, candidates, fits_by_count
from scheduling.engine.queueing.report import REFRESH_S
from scheduling.engine.queueing.state import Outcome, SchedulerState
from scheduling.engine.queueing.waiting import JobRecord, Lane
from scheduling.engine.statement import Statement
from scheduling.engine.types import MILLI, JobRequest, PodPlacement
from scheduling.engine.verdict import Reason, Verdict, gpus


def try_to_start(
    state: SchedulerState, lane: Lane, closed: frozenset[str], out: Outcome
) -> JobRecord | None:
    """Start the lane's first job, or more of it, now; None when nothing of it can start.

    What failed is not tried again before the cluster or the quota books give more. `closed`:
    pools that belong to a job ahead.
    """
    if lane.never is not None:
        return None
    now_at = (state.cluster.version, state.book.loosened)
    if lane.failed_at == now_at and lane.failed_with <= closed:
        return None
    record = state.jobs[lane.head]
    out.considered += 1
    first: tuple[Candidate, PlacementFailure | None] | None = None
    for candidate in candidates(state, record, closed):
        failure: PlacementFailure | None = None
        if fits_by_count(state, candidate):
            placed = place(state, candidate, frozenset(record.blamed))
            if not isinstance(placed, PlacementFailure):
                started(state, record, placed, out)
                return record
            failure = placed
        if first is None or (first[1] is None and failure is not None):
            first = candidate, failure
    lane.failed_at, lane.failed_with = now_at, closed
    _explain(state, lane, first, out.now)
    return None


def place(
    state: SchedulerState, candidate: Candidate, avoid: frozenset[str]
) -> tuple[PodPlacement, ...] | PlacementFailure:
    """Places for a candidate, booked in the cluster; on failure the cluster is unchanged."""
    statement = Statement(state.cluster)
    job = candidate.job
    placed = place_job(
        statement,
        job,
        strategy=state.strategy_of(job),
        counts=candidate.counts,
        avoid=avoid,
    )
    if isinstance(placed, PlacementFailure):
        return placed
    ended = state.jobs[job.id].ended
    if ended:
        statement.rollback()
        placed = _renumbered(state, job, placed, ended)
        for p in placed:
            statement.allocate(job, p)
    statement.commit()
    return placed


def _renumbered(
    state: SchedulerState,
    job: JobRequest,
    placed: tuple[PodPlacement, ...],
    ended: set[tuple[int, int]],
) -> tuple[PodPlacement, ...]:
    """The same places for the pods that are missing: placement does not know which have ended."""
    held = state.cluster.held_by(job.id)
    free = [
        iter([o for o in range(s.count) if (i, o) not in ended and (i, o) not in held])
        for i, s in enumerate(job.pod_sets)
    ]
    return tuple(p._replace(ordinal=next(free[p.pod_set])) for p in placed)


def started(
    state: SchedulerState, record: JobRecord, placed: tuple[PodPlacement, ...], out: Outcome
) -> None:
    """Book what was placed and report it; a job that still misses pods goes on waiting."""
    borrowed = state.hold(record, placed, out.now)
    complete = record.job.gang or not any(record.missing())
    out.waiting.pop(record.job.id, None)
    record.verdict = None
    record.reserved = False
    out.started.append(Started(record.job.id, placed, tuple(sorted(borrowed.items())), complete))
    state.enqueue(record, out.now)


def _explain(
    state: SchedulerState,
    lane: Lane,
    tried: tuple[Candidate, PlacementFailure | None] | None,
    now: float,
) -> None:
    """Keep the reason of a failed attempt in the lane; the costly part at most once in a while."""
    if tried is None:
        lane.failure = None  # quota said no to every choice, or all pools are closed
        return
    candidate, failure = tried
    if failure is None:
        lane.failure = _too_few_free(state, candidate)
        return
    known = lane.failure
    if (
        known is None
        or known.reason is Reason.INSUFFICIENT_GPUS
        or now >= lane.explained_at + REFRESH_S
    ):
        lane.failure = explain(state.cluster, candidate.job, failure)
        lane.explained_at = now


def _too_few_free(state: SchedulerState, candidate: Candidate) -> Verdict:
    job = candidate.job
    model = next(
        s.gpu_models[0] for s, n in zip(job.pod_sets, candidate.counts, strict=True) if s.gpus and n
    )
    free = state.cluster.free_milli(model)
    return Verdict(
        Reason.INSUFFICIENT_GPUS,
        f"The job asks for {job.gpu_milli / MILLI:g} GPUs at once; {gpus(free, model)} free."
        if job.gang
        else f"No {model} GPU is free.",
        {"gpu_model": model, "asked": job.gpu_milli / MILLI, "free": free / MILLI},
        ("wait until jobs end", "ask for fewer GPUs or another GPU model"),
    )
