"""Rehearse a submission: what would happen to a job if it were submitted now.

This runs on a copy of the state, so nothing is decided. The copy runs the same cycle as the
scheduler. Alternative requests that would start are tried on the same copy, one after the other,
each withdrawn before the next.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from scheduling.engine.admission.candidates import candidates
from scheduling.engine.backfill.planned_start import expected_start
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import CycleResult, Reservation, Started
from scheduling.engine.deltas import Delta, JobEnded, JobSubmitted
from scheduling.engine.demand.never import demand_of, needs_of
from scheduling.engine.demand.pools import Pools
from scheduling.engine.lifecycle import apply_deltas
from scheduling.engine.native import copied_by_fields
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.types import DEFAULT_LEVELS, JobRequest
from scheduling.engine.verdict import NO_ROOM, Verdict

# How many other GPU models to try (most free GPUs first), and how many to report.
MAX_TRIED, MAX_TOLD = 8, 3
# For how many choices of GPU models to work out when running jobs leave room.
MAX_FORECAST = 4


@dataclass(frozen=True, slots=True)
class QuotaOutlook:
    """What quota allows for all pods of a job that may run on a GPU model, in GPU-milli.

    `tenant`: the owner of the quota, which is the job's tenant or its nearest ancestor with quota.
    `most`: what the job's tenant could ever hold, borrowing included. `left`: how much of `asked`
    is available now. `borrows`: how much more would be borrowed than now if the job got it all.
    """

    tenant: str
    gpu_model: str
    guaranteed: int
    used: int
    most: int
    asked: int
    left: int
    borrows: int


@dataclass(frozen=True, slots=True)
class Places:
    """How many pods would get places, on how many nodes, and in how many known leaf groups."""

    pods: int
    nodes: int
    leaves: int


@dataclass(frozen=True, slots=True)
class Instead:
    """An alternative request that would start now without preempting anything.

    `gpu_model`: another GPU model; "" = as requested. `pods`: fewer pods (for an elastic gang, a
    smaller minimum); 0 = as requested.
    """

    places: Places
    gpu_model: str = ""
    pods: int = 0


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What the next cycle would do with a job.

    `places`: what would start; None = nothing. `verdict`: why the job, or the rest of it, would
    not start. `preempted`: jobs that would be preempted for it first. `reservation`: when and where
    it is expected to start. `room_at`: when running jobs will have left room for it, by their
    declared run times, if it waits for room and has no reservation; other jobs may take that room.
    `stands_at`: as in `StandsAt`.
    """

    places: Places | None
    verdict: Verdict | None
    preempted: tuple[str, ...]
    reservation: Reservation | None
    room_at: float | None
    quota: tuple[QuotaOutlook, ...]
    instead: tuple[Instead, ...]
    stands_at: float | None = None


@dataclass(frozen=True, slots=True)
class Rise:
    """How many of a series of growing requests would start now, each tried in place of the last.

    `places`: where the last one that starts would go; None = none starts. `verdict`: why the next
    one does not start; None = all start.
    """

    started: int
    places: Places | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class TriedStart:
    """What the next cycle would do with one more job that preempts nothing.

    `places`: where it would start. `verdict`: why it would not. `start_at`: when it is expected to
    start (seconds since the epoch), if it has a reservation or no other job waits.
    """

    places: Places | None
    verdict: Verdict | None
    start_at: float | None


copied_by_fields(QuotaOutlook, Places, Instead, Rehearsal, Rise, TriedStart)


def submitted(
    state: SchedulerState, asked: JobSubmitted, now: float, told: Iterable[Delta] = ()
) -> Rehearsal:
    """Submit a job to the state and run the next cycle at `now` (seconds since the epoch).

    The state must not be used afterwards. It must not know the job yet. `told`: further deltas
    about the job.
    """
    job = asked.job
    quota = tuple(quota_terms(job, state.pools, state.book))
    return _decided(state, job, run_cycle(state, [asked, *told], now), quota, now)


