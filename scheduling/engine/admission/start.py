"""Dynamic admission and placement of the first job of a class (paper 3.2.1, 3.3.2)."""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from scheduling.engine.admission.candidates import (
    Candidate,
    ask_of,
    beyond_ways,
    candidates,
    fits_by_count,
    quota_stands,
)
from scheduling.engine.admission.counts import (
    never_by_count,
    only_spares,
    refused_pool,
    why_by_count,
)
from scheduling.engine.admission.hot_spares import (
    Idle,
    idle_nodes,
    spares_beside,
    takes_spares,
    without_spares,
)
from scheduling.engine.admission.limits import over_job_limit, watch_run_limit
from scheduling.engine.cluster.cluster import PodKey
from scheduling.engine.decisions import Started
from scheduling.engine.demand.shapes import MAX_CHOICES
from scheduling.engine.memo import NO_START, Finding, Question
from scheduling.engine.outcome import Outcome
from scheduling.engine.placement import PlacementFailure, explain, place_job
from scheduling.engine.placement.strategies.by_name import STRATEGIES, compares
from scheduling.engine.placement.strategies.gradient import gain_of
from scheduling.engine.queue.job import JobRecord, Nomination
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.quota.borrowing import Kept
from scheduling.engine.reasons.quota import quota_verdict
from scheduling.engine.reasons.tell import tell
from scheduling.engine.state import SchedulerState
from scheduling.engine.statement import Statement
from scheduling.engine.types import JobRequest, PodPlacement
from scheduling.engine.verdict import Reason, Verdict

# A choice of GPU models that did not start. None: too few GPUs are free, so it was not tried.
Failed = tuple[Candidate, PlacementFailure | None]

# The job fits nowhere but on the nodes that are kept as spares.
SPARES_ONLY = PlacementFailure(-1)


class _StartAsOf(NamedTuple):
    """What a failed start depends on.

    These are the room there is, and the GPU models, nodes and quota that belong to jobs ahead.
    """

    room: tuple[int, int]
    closed: frozenset[str]
    reserved: frozenset[str]
    kept: Kept


class _NoStart(Question):
    """Whether no job of the class can start.

    That holds until there is more room, or the jobs ahead leave something that they did not.
    """

    def stands(
        self, _state: SchedulerState, _subject: object, known: Finding, depends_on: _StartAsOf
    ) -> bool:
        before: _StartAsOf = known.depends_on
        return (
            before.room == depends_on.room
            and before.closed <= depends_on.closed
            and before.reserved <= depends_on.reserved
            and before.kept <= depends_on.kept
        )

    def check(
        self,
        state: SchedulerState,
        subject: EquivalenceClass,
        _known: Finding,
        depends_on: _StartAsOf,
    ) -> bool:
        record = state.jobs[subject.head]
        if over_job_limit(state, record) is not None:
            return False
        _, closed, reserved, kept = depends_on
        return would_start(state, record, closed, reserved, kept)


_NO_START = _NoStart(NO_START)


def try_to_start(
    state: SchedulerState,
    record: JobRecord,
    closed: frozenset[str],
    reserved: frozenset[str],
    kept: Kept,
    out: Outcome,
) -> bool:
    """Start a waiting job, or more of it, now; return False if nothing of it can start.

    GPU models in `closed`, nodes in `reserved` and quota in `kept` belong to jobs ahead. A failed
    start is not tried again for any job of the class before the cluster or the quota book offers
    more, or the jobs ahead leave more.
    """
    eq_class = record.eq_class
    assert eq_class is not None
    if eq_class.never is not None:
        return False
    ahead = _StartAsOf(state.memo.room, closed, reserved, kept)
    if state.memo.recall(_NO_START, eq_class, ahead) is not None:
        return False
    if over_job_limit(state, record) is not None:
        return False
    out.attempts += 1
    tried: list[Failed] = []
    by_quota = eq_class.refusal is None or not quota_stands(state, eq_class)
    ways = candidates(state, record, closed, kept) if by_quota else ()
    if not ask_of(state, record).whole:
        ways = best_first(state, record.job, ways)
    for candidate in ways:
        failure: PlacementFailure | None = None
        if fits_by_count(state, candidate):
            avoid = reserved.union(record.avoided_nodes) if record.avoided_nodes else reserved
            placed = place(state, candidate, avoid)
            if not isinstance(placed, PlacementFailure):
                started(state, record, placed, out)
                return True
            failure = placed
        tried.append((candidate, failure))
    _explain(state, record, tried, closed)
    state.memo.note(_NO_START, eq_class, False, ahead)
    return False


