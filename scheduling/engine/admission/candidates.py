"""Static and dynamic admission of the first job of a class (paper 3.2.1)."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from scheduling.engine.demand.competing_pod_sets import compete, never_together
from scheduling.engine.demand.model_choices import Search
from scheduling.engine.demand.never import demand_of, needs_of, never
from scheduling.engine.demand.requested import Ask, Demand, work_out
from scheduling.engine.demand.shapes import MAX_CHOICES, Wish, narrowed, wish_of
from scheduling.engine.memo import ASKED, BY_QUOTA, NEVER, POSSIBLE, Finding, Question
from scheduling.engine.placement import impossible
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.quota.borrowing import Kept, Refusal
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import BEYOND, JobRequest
from scheduling.engine.verdict import Verdict


class Candidate(NamedTuple):
    """One way to start a job: its pod sets on these GPU models, and the most pods of each.

    `gang`: GPU-milli by GPU model that must be free for the least of the whole gang; None if that
    is not known yet. `avoid`: nodes that a preemption must not use for the job.
    """

    job: JobRequest
    counts: tuple[int, ...]
    gang: Demand | None = None
    avoid: frozenset[str] = frozenset()


class _Never(Question):
    """Why the class can never run; None if it can, which is also remembered for its shape."""

    def work_out(
        self, state: SchedulerState, subject: EquivalenceClass, depends_on: object
    ) -> Verdict | None:
        job = state.jobs[subject.head].job
        strategy = state.strategy_of(job)
        shape = state.memo.shape((subject.key, strategy))
        if state.memo.recall(_POSSIBLE, shape, depends_on) is not None:
            return None
        verdict = never(job, state.pools, state.book, strategy, state.cluster.levels)
        verdict = verdict or impossible(state.cluster, job)
        if verdict is None and compete(job):
            verdict = never_together(job, state.mended.world(), strategy)
        if verdict is None and isinstance(subject.key[1], tuple):
            state.memo.note(_POSSIBLE, shape, None, depends_on)
        return verdict

    def check(
        self, state: SchedulerState, subject: EquivalenceClass, known: Finding, depends_on: object
    ) -> Verdict | None:
        before: Verdict | None = known.answer
        anew = self.work_out(state, subject, depends_on)
        if before is None or anew is None or before.reason is not anew.reason:
            return anew
        return before  # the verdict also says what was free, as of then


class _ByQuota(Question):
    """Why quota refuses the class, if it does.

    The question depends on `NUMBERS` if the numbers of the refusal have to be right as well.
    """

    def stands(
        self, state: SchedulerState, _subject: object, known: Finding, depends_on: object
    ) -> bool:
        if depends_on is NUMBERS:
            return state.memo.quota_unchanged(known.depends_on)
        return state.memo.quota_stands(known.depends_on)

    def check(
        self, state: SchedulerState, subject: EquivalenceClass, known: Finding, _depends_on: object
    ) -> Refusal | None:
        anew, _ = _by_quota(state, subject)
        return known.answer if (anew is None) == (known.answer is None) else anew


class _AsksFor(Question):
    """What the jobs of the class ask for, which is also remembered for their shape."""

    def work_out(self, state: SchedulerState, subject: EquivalenceClass, depends_on: object) -> Ask:
        record, shape = state.jobs[subject.head], subject.key[1]
        if not isinstance(shape, tuple):  # the class of a single job, which may change
            return work_out(record.job, record.missing(), state.pools)
        of_shape = state.memo.shape(shape)
        known = state.memo.recall(_OF_SHAPE, of_shape, depends_on)
        ask: Ask
        if known is not None:
            ask = known.answer
        else:
            ask = work_out(record.job, record.missing(), state.pools)
            state.memo.note(_OF_SHAPE, of_shape, ask, depends_on)
        return ask


_NEVER = _Never(NEVER, plain=True)
_POSSIBLE = Question(POSSIBLE, checked=False, plain=True)
_BY_QUOTA, _ASKED = _ByQuota(BY_QUOTA), _AsksFor(ASKED, plain=True)
_OF_SHAPE = Question(ASKED, checked=False, plain=True)
NUMBERS: Final = "numbers"


def assess(state: SchedulerState, eq_class: EquivalenceClass) -> None:
    """Update a class's static verdicts: whether it can ever run, and whether quota lets it now."""
    memo = state.memo
    facts = memo.facts
    if memo.changed(_NEVER, eq_class, facts):
        eq_class.forget_refusal()
        memo.forget(BY_QUOTA, eq_class)
    eq_class.can_run(memo.answer(_NEVER, eq_class, facts))
    if memo.recall(_BY_QUOTA, eq_class, NUMBERS) is None:
        no, bound = _by_quota(state, eq_class)
        eq_class.judged(no, state.cluster.now)
        as_of = memo.quota_as_of(refused=no is not None, bound=bound)
        memo.note(_BY_QUOTA, eq_class, no, as_of)