def review(
    state: SchedulerState, job_id: str, now: float, told_anew: Iterable[Delta] = ()
) -> Rehearsal | None:
    """Like `submitted`, for a job that already waits in the state; None if it no longer waits.

    The state must not be used afterwards. `told_anew`: the deltas that submit the job again, if the
    state has already decided about it.
    """
    record = state.jobs.get(job_id)
    if record is None or record.started_at is not None:
        return None
    job = record.job
    quota = tuple(quota_terms(job, state.pools, state.book))
    return _decided(state, job, run_cycle(state, told_anew, now), quota, now)


def _decided(
    twin: SchedulerState,
    job: JobRequest,
    result: CycleResult,
    quota: tuple[QuotaOutlook, ...],
    now: float,
) -> Rehearsal:
    record = twin.jobs[job.id]
    places = _places(twin, job, result)
    preempted = tuple(dict.fromkeys(p.job_id for p in result.preempted if p.by == job.id))
    reserved = [r for r in result.reservations if r.job_id == job.id and r.start_at is not None]
    waits = places is None and not preempted and record.eq_class is not None
    return Rehearsal(
        places,
        record.verdict,
        preempted,
        reserved[0] if reserved else None,
        _room_at(twin, record, now) if waits and not reserved else None,
        quota,
        tuple(_instead(twin, job, now)) if waits else (),
        record.stands_at,
    )


def rise(state: SchedulerState, requests: Iterable[JobRequest], now: float) -> Rise:
    """Submit growing requests with the same id until one would not start without preempting.

    The state also decides about the jobs that wait in it. Afterwards it may only be used for
    further calls.
    """
    places: Places | None = None
    verdict: Verdict | None = None
    run_cycle(state, [], now)  # jobs that already wait go first
    started, before = 0, list[Delta]()
    for request in requests:
        tried = replace(request, preempts=False)  # withdrawing it then restores the state
        found = _places(state, tried, run_cycle(state, [*before, JobSubmitted(tried)], now))
        before = [JobEnded(tried.id)]
        if found is None or found.pods < tried.pods:
            verdict = state.jobs[tried.id].verdict
            break
        started, places = started + 1, found
    run_cycle(state, before, now)
    return Rise(started, places, verdict)


def try_start(state: SchedulerState, asked: JobSubmitted, now: float) -> TriedStart:
    """Submit a job to a state that has decided about all other jobs, and leave it there.

    The state must not know the job yet; `JobEnded` removes it again.
    """
    job = replace(asked.job, preempts=False)  # removing it then restores the state
    result = run_cycle(state, [JobSubmitted(job, asked.not_before, asked.held)], now)
    places, record = _places(state, job, result), state.jobs[job.id]
    start_at = reserved_start(result, job.id)
    if places is None and start_at is None and record.eq_class is not None:
        others = (r for r in state.jobs.values() if r.eq_class is not None and r is not record)
        if next(others, None) is None:
            start_at = _room_at(state, record, now)
    return TriedStart(places, record.verdict, start_at)


def reserved_start(result: CycleResult, job_id: str) -> float | None:
    """Return when a job with a reservation is expected to start; None = it has none."""
    starts = [r.start_at for r in result.reservations if r.job_id == job_id]
    return starts[0] if starts else None


def reserved_at(state: SchedulerState, job_id: str) -> float | None:
    """Return the same from a state that has already reported the reservation."""
    record = state.jobs.get(job_id)
    expected = record.expected if record is not None and job_id in state.reserving else None
    return expected.at if expected is not None else None


def standing(
    facts: Iterable[Delta], now: float, levels: tuple[str, ...] = DEFAULT_LEVELS
) -> SchedulerState:
    """Return a state that knows these facts and has decided nothing yet."""
    state = SchedulerState(levels=levels, told_of_runs=True)
    state.cluster.now = now
    out = Outcome(now, state.refresh_s)
    for delta in facts:
        apply_deltas.apply(state, delta, out)
    return state