def best_first(
    state: SchedulerState, job: JobRequest, ways: Iterable[Candidate]
) -> Iterable[Candidate]:
    """Return the ways to start a job, the best first.

    If the job has one pod set and its strategy compares GPU models, the way in which its first pod
    does best goes first; otherwise the order is that of preference.
    """
    how = STRATEGIES[job.strategy or state.strategy_of(job)]
    if len(job.pod_sets) > 1 or not compares(state.cluster, how, job.pod_sets[0]):
        return ways
    found = list(ways)
    if len(found) < 2:
        return found
    gains = [gain_of(state.cluster, w.job.pod_sets[0]) for w in found]
    return [found[i] for i in sorted(range(len(found)), key=lambda i: (-gains[i], i))]


def would_start(
    state: SchedulerState,
    record: JobRecord,
    closed: frozenset[str],
    reserved: frozenset[str] = frozenset(),
    kept: Kept = frozenset(),
) -> bool:
    """Return whether the job could start now without these pools, nodes and quota to borrow."""
    avoid = reserved.union(record.avoided_nodes)
    for candidate in candidates(state, record, closed, kept):
        if fits_by_count(state, candidate):
            statement = Statement(state.cluster)
            placed = place_on(statement, state, candidate, avoid)
            statement.rollback()
            if not isinstance(placed, PlacementFailure):
                return True
    return False


def place(
    state: SchedulerState, candidate: Candidate, avoid: frozenset[str]
) -> tuple[PodPlacement, ...] | PlacementFailure:
    """Book places for a candidate in the cluster; a failure leaves the cluster unchanged."""
    statement = Statement(state.cluster)
    placed = place_on(statement, state, candidate, avoid)
    statement.commit()
    return placed


def place_on(
    statement: Statement,
    state: SchedulerState,
    candidate: Candidate,
    avoid: frozenset[str],
    idle: Idle | None = None,
) -> tuple[PodPlacement, ...] | PlacementFailure:
    """Allocate places for a candidate on a statement, which a failure leaves unchanged.

    `idle`: the wholly free nodes out of which spares are kept; by default those of now.
    """
    job, cluster, policy = candidate.job, statement.state, state.policy
    mark = statement.checkpoint()
    before = idle_nodes(policy, cluster) if idle is None else idle
    strategy, counts = state.strategy_of(job), candidate.counts
    placed = place_job(statement, job, strategy=strategy, counts=counts, avoid=avoid)
    if isinstance(placed, PlacementFailure):
        return placed
    if takes_spares(policy, cluster, job, before):
        spares = spares_beside(policy, cluster, placed, before)
        kept = without_spares(state, job, placed, spares)
        statement.rollback(mark)
        if not kept:
            # A strategy that spreads takes idle nodes first; other nodes may have room.
            avoid = avoid.union(spares)
            placed = place_job(statement, job, strategy=strategy, counts=counts, avoid=avoid)
            if isinstance(placed, PlacementFailure):
                return SPARES_ONLY
            kept = placed
    else:
        kept = placed
    record = state.jobs[job.id]
    if kept is placed and not (record.ended or record.leaving):
        return placed
    statement.rollback(mark)
    placed = _renumbered(state, job, kept, record.ended | record.leaving.keys())
    for p in placed:
        statement.allocate(job, p)
    return placed


def _renumbered(
    state: SchedulerState,
    job: JobRequest,
    placed: tuple[PodPlacement, ...],
    ended: AbstractSet[tuple[int, int]],
) -> tuple[PodPlacement, ...]:
    """Give the same places to the pods that are missing: placement does not know which ended."""
    held = state.cluster.held_by(job.id)
    free = [
        iter([o for o in range(s.count) if (i, o) not in ended and (i, o) not in held])
        for i, s in enumerate(job.pod_sets)
    ]
    return tuple(p._replace(ordinal=next(free[p.pod_set])) for p in placed)


def start_nominated(state: SchedulerState, out: Outcome) -> None:
    """Start the nominated jobs whose places are free by now."""
    for record in list(state.promised.values()):
        held = record.take_nominated(out.now)
        if held is None:
            continue
        del state.promised[record.job.id]
        state.note_started(record, out.now)
        state.cluster.note(record.job.id)
        state.queue.plan_anew()  # from now on others may preempt it
        _report(state, record, held.placements, held.borrowed, out)


def started(
    state: SchedulerState, record: JobRecord, placed: tuple[PodPlacement, ...], out: Outcome
) -> None:
    """Book and report what was placed; a job that still lacks pods goes on waiting.

    If leaving pods are in the way, the job starts when they are gone.
    """
    awaited = state.leaving.in_the_way(state.cluster, record.job, placed)
    if awaited:
        nomination(state, record, placed, awaited, out)
        return
    borrowed = state.hold(record, placed, out.now)
    _report(state, record, placed, tuple(sorted(borrowed.items())) if borrowed else (), out)


