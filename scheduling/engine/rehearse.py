"""What would become of a job if it were submitted now. Asked on a copy; nothing is decided.

The copy runs the very cycle that the scheduler would run. Other requests that would start are
looked for on the same copy, one after the other, each withdrawn before the next.
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

# Other GPU models that are tried, those with the most free GPUs first, and that are told.
MAX_TRIED, MAX_TOLD = 8, 3
# Choices of GPU models for which is worked out when running jobs leave room.
MAX_FORECAST = 4


@dataclass(frozen=True, slots=True)
class QuotaOutlook:
    """What quota says to all pods of a job that may run on a GPU model, in milli-GPU.

    `tenant` has the quota: the job's own, or the nearest above it that has one. `most` is what it
    could ever hold, borrowing included. Of `asked`, `left` may be had now; all of it would borrow
    `borrows` more than is borrowed now.
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
    """Pods that would get places, on so many nodes, and leaf groups as far as these are known."""

    pods: int
    nodes: int
    leaves: int


@dataclass(frozen=True, slots=True)
class Instead:
    """Another request that would start now, and preempt nobody: on `gpu_model`, "" = as asked; of
    `pods` pods (of an elastic gang: at least), 0 = as asked."""

    places: Places
    gpu_model: str = ""
    pods: int = 0


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What the next cycle would do with a job.

    `places`: what would start, None = nothing; `verdict`: why not, or why not the rest of it.
    `preempted`: jobs that would make room for it first. `reservation`: when and where it is
    expected to start. `room_at`: when what running jobs declare leaves room for it, where it waits
    for that and has no reservation; others may take it. `stands_at`: since when it stands in the
    queue, as in `StandsAt`.
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
    """How many of rising requests would start now, one instead of the other: `places` of the last
    that would, and why the next would not; None = none would, or all."""

    started: int
    places: Places | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class TriedStart:
    """What the next cycle would do with one more job that preempts nobody: where it would start, or
    why it would not and when it is expected to, seconds since the epoch, where a place is kept for
    it or nobody else waits."""

    places: Places | None
    verdict: Verdict | None
    start_at: float | None


copied_by_fields(QuotaOutlook, Places, Instead, Rehearsal, Rise, TriedStart)


def submitted(
    state: SchedulerState, asked: JobSubmitted, now: float, told: Iterable[Delta] = ()
) -> Rehearsal:
    """Submit a job to the state, which is of no use afterwards, and run its next cycle, at `now` in
    seconds since the epoch. The job must be none of the state's. `told`: what is known of it."""
    job = asked.job
    quota = tuple(quota_terms(job, state.pools, state.book))
    return _decided(state, job, run_cycle(state, [asked, *told], now), quota, now)


def review(
    state: SchedulerState, job_id: str, now: float, told_anew: Iterable[Delta] = ()
) -> Rehearsal | None:
    """As `submitted`, of a job that waits in the state, which is no use afterwards; None where it
    waits in it no more. `told_anew`: the job again, where the state has decided about it before."""
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
    """Submit requests of one id, each greater than the one before, until one would not start
    without preempting anybody. The state decides for whoever waits in it, and is no use afterwards
    but to be asked again."""
    places: Places | None = None
    verdict: Verdict | None = None
    run_cycle(state, [], now)  # who waits was there before it
    started, before = 0, list[Delta]()
    for request in requests:
        tried = replace(request, preempts=False)  # so that withdrawn it leaves the state as it was
        found = _places(state, tried, run_cycle(state, [*before, JobSubmitted(tried)], now))
        before = [JobEnded(tried.id)]
        if found is None or found.pods < tried.pods:
            verdict = state.jobs[tried.id].verdict
            break
        started, places = started + 1, found
    run_cycle(state, before, now)
    return Rise(started, places, verdict)


def try_start(state: SchedulerState, asked: JobSubmitted, now: float) -> TriedStart:
    """Submit a job to a state that has decided about all others, and leave it there; `JobEnded`
    takes it out again. The job must be none of the state's."""
    job = replace(asked.job, preempts=False)  # so that taken out it leaves the state as it was
    result = run_cycle(state, [JobSubmitted(job, asked.not_before, asked.held)], now)
    places, record = _places(state, job, result), state.jobs[job.id]
    start_at = reserved_start(result, job.id)
    if places is None and start_at is None and record.eq_class is not None:
        others = (r for r in state.jobs.values() if r.eq_class is not None and r is not record)
        if next(others, None) is None:
            start_at = _room_at(state, record, now)
    return TriedStart(places, record.verdict, start_at)