def quota_terms(job: JobRequest, pools: Pools, book: QuotaBook) -> Iterator[QuotaOutlook]:
    """Yield what quota allows the job on each GPU model, in the job's order of preference."""
    known = pools.models()
    accepted = [s.gpu_models or known if s.gpus else () for s in job.pod_sets]
    for model in dict.fromkeys(model for models in accepted for model in models):
        counts = tuple(
            s.count if model in models else 0
            for s, models in zip(job.pod_sets, accepted, strict=True)
        )
        asked = demand_of(job, (model,) * len(counts), counts, pools).get(model, 0)
        refusal = book.refusal(job.tenant, model, asked, non_preemptible=not job.preemptible)
        accounts = (book.account(tenant, model) for tenant in book.lineage(job.tenant))
        account = next((a for a in accounts if a is not None), None)
        yield QuotaOutlook(
            account.tenant if account else job.tenant,
            model,
            account.guaranteed if account else 0,
            account.used if account else 0,
            book.ceiling(job.tenant, model, non_preemptible=not job.preemptible),
            asked,
            asked if refusal is None else refusal.allowed,
            book.would_owe(job.tenant, model, asked),
        )


def copied(state: SchedulerState) -> SchedulerState:
    """Return an independent copy of the state that decides the same.

    Immutable parts are shared. Forecasts follow their own cluster, so the copy builds new ones.
    """
    cluster = state.cluster.copy()
    cluster.times = cluster.times.copy()
    memo: dict[int, Any] = {
        id(state.cluster): cluster,
        id(state.forecasts): {},
        id(state.memo): (remembers := state.memo.twin()),
        id(state.policy): state.policy,
        id(state.pools): state.pools.copy(),
        id(state.cleared): state.cleared.twin(cluster),
        id(state.mended): state.mended.twin(cluster),
    }
    twins = [(record, record.twin(memo)) for record in state.jobs.values()]
    memo.update((id(record), twin) for record, twin in twins)
    copied = deepcopy(state, memo)
    remembers.follow(copied, cluster, copied.book, copied.pools)
    for record, twin in twins:
        if record.eq_class is not None:
            twin.wait_in(memo[id(record.eq_class)])
    return copied


def to_run_ahead(state: SchedulerState) -> SchedulerState:
    """Return an independent copy of the state to run ahead without a cluster.

    Its pods run as soon as they have places. Numbers in its reasons are not refreshed, because
    nobody reads them.
    """
    twin = copied(state)
    twin.refresh_s, twin.told_of_runs = math.inf, False
    for record in twin.running.values():  # their protection depends on `told_of_runs`
        twin.preemptible_jobs.touch(record)
    return twin


def _places(state: SchedulerState, job: JobRequest, result: CycleResult) -> Places | None:
    started: list[Started] = [start for start in result.started if start.job_id == job.id]
    names = {p.node for start in started for p in start.placements}
    if not names:
        return None
    nodes = [node for name in names if (node := state.cluster.node(name)) is not None]
    leaves = {node.topology[0] for node in nodes if node.topology}
    pods = sum(len(start.placements) for start in started)
    return Places(pods, len(names), len(leaves - {""}))


def _room_at(state: SchedulerState, record: JobRecord, now: float) -> float | None:
    """Return when running jobs will have left room for the job, by their declared run times.

    None if the job does not wait for room, or if that time is unknown.
    """
    if record.verdict is None or record.verdict.reason not in NO_ROOM:
        return None
    ways = islice(candidates(state, record, frozenset()), MAX_FORECAST)
    starts = [expected_start(state, way, now) for way in ways]
    return min((start.at for start in starts if start is not None), default=None)