def assessed(state: SchedulerState, eq_class: EquivalenceClass) -> bool:
    """Return whether the static verdicts of the class still hold, apart from their numbers."""
    memo = state.memo
    return memo.recall(_NEVER, eq_class, memo.facts) is not None and quota_stands(state, eq_class)


def quota_stands(state: SchedulerState, eq_class: EquivalenceClass) -> bool:
    """Return whether quota would still answer the class as it did, apart from the numbers."""
    return state.memo.recall(_BY_QUOTA, eq_class, None) is not None


def _by_quota(
    state: SchedulerState, eq_class: EquivalenceClass
) -> tuple[Refusal | None, tuple[str, int] | None]:
    """Return why quota refuses the class, if it does, and a bound as (GPU model, milli).

    A refusal cannot end before this much is given back; an admission cannot end before this much is
    booked. There is no bound if the class can start in several ways.
    """
    if eq_class.never is not None:
        return None, None
    record, book = state.jobs[eq_class.head], state.book
    only = ask_of(state, record).only
    if only is None:
        no = refused(state, record)
        return None if no is None else no[0], None
    model, milli = only
    non_preemptible = not record.job.preemptible
    refusal = book.refusal(eq_class.tenant, model, milli, non_preemptible=non_preemptible)
    if refusal is None:
        slack = book.slack(eq_class.tenant, model, milli, non_preemptible=non_preemptible)
        return None, (model, slack)
    return refusal, (model, milli - refusal.allowed)


def refused(
    state: SchedulerState, record: JobRecord, kept: Kept = frozenset()
) -> tuple[Refusal, Demand] | None:
    """Return why quota lets no part of the job start on any of its GPU models.

    With the refusal, return the smallest demand, by preference, that quota could ever allow. None
    if quota lets some part start.
    """
    book, tenant, ask = state.book, record.job.tenant, ask_of(state, record)
    non_preemptible = not record.job.preemptible
    found: list[tuple[Refusal, Demand]] = []
    for way in ask.ways:
        for demand in way.starts:
            no = book.refusal_of(tenant, demand, kept, non_preemptible=non_preemptible)
            if no is None:
                return None
            found.append((no, demand))
    if not found or beyond_ways(state, record, frozenset(), kept, free=False):
        return None
    if len(found) == 1:
        return found[0]
    return next(
        (f for f in found if book.could_ever(tenant, f[1], non_preemptible=non_preemptible)),
        found[0],
    )


def ask_of(state: SchedulerState, record: JobRecord) -> Ask:
    """Return what the job asks for now; remembered by class and shape if no pod of it is placed."""
    eq_class = record.eq_class
    if eq_class is None or record.pods or record.ended or record.leaving:
        return work_out(record.job, record.missing(), state.pools)
    memo = state.memo
    known = memo.recall(_ASKED, eq_class, memo.sizes)
    ask: Ask = memo.answer(_ASKED, eq_class, memo.sizes) if known is None else known.answer
    return ask


def candidates(
    state: SchedulerState,
    record: JobRecord,
    closed: frozenset[str],
    kept: Kept = frozenset(),
) -> Iterable[Candidate]:
    """Return the ways to start the job that quota allows now, preferred GPU models first.

    Pools in `closed` belong to a job ahead and are not used; what is `kept` is not borrowed.
    """
    eq_class, ask = record.eq_class, ask_of(state, record)
    answered = eq_class is not None and eq_class.refusal is None and quota_stands(state, eq_class)
    limited = state.queues.limit_of(record.job) is not None
    if answered and ask.whole and not (closed or kept or limited):  # as static admission asked
        way = ask.ways[0]
        return (Candidate(narrowed(record.job, way.models), ask.wish.most, way.gang),)
    return _candidates(state, record, ask, closed, kept)