def reserved_start(result: CycleResult, job_id: str) -> float | None:
    """When a job is expected to start for which a place is kept; None = none is."""
    starts = [r.start_at for r in result.reservations if r.job_id == job_id]
    return starts[0] if starts else None


def reserved_at(state: SchedulerState, job_id: str) -> float | None:
    """The same of a state that has told of it."""
    record = state.jobs.get(job_id)
    expected = record.expected if record is not None and job_id in state.reserving else None
    return expected.at if expected is not None else None


def standing(
    facts: Iterable[Delta], now: float, levels: tuple[str, ...] = DEFAULT_LEVELS
) -> SchedulerState:
    """A state that knows these facts and has decided nothing yet."""
    state = SchedulerState(levels=levels, told_of_runs=True)
    state.cluster.now = now
    out = Outcome(now, state.refresh_s)
    for delta in facts:
        apply_deltas.apply(state, delta, out)
    return state


def quota_terms(job: JobRequest, pools: Pools, book: QuotaBook) -> Iterator[QuotaOutlook]:
    """What quota says to the job by GPU model, in the order of its preference."""
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
    """An independent state that decides the same. What never changes is shared; forecasts, which
    follow their cluster, are made anew."""
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
    """An independent state to be run on by itself: pods run as soon as they have places, and nobody
    reads the numbers in its reasons."""
    twin = copied(state)
    twin.refresh_s, twin.told_of_runs = math.inf, False
    for record in twin.running.values():  # how long each is protected follows from that
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
    """When running jobs, as they declare, have left room for a job that waits for just that."""
    if record.verdict is None or record.verdict.reason not in NO_ROOM:
        return None
    ways = islice(candidates(state, record, frozenset()), MAX_FORECAST)
    starts = [expected_start(state, way, now) for way in ways]
    return min((start.at for start in starts if start is not None), default=None)


def _instead(state: SchedulerState, job: JobRequest, now: float) -> Iterator[Instead]:
    """Requests that would start now, the nearest to what was asked for first."""

    def places(other: JobRequest) -> Places | None:
        # It preempts nobody, so that withdrawn it leaves the state as it was.
        tried = JobSubmitted(replace(other, preempts=False))
        return _places(state, other, run_cycle(state, [JobEnded(job.id), tried], now))

    # A cycle asks all that wait: none for what has no room. What is tried takes of the room that
    # there is until the next is.
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
    """Whether GPUs that are free and quota that is left could do for what must start together,
    wherever it lies: most requests fail by that, and a cycle asks all that wait."""
    pods = [(i, s.least if job.gang else 1) for i, s in enumerate(job.pod_sets)]
    allowed = (_may_hold(state, job, i, count) for i, count in pods)
    return all(allowed) if job.gang else any(allowed)


def _may_hold(state: SchedulerState, job: JobRequest, pod_set: int, count: int) -> bool:
    """Whether so many pods of the set could get GPUs of one model, if it asks for any."""
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
    """GPU models that the job does not accept and for which its tenant has quota."""
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
    """How many slices a gang of equal pods needs to start; 0 for another job."""
    if not job.gang or len(job.pod_sets) > 1:
        return 0
    asked = job.pod_sets[0]
    return asked.least // (asked.slice_size or 1)


def _of_slices(job: JobRequest, slices: int) -> JobRequest:
    """The gang that needs so many slices."""
    asked = job.pod_sets[0]
    pods = slices * (asked.slice_size or 1)
    fewer = replace(asked, min_count=pods) if job.elastic else replace(asked, count=pods)
    return replace(job, pod_sets=(fewer,))


def _fewer_pods(
    job: JobRequest, most: int, places: Callable[[JobRequest], Places | None]
) -> Instead | None:
    """The most pods, in at most so many slices, with which a gang of equal pods would start."""
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