def _instead(state: SchedulerState, job: JobRequest, now: float) -> Iterator[Instead]:
    """Yield alternative requests that would start now, those closest to the original first."""

    def places(other: JobRequest) -> Places | None:
        # It preempts nothing, so withdrawing it restores the state.
        tried = JobSubmitted(replace(other, preempts=False))
        return _places(state, other, run_cycle(state, [JobEnded(job.id), tried], now))

    # A cycle asks all waiting jobs, so run none for requests without room. A tried request holds
    # its room until the next one is tried, so compute this list first.
    others = [(model, _on_model(job, model)) for model in _other_models(state, job)]
    with_room = [(model, other) for model, other in others if _has_room(state, other)]
    slices = bisect_left(
        range(1, _slices_of(job)), x=True, key=lambda n: not _has_room(state, _of_slices(job, n))
    )
    told = 0
    for model, other in with_room:
        found = places(other)
        if found is not None:
            yield Instead(found, gpu_model=model)
            told += 1
        if told == MAX_TOLD:
            break
    if fewer := _fewer_pods(job, slices, places):
        yield fewer


def _has_room(state: SchedulerState, job: JobRequest) -> bool:
    """Whether free GPUs and remaining quota could suffice for what must start together.

    This ignores where the GPUs are. Most requests fail here already, which saves a cycle.
    """
    pods = [(i, s.least if job.gang else 1) for i, s in enumerate(job.pod_sets)]
    allowed = (_may_hold(state, job, i, count) for i, count in pods)
    return all(allowed) if job.gang else any(allowed)


def _may_hold(state: SchedulerState, job: JobRequest, pod_set: int, count: int) -> bool:
    """Whether `count` pods of the set could get GPUs of one model; True if it needs no GPUs."""
    asked = job.pod_sets[pod_set]
    if not (asked.gpus and count):
        return True
    counts = tuple(count if i == pod_set else 0 for i in range(len(job.pod_sets)))
    for model in asked.gpu_models or state.pools.models():
        models = (model,) * len(counts)
        free = needs_of(job, models, counts, state.pools)[model] <= state.cluster.free_milli(model)
        quota = demand_of(job, models, counts, state.pools)
        if free and not state.book.refusal_of(
            job.tenant, quota, non_preemptible=not job.preemptible
        ):
            return True
    return False


def _other_models(state: SchedulerState, job: JobRequest) -> list[str]:
    """GPU models that the job does not accept but its tenant has quota for, most free first."""
    accepted = [s.gpu_models for s in job.pod_sets if s.gpus]
    if not accepted or () in accepted:
        return []
    wanted = {model for models in accepted for model in models}
    others = [
        model
        for model in state.pools.models()
        if model not in wanted
        and state.book.ceiling(job.tenant, model, non_preemptible=not job.preemptible)
    ]
    return sorted(others, key=lambda m: (-state.cluster.free_milli(m), m))[:MAX_TRIED]


def _on_model(job: JobRequest, model: str) -> JobRequest:
    sets = (replace(s, gpu_models=(model,)) if s.gpus else s for s in job.pod_sets)
    return replace(job, pod_sets=tuple(sets))


def _slices_of(job: JobRequest) -> int:
    """How many slices a gang of one pod set needs to start; 0 for other jobs."""
    if not job.gang or len(job.pod_sets) > 1:
        return 0
    asked = job.pod_sets[0]
    return asked.least // (asked.slice_size or 1)


def _of_slices(job: JobRequest, slices: int) -> JobRequest:
    """Return the gang changed so that it needs only `slices` slices."""
    asked = job.pod_sets[0]
    pods = slices * (asked.slice_size or 1)
    fewer = replace(asked, min_count=pods) if job.elastic else replace(asked, count=pods)
    return replace(job, pod_sets=(fewer,))


def _fewer_pods(
    job: JobRequest, most: int, places: Callable[[JobRequest], Places | None]
) -> Instead | None:
    """Find the most pods, in at most `most` slices, with which a one-pod-set gang would start."""
    found: Instead | None = None
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        fewer = _of_slices(job, middle)
        fits = places(fewer)
        if fits is None:
            high = middle
        else:
            low, found = middle, Instead(fits, pods=fewer.pod_sets[0].least)
    return found