def _candidates(
    state: SchedulerState, record: JobRecord, ask: Ask, closed: frozenset[str], kept: Kept
) -> Iterator[Candidate]:
    job = record.job
    for way in ask.ways:
        wish, most = ask.wish, way.most
        if closed and closed.intersection(way.models):
            if job.gang:
                continue
            on = zip(wish.most, way.models, strict=True)
            wish = Wish(wish.least, tuple(0 if m in closed else n for n, m in on))
            most = demand_of(job, way.models, wish.most, state.pools)
        counts = most_by_quota(state, job, way.models, wish, most, kept)
        if counts is not None and any(counts):
            yield Candidate(narrowed(job, way.models), counts, way.gang)
    for models in beyond_ways(state, record, closed, kept)[:MAX_CHOICES]:
        yield Candidate(narrowed(job, models), ask.wish.least)


def beyond_ways(
    state: SchedulerState,
    record: JobRecord,
    closed: frozenset[str],
    kept: Kept,
    *,
    free: bool = True,
) -> list[tuple[str, ...]]:
    """Return further combinations of GPU models for a gang that has more than its `ways`.

    Quota allows them and, with `free`, enough GPUs are free. The list has at most one more than are
    tried.
    """
    ask, book, tenant = ask_of(state, record), state.book, record.job.tenant
    if not ask.beyond:
        return []
    known = {way.models for way in ask.ways}
    non_preemptible = not record.job.preemptible

    def fits(model: str, exactly: int) -> bool:
        milli = -(-exactly // BEYOND)
        return (
            model not in closed
            and (not free or state.pools.unlike(model) or milli <= state.cluster.free_milli(model))
            and book.refusal(tenant, model, milli, kept, non_preemptible=non_preemptible) is None
            and state.queues.beyond(record.job, {model: milli}) is None
        )

    found = (models for models in Search(ask.options, fits) if models not in known)
    return list(islice(found, MAX_CHOICES + 1))


def most_by_quota(
    state: SchedulerState,
    job: JobRequest,
    models: tuple[str, ...],
    wish: Wish,
    all_of_it: Demand,
    kept: Kept,
) -> tuple[int, ...] | None:
    """Return the most pods per pod set that quota and the queue allow; None if none.

    It is never fewer than the least of the wish. The pod sets of a job that is no gang do not wait
    for each other.
    """
    non_preemptible = not job.preemptible

    def may_hold(asked: Demand) -> bool:
        no = state.book.refusal_of(job.tenant, asked, kept, non_preemptible=non_preemptible)
        return no is None and state.queues.beyond(job, asked) is None

    if may_hold(all_of_it):
        return wish.most
    if wish.least == wish.most:
        return None

    def allowed(counts: tuple[int, ...]) -> bool:
        return may_hold(demand_of(job, models, counts, state.pools))

    if not allowed(wish.least):
        return None
    if job.gang:
        return wish.filled(_largest(wish.room, lambda extra: allowed(wish.filled(extra))))
    counts = list(wish.least)
    for i, most in enumerate(wish.most):
        before, after = tuple(counts[:i]), tuple(counts[i + 1 :])
        counts[i] = _largest(most, partial(_joined, allowed, before, after))
    return tuple(counts) if any(counts) else None


def _joined(
    allowed: Callable[[tuple[int, ...]], bool],
    before: tuple[int, ...],
    after: tuple[int, ...],
    pods: int,
) -> bool:
    return allowed((*before, pods, *after))


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest n of 0 … most that fits; 0 has to fit, and less fits more easily."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def fits_by_count(state: SchedulerState, candidate: Candidate) -> bool:
    """Dynamic admission: return whether enough GPUs are free in every pool of the job to try."""
    job = candidate.job
    if not job.gang:
        return any(
            s.gpus == 0 or state.cluster.free_milli(s.gpu_models[0]) > 0
            for s, n in zip(job.pod_sets, candidate.counts, strict=True)
            if n
        )
    needed = candidate.gang
    if needed is None:
        least = wish_of(job, tuple(s.count for s in job.pod_sets)).least
        models = tuple(s.gpu_models[0] if s.gpus else "" for s in job.pod_sets)
        needed = needs_of(job, models, least, state.pools)
    return all(state.cluster.free_milli(m) >= milli for m, milli in needed.items())


def pools_wanted(state: SchedulerState, record: JobRecord) -> frozenset[str]:
    """Return the GPU models whose pools the job's missing pods compete for."""
    return ask_of(state, record).pools