def nomination(
    state: SchedulerState,
    record: JobRecord,
    placed: tuple[PodPlacement, ...],
    awaited: set[PodKey],
    out: Outcome,
) -> None:
    """Hold booked places for a waiting job until the pods in them are gone."""
    state.queue.remove(record)
    hold_until_gone(state, record, placed, awaited, out)
    tell(
        record,
        Verdict(
            Reason.WAITING_FOR_PREEMPTION,
            "Its places are kept; it starts when the jobs that make room are gone.",
            {"pods_leaving": len(awaited)},
        ),
        out,
    )


def book(state: SchedulerState, job: JobRequest, placed: tuple[PodPlacement, ...]) -> set[PodKey]:
    """Book places in the cluster for good; return the leaving pods that are in the way there."""
    statement = Statement(state.cluster)
    for p in placed:
        statement.allocate(job, p)
    statement.commit()
    return state.leaving.in_the_way(state.cluster, job, placed)


def hold_until_gone(
    state: SchedulerState,
    record: JobRecord,
    placed: tuple[PodPlacement, ...],
    awaited: set[PodKey],
    out: Outcome,
) -> None:
    """Note that booked places belong to a job once these pods are gone."""
    borrowed = state.hold(record, placed, out.now, promised=True)
    record.nominate(Nomination(placed, tuple(sorted(borrowed.items())), awaited))
    state.promised[record.job.id] = record
    state.jobs_started += 1
    state.preemptible_jobs.touch(record)


def _report(
    state: SchedulerState,
    record: JobRecord,
    placed: tuple[PodPlacement, ...],
    borrowed: tuple[tuple[str, int], ...],
    out: Outcome,
) -> None:
    out.waiting.pop(record.job.id, None)
    record.starts()
    watch_run_limit(state, record, out.now)
    out.block(record, None)
    state.drop_expected(record)
    out.started.append(Started(record.job.id, placed, borrowed))
    state.enqueue(record, out.now)


def _explain(
    state: SchedulerState,
    record: JobRecord,
    tried: Sequence[Failed],
    closed: frozenset[str],
) -> None:
    """Keep the reason of a failed attempt in the class; work the costly part out only rarely."""
    eq_class = record.eq_class
    assert eq_class is not None

    def explained(candidate: Candidate, failure: PlacementFailure) -> Verdict:
        models = tuple(s.gpu_models for s in candidate.job.pod_sets)
        avoided_nodes = tuple(record.avoided_nodes.items())
        key = (*eq_class.key[1:], models, avoided_nodes, state.memo.nodes)
        verdict: Verdict | None = state.memo.lately(key)
        if verdict is None:
            verdict = explain(state.cluster, candidate.job, failure, record.avoided_nodes)
            state.memo.note_for(state.refresh_s, key, verdict)
        return verdict

    eq_class.failed(why_failed(state, record, tried, closed, explained))


def why_failed(
    state: SchedulerState,
    record: JobRecord,
    tried: Sequence[Failed],
    closed: frozenset[str],
    explained: Callable[[Candidate, PlacementFailure], Verdict],
) -> Verdict | None:
    """Return the reason of the choice of GPU models that came nearest to a start.

    None if quota or jobs ahead keep the job from everything that could hold it. That a pool could
    never hold the job is the reason only if no other choice is left: otherwise the job would look
    impossible although it only waits.
    """
    verdict = _why_failed(state, record, tried, closed, explained)
    ask = ask_of(state, record)
    if verdict is None or len(beyond_ways(state, record, closed, frozenset())) <= MAX_CHOICES:
        return verdict
    return Verdict(
        verdict.reason,
        f"{verdict.summary} {len(tried)} of {ask.beyond} combinations of GPU models were tried.",
        {**verdict.evidence, "combinations": ask.beyond, "combinations_tried": len(tried)},
        (*verdict.remedies, "accept fewer GPU models in each pod set"),
    )


def _why_failed(
    state: SchedulerState,
    record: JobRecord,
    tried: Sequence[Failed],
    closed: frozenset[str],
    explained: Callable[[Candidate, PlacementFailure], Verdict],
) -> Verdict | None:
    never: Verdict | None = None
    ways = ask_of(state, record).ways
    for candidate, failure in sorted(tried, key=lambda t: t[1] is None):
        if failure is SPARES_ONLY:
            return only_spares(state)
        # A single way is known to be possible: otherwise the class would not be asked.
        if len(ways) > 1 and never_by_count(state, candidate):
            continue
        verdict = why_by_count(state, candidate)
        if verdict is None and failure is not None:
            verdict = explained(candidate, failure)
        if verdict is not None and verdict.reason is not Reason.EXCEEDS_CAPACITY:
            return verdict
        never = never or verdict
    if not tried or len(tried) >= len(ways):
        return never
    refusal = refused_pool(state, record)
    if refusal is not None:
        return quota_verdict(state.book, record.job.tenant, refusal)
    return None if any(closed.intersection(way.models) for way in ways) else never
