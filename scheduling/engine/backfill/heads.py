"""Heads, the first jobs blocked in a pool or the first to wait for quota, and their starts."""

from typing import NamedTuple

from scheduling.engine.admission.candidates import candidates, pools_wanted
from scheduling.engine.admission.limits import over_job_limit
from scheduling.engine.admission.out_of_service import within_reach
from scheduling.engine.backfill.kept_quota import news_of, waits_first
from scheduling.engine.backfill.planned_start import planned_start, smallest
from scheduling.engine.backfill.walk import Walk
from scheduling.engine.decisions import Reservation
from scheduling.engine.memo import EXPECTED, Question
from scheduling.engine.queue.job import Expected, JobRecord
from scheduling.engine.queue.reservations import Head, Terms
from scheduling.engine.queue.waiting import EquivalenceClass

# Not checked: it is the start that was told.
_EXPECTED = Question(EXPECTED, checked=False, plain=True)


class _AtStake(NamedTuple):
    """What the forecast of a head's start depends on.

    These are the places, the quotas, the bookings if they matter (`booked`), the pools that it
    leads, and the heads ahead with their starts.
    """

    places: int
    quotas: int
    booked: int | None
    led: frozenset[str]
    ahead: tuple[tuple[str, Expected | None], ...]


def lead(walk: Walk, record: JobRecord, wanted: frozenset[str]) -> None:
    """Make the job the head of those of its pools that have none yet."""
    pools = [m for m in sorted(wanted) if m not in walk.way.heads]
    if pools:
        led = frozenset(pools)
        walk.way.before[record.job.id] = tuple(walk.way.all_heads())
        expected = _expected(walk, record, led)
        closes = is_due(walk, record) and expected is None
        head = Head(record.job.id, closes, expected, pools=led)
        walk.way.heads.update(dict.fromkeys(pools, head))
        if closes and not record.job.without_gpus:
            walk.way.closers[head.job_id] = record.no_plan.awaits_min_runtime
        walk.way.add((*pools, head, record.no_plan.awaits_min_runtime), record.key)


def plan(walk: Walk, record: JobRecord, reach: frozenset[str]) -> bool:
    """Return whether it is known when quota, limits and places will let the job start.

    False for a job that is not the first to wait for some quota or limit. If the start is known,
    what the job will need is kept for it.
    """
    way = walk.way
    waits = news_of(walk.state, way, record)
    if not waits:
        return False
    heads = tuple(way.all_heads())
    way.before[record.job.id] = heads
    # The head of a pool without a known start may take any place in that pool at any time.
    first = {m for m, head in walk.way.heads.items() if head.expected is None}
    pools = reach - first
    expected = _expected(walk, record, pools)
    for what in waits:
        way.asked.setdefault(what, record.job.id)
    head = Head(record.job.id, False, expected, pools=pools)
    if expected is not None:
        way.planned[record.job.id] = head
        for what in waits:
            way.awaited.setdefault(what, record.job.id)
    way.add((waits, head), record.key)
    return expected is not None


def has_led(walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> bool:
    """Return whether the job may preempt the jobs that passed it.

    It has to be the first to wait for a pool or for quota, and to have been blocked for longer than
    the policy's threshold.
    """
    record, state = terms.claim.record, walk.state
    since = record.blocked_since
    if since is None:
        return False
    if since + state.policy.backfill_after_s > walk.out.now:
        return False
    if eq_class.refusal is not None:
        return waits_first(state, walk.way, record) and bool(within_reach(state, record))
    if terms.bound:
        return False  # whatever it took would be kept from it
    return any(m not in walk.way.heads for m in within_reach(state, record))


def is_due(walk: Walk, record: JobRecord) -> bool:
    """Return whether the job has been blocked for longer than the policy's threshold."""
    if record.blocked_since is None:
        walk.out.block(record, walk.out.now)
    assert record.blocked_since is not None
    due = record.blocked_since + walk.state.policy.backfill_after_s
    if due > walk.out.now:
        walk.state.wake_at(due)
    return due <= walk.out.now


def give_up(walk: Walk) -> None:
    """Report that jobs which are no longer a head have lost their reservations."""
    if not walk.state.reserving:
        return
    heads = {head.job_id for head in walk.way.heads.values()}.union(walk.way.planned)
    for job_id in sorted(walk.state.reserving - heads):
        record = walk.state.jobs.get(job_id)
        if record is not None:
            walk.state.drop_expected(record)
            walk.out.reservations.append(Reservation(job_id, None))
    walk.state.reserving &= heads


def _expected(walk: Walk, record: JobRecord, led: frozenset[str]) -> Expected | None:
    """Return when and where the job will start, in pools of which no other job is the head.

    That is worked out anew only if something at stake has changed (see `_AtStake`), if jobs ahead
    have started, which need not leave the job its nodes, or if a job is past its planned end.
    """
    state, known, name = walk.state, record.expected, record.job.id
    at_stake = _at_stake(walk, record, led)
    # While nothing at stake changes, the start that was told stays, also if the memo is off.
    changed = state.memo.changed(_EXPECTED, record, at_stake)
    passed = known is not None and known.until <= walk.out.now
    if changed or passed or walk.way.starts:
        expected = _foreseen(walk, record, led)
        _expect(walk, record, expected, at_stake)
        if expected != known:
            at, nodes = (expected.at, expected.nodes) if expected else (None, frozenset[str]())
            walk.out.reservations.append(Reservation(name, at, tuple(sorted(nodes))))
            if expected is not None:
                state.reserving.add(name)
            else:
                state.reserving.discard(name)
    return record.expected


def _expect(walk: Walk, record: JobRecord, start: Expected | None, at_stake: _AtStake) -> None:
    """Note the expected start and what it depends on."""
    record.expect(start)
    walk.state.memo.note(_EXPECTED, record, None, at_stake)


def _at_stake(walk: Walk, record: JobRecord, led: frozenset[str]) -> _AtStake:
    """Return all that the forecast of the job's start depends on.

    A job that starts behind a head does not delay it. If there are heads ahead or quota refuses the
    job, other starts may delay it, so the bookings count as well.
    """
    state = walk.state
    ahead = tuple([(head.job_id, head.expected) for head in walk.way.before[record.job.id]])
    memo = state.memo
    booked = memo.booked if ahead or _refused(walk, record) else None
    return _AtStake(memo.places, memo.quotas, booked, led, ahead)


def _refused(walk: Walk, record: JobRecord) -> bool:
    """Return whether quota or a limit keeps the job from starting, whatever is free."""
    refused = record.eq_class is not None and record.eq_class.refusal is not None
    return refused or over_job_limit(walk.state, record) is not None


def _foreseen(walk: Walk, record: JobRecord, led: frozenset[str]) -> Expected | None:
    """Return the earliest start among the ways that quota allows now or later; first of equals."""
    state, ahead, now = walk.state, walk.way.before[record.job.id], walk.out.now
    closed = pools_wanted(state, record) - led
    ways = smallest if _refused(walk, record) else candidates
    starts = [
        planned_start(state, record, candidate, now, ahead)
        for candidate in ways(state, record, closed)
    ]
    return min([s for s in starts if s is not None], key=lambda s: s.at, default=None)
