"""What a job that cannot start means for the jobs behind it (paper 3.2.2, table 1).

| policy | a blocked job closes to the jobs behind it |
|---|---|
| strict FIFO | the pools it competes for; if quota refuses it: its tenant's, what it would borrow |
| best-effort FIFO | nothing; with fair share nodes for the job whose turn it is (fair_turns.py) |
| backfill | the nodes reserved for it; without a reservation, after a threshold, its pools |
| … refused by quota | the nodes and quota of its start; without one, after a threshold, as strict |

Under backfill nothing is closed after the threshold to jobs that could be preempted for it. Nobody
waits in a pool in which the job could not start though all that runs had ended (out_of_service.py).
"""

import math
from dataclasses import replace
from typing import Final, NamedTuple

from scheduling.engine.admission.candidates import (
    ask_of,
    assess,
    candidates,
    pools_wanted,
    quota_stands,
)
from scheduling.engine.admission.limits import over_job_limit
from scheduling.engine.admission.out_of_service import with_what_it_lacks, within_reach
from scheduling.engine.admission.start import would_start
from scheduling.engine.backfill.beside_holds import beside_holds
from scheduling.engine.backfill.fair_turns import choose, comes_before, stands
from scheduling.engine.backfill.kept_quota import (
    closes_quota,
    kept_from,
    news_of,
    own_quota,
    waits_first,
    waits_for,
    withheld,
)
from scheduling.engine.backfill.planned_start import planned_start, smallest
from scheduling.engine.backfill.settled import UNPLANNED_AT_ALL, settle, still_settled
from scheduling.engine.decisions import Reservation
from scheduling.engine.memo import EXPECTED, SETTLED, WOULD_START, Finding, Question
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.job import Expected, JobRecord
from scheduling.engine.queue.preemption_delay import AFTER_PREEMPTED_S, delay_of
from scheduling.engine.queue.reservations import NOBODY_BEHIND, Ahead, Head, Reservations, Terms
from scheduling.engine.queue.waiting import EquivalenceClass, Unplanned
from scheduling.engine.quota.borrowing import Awaited, Kept
from scheduling.engine.reasons.behind import (
    Numbers,
    behind,
    has_turn,
    quota_reserved,
    reserved,
    to_borrow,
)
from scheduling.engine.reasons.quota import quota_verdict
from scheduling.engine.reasons.tell import tell, tell_class
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import NO_GPUS, PreemptionKind, QueueingPolicy
from scheduling.engine.verdict import PREEMPTS_FROM, PROTECTED_UNTIL, Reason, Verdict, counted


class _WouldStart(Question):
    """Whether only reserved nodes keep the class waiting behind these jobs."""

    def stands(self, _state: object, _subject: object, known: Finding, depends_on: object) -> bool:
        return known.depends_on is depends_on


class _AtStake(NamedTuple):
    """What the forecast of a head's start depends on: places, quotas, whatever is booked where that
    matters, the pools that it leads, and the heads ahead with their starts."""

    places: int
    quotas: int
    booked: int | None
    led: frozenset[str]
    ahead: tuple[tuple[str, Expected | None], ...]


Line = tuple[str, str, str]  # tenant, queue, GPU model
ANYBODY: Final = ""  # of no tenant

# Neither is checked: the one is no more than a reason, told as it was a while ago, and the other
# what was told of a start.
_WOULD_START = _WouldStart(WOULD_START, checked=False)
_EXPECTED = Question(EXPECTED, checked=False, plain=True)


class Blocking:
    """Pools, accounts and nodes that belong to blocked jobs for the rest of one cycle."""

    def __init__(self, state: SchedulerState, way: Reservations, out: Outcome) -> None:
        self._state = state
        self._standings = state.usage.standings
        # By GPU model, where it is nobody's turn yet: the first of all, and of each tenant that has
        # several queues.
        self._in_line: dict[tuple[str, str], EquivalenceClass] = {}
        self._wait_for: dict[tuple[str, str], frozenset[str]] = {}  # by tenant and queue
        self._way = way
        self._out = out
        self._rules = RULES[state.policy.queueing]
        self._pools, self._accounts, self._heads = way.pools, way.accounts, way.heads

    def settled(self, eq_class: EquivalenceClass) -> bool:
        """Whether the class need not be asked: it would be told what it was told before."""
        if self._in_line:
            self._give_turns(eq_class)
        if self._state.queues.ordered and self._to_close(eq_class):
            return False
        if not still_settled(self._state, self._way, eq_class):
            return False
        if self._state.memo.draws():
            self._check(eq_class, self.terms(eq_class))
        if self._state.takes_turns:
            self.line_up(eq_class)
        return True

    def check_passed(self) -> None:
        """Check the classes that were left out of the walk before it began."""
        passed = self._state.queue.passed
        for eq_class in passed:
            self._check(eq_class, Terms(self._state.jobs[eq_class.head]))
        passed.clear()

    def _check(self, eq_class: EquivalenceClass, terms: Terms) -> None:
        """Whether the job of the class that would be asked could start after all."""
        state, record = self._state, terms.record
        capped = eq_class.never is not None or over_job_limit(state, record) is not None
        starts = not capped and would_start(state, record, terms.closed, terms.avoid, terms.kept)
        state.memo.compare("settled: may a job start?", eq_class, False, starts)

    def terms(self, eq_class: EquivalenceClass, *, again: bool = False) -> Terms:
        """What the blocked jobs ahead leave to this class; `again`: to the job of it that is in the
        way of the fewest of those whose start is known."""
        first = self._state.jobs[eq_class.head]
        way = self._way
        if not (self._pools or self._accounts or self._heads or way.planned or way.queues):
            return Terms(first)
        models = pools_wanted(self._state, first)
        ahead = way.ahead_of.get(models) or self._ahead(models)
        terms = self._left_by_heads(eq_class, first, models, ahead)
        state, now = self._state, self._out.now
        if eq_class.refusal is not None and not quota_stands(state, eq_class):
            assess(state, eq_class)
        if not ahead.holds or eq_class.refusal is not None:
            return terms  # whom quota refuses need not be told what else is kept from it
        return beside_holds(
            self._state, self._way, eq_class, terms, models, ahead, now, again=again
        )

    def _left_by_heads(
        self, eq_class: EquivalenceClass, first: JobRecord, models: frozenset[str], ahead: Ahead
    ) -> Terms:
        """What is left by those that are blocked in pools, and those that close quota."""
        way = self._way
        window = ahead.starts_at - self._out.now
        short = None if eq_class.shortest > window else self._ends_within(eq_class, window)
        passes = short is not None, bool(way.closers) and self._yields(first)
        queue = eq_class.queue if way.queues else ANYBODY
        of = (eq_class.tenant, queue, models, *passes)
        closed = way.closed_to.get(of)
        if closed is None:
            closed = frozenset(m for m in models if self._is_closed(eq_class, m, *passes))
            way.closed_to[of] = closed
        kept = frozenset() if passes[1] or closed >= models else way.all_kept
        if kept:
            closed |= kept_from(self._state, way, first, models, kept)
        if short is not None or not ahead.heads:
            return Terms(short or first, closed, kept=kept, behind=short is not None)
        return Terms(first, closed, ahead.nodes, kept, ahead.later, turns=ahead.turns)

    def _ahead(self, models: frozenset[str]) -> Ahead:
        """The heads of these pools together, and who else will need something that they offer."""
        way = self._way
        heads = [self._heads[m] for m in sorted(models) if m in self._heads]
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
        found = Ahead(tuple(heads), starts_at, avoid, reserved, turns, holds)
        way.ahead_of[models] = found
        return found

    def _yields(self, record: JobRecord) -> bool:
        """Whether the job, once started, could be preempted for each job that closes anything."""
        state, job, closers = self._state, record.job, self._way.closers
        return (
            PreemptionKind.BACKFILL in state.policy.preemption
            and job.preemptible
            and record.disruptions is None
            and not state.at_preemption_limit(record)
            and state.min_runtime_of(job) <= state.policy.min_runtime_s
            and not any(closers.values())
            and not any(job.id in state.jobs[ahead].preempted_by for ahead in closers)
            # Where it is fair, an older job may be behind; it was never backfilled past a younger.
            and not (
                state.by_shares and any(state.jobs[ahead].key > record.key for ahead in closers)
            )
        )

    def _is_closed(self, eq_class: EquivalenceClass, model: str, short: bool, yields: bool) -> bool:
        tenant = eq_class.tenant
        if model in self._pools or (tenant, eq_class.queue, model) in self._way.queues:
            return True
        head = self._heads.get(model)
        if yields and model != NO_GPUS:  # where nobody takes anything back
            return False
        if head is not None and head.closes and not short:
            return True
        return closes_quota(self._state, self._way, tenant, model)

    def _ends_within(self, eq_class: EquivalenceClass, window: float) -> JobRecord | None:
        """The first job of the class that, as planned, is over when the heads can start."""
        for key in eq_class.jobs:
            record = self._state.jobs[key.job_id]
            if record.planned_s is not None and record.planned_s <= window:
                return record
        return None

    def blocked(self, eq_class: EquivalenceClass, terms: Terms) -> None:
        """Tell the class why it waits, and close what the policy wants closed behind it."""
        state, out, mark = self._state, self._out, self._way.mark
        state.memo.forget(SETTLED, eq_class)
        assess(state, eq_class)
        if eq_class.never is not None:
            tell_class(state, eq_class, eq_class.never, eq_class.never, out)
            settle(state, self._way, eq_class, out.now, closed=True)
            return
        record = state.jobs[eq_class.head]
        wanted = pools_wanted(state, record)
        if wanted and terms.closed >= wanted:
            verdict = self._behind(eq_class, terms)
            tell_class(state, eq_class, verdict, verdict, out)
            if terms.unsure:
                return
            closes = bool(terms.kept) and self._rules.closes_kept
            lacks = closes and not within_reach(state, record)
            if closes and not lacks:
                self.close_quota(eq_class, record, terms.kept)
                return
            kept = terms.kept
            away = kept_from(state, self._way, record, wanted, kept) if kept else frozenset[str]()
            now = out.now
            settle(
                state, self._way, eq_class, now, closed=True, withheld=away, kept=kept, lacks=lacks
            )
            return
        verdict = self._reason(eq_class, terms, wanted)
        rest = verdict
        # No GPU would help it: it is in nobody's way.
        by_queue = verdict.reason is Reason.QUEUE_LIMIT_REACHED
        capped = by_queue or "max_running" in verdict.evidence
        # One that competes for no pool keeps nobody waiting, and nobody it.
        reach = within_reach(state, record) if wanted else frozenset[str]()
        lacks = bool(wanted) and not reach
        if lacks and not verdict.will_never_run:
            verdict = rest = with_what_it_lacks(state, record, verdict)
        may_close = bool(reach) and not capped and not verdict.will_never_run
        waits = (capped or eq_class.refusal is not None) and not by_queue
        if waits and reach and not verdict.will_never_run:
            planned = self._rules.plan(self, record, reach)
            may_close = may_close and not planned
            if planned and not capped:
                self.is_due(record)
        self._close_queues(eq_class, record)
        if may_close and self._rules.close(self, eq_class, record, reach):
            rest = behind(eq_class.head, min(reach), {})
        preempts = terms.claim.may_preempt and self._may_preempt(eq_class, terms)
        told = self._not_yet(eq_class, record, verdict) if preempts else verdict
        if capped:
            state.drop_turn(record)
        elif record.turn is not None and record.job.id in state.turns:
            told = has_turn(told, len(record.turn.nodes))
        tell_class(state, eq_class, told, rest, out)
        if terms.later and self._way.mark is not mark:
            self._way.last = NOBODY_BEHIND  # jobs of any place may have gone before it
        # What a job that quota refuses closes depends on what others hold by then.
        closes_quota = rest is not verdict and eq_class.refusal is not None
        if not (capped or terms.unsure or closes_quota) and self._way.mark is mark:
            settle(
                state,
                self._way,
                eq_class,
                out.now,
                closed=False,
                preempts=preempts,
                lacks=lacks,
            )

    def _reason(self, eq_class: EquivalenceClass, terms: Terms, wanted: frozenset[str]) -> Verdict:
        capped = over_job_limit(self._state, self._state.jobs[eq_class.head])
        if capped is not None:
            return capped
        if eq_class.refusal is not None:
            tenant = self._state.jobs[eq_class.head].job.tenant
            return quota_verdict(self._state.book, tenant, eq_class.refusal)
        if terms.avoid and self._would_start(eq_class, terms):
            if terms.claim.avoid:
                return self._reserved(self._heads[min(m for m in wanted if m in self._heads)])
            holds = self._ahead(wanted).holds
            return self._reserved(next(h for h in holds if h.nodes & terms.avoid))
        if eq_class.failure is not None:
            return eq_class.failure
        if terms.closed:
            return self._behind(eq_class, terms)
        return Verdict(Reason.PENDING_EVALUATION, "The job is considered in the next cycle.")

    def _would_start(self, eq_class: EquivalenceClass, terms: Terms) -> bool:
        """Whether only reserved nodes keep the class waiting; as costly as a start, and no more
        than a reason, so it is found out again only as often as numbers are told."""
        memo, mark = self._state.memo, self._way.mark
        known = memo.recall(_WOULD_START, eq_class, mark)
        if known is not None:
            return bool(known.answer)
        would = would_start(self._state, self._state.jobs[eq_class.head], terms.closed)
        until = self._out.now + self._out.refresh_s
        memo.note(_WOULD_START, eq_class, would, mark, until)
        return would

    def close_pools(self, record: JobRecord, wanted: frozenset[str]) -> None:
        """Close all of these pools to whoever comes behind the job."""
        name = record.job.id
        self._way.could[name] = self._open_ways(record)
        for model in sorted(wanted.difference(self._pools)):
            self._pools[model] = name
            self._way.add((model, name), record.key)

    def put_off(self, eq_class: EquivalenceClass) -> None:
        """Others go before the class, but not those that its queue waits for: what starts now may
        be where it finds room later."""
        self._close_queues(eq_class, self._state.jobs[eq_class.head])

    def _close_queues(self, eq_class: EquivalenceClass, record: JobRecord) -> None:
        """Close pools to the queues of its tenant that had too much while its own had too
        little."""
        lines = self._to_close(eq_class)
        if lines:
            self._way.queues.update(dict.fromkeys(lines, record.job.id))
            self._way.add((*lines, record.job.id), record.key)
            self._state.wake_at(self._state.queues.waited_for_until(record.job))

    def _to_close(self, eq_class: EquivalenceClass) -> list[Line]:
        """By tenant, queue and GPU model what the class closes by its queue's turn if it waits."""
        state, tenant = self._state, eq_class.tenant
        if tenant not in state.queues.ordered or eq_class.never is not None:
            return []
        record = state.jobs[eq_class.head]
        behind_it = self._wait_for.get((tenant, eq_class.queue))
        if behind_it is None:
            behind_it = self._wait_for[tenant, eq_class.queue] = state.queues.wait_for(record.job)
        if not behind_it or record.job.without_gpus or over_job_limit(state, record) is not None:
            return []
        return [
            (tenant, queue, model)
            for model in sorted(within_reach(state, record))
            for queue in sorted(behind_it)
            if (tenant, queue, model) not in self._way.queues
        ]

    # --- turns by shares ----------------------------------------------------------------------
    def line_up(self, eq_class: EquivalenceClass) -> None:
        """The class finds no room: keep what is kept for its first job, or let it be the next to
        have its turn where nobody has it."""
        state, record = self._state, self._state.jobs[eq_class.head]
        capped = eq_class.never is not None or eq_class.refusal is not None
        if not state.takes_turns or record.job.without_gpus:
            return
        if capped or over_job_limit(state, record) is not None:
            state.drop_turn(record)
            return
        pools = [m for m in sorted(pools_wanted(state, record)) if m not in self._heads]
        if record.job.id in state.turns:
            self._keep(eq_class, record, pools)
            return
        of_queues = eq_class.tenant if eq_class.tenant in state.queues.ordered else ANYBODY
        for model in pools:
            self._in_line.setdefault((model, ANYBODY), eq_class)
            self._in_line.setdefault((model, of_queues), eq_class)

    def _give_turns(self, eq_class: EquivalenceClass) -> None:
        """It is the turn of jobs ahead, which found no room, before that of this class."""
        state, standings, by = self._state, self._standings, self._state.jobs[eq_class.head]
        if eq_class.never is not None or eq_class.refusal is not None:
            return
        wanted = sorted(pools_wanted(state, by))
        for key in [(model, whose) for model in wanted for whose in (ANYBODY, by.job.tenant)]:
            ahead = self._in_line.get(key)
            record = state.jobs[ahead.head] if ahead is not None else None
            if ahead is None or record is None or key[0] in self._heads:
                continue
            if comes_before(state, standings, record, by):
                lines = [line for line, other in self._in_line.items() if other is ahead]
                pools = {model for model, _ in lines}.difference(self._heads)
                self._keep(ahead, record, sorted(pools))
                if record.job.id in state.turns and record.turn and record.verdict:
                    told = has_turn(record.verdict, len(record.turn.nodes))
                    tell(record, told, self._out)
                for line in lines:
                    del self._in_line[line]

    def _keep(self, eq_class: EquivalenceClass, record: JobRecord, pools: list[str]) -> None:
        """Let the job, whose turn it is, have nodes kept; chosen anew when they have not emptied in
        time."""
        state, standings, now = self._state, self._standings, self._out.now
        if record.turn is None or not stands(state, record.turn, now):
            taken = frozenset[str]().union(*[head.nodes for head in self._heads.values()])
            record.take_turn(turn := choose(state, standings, record, taken, now))
            if turn.nodes:
                state.wake_at(turn.until)
        if record.turn is None or not (record.turn.nodes and pools):
            state.turns.pop(record.job.id, None)
            return
        state.turns[record.job.id] = record
        head = Head(record.job.id, False, None, record.turn.nodes)
        self._heads.update(dict.fromkeys(pools, head))
        self._way.add((*pools, head), record.key)
        state.memo.forget(SETTLED, eq_class)

    def close_quota(
        self, eq_class: EquivalenceClass, record: JobRecord, kept: Kept = frozenset()
    ) -> None:
        """Close what a job that quota refuses waits for: its tenant's quota, and to others what
        it would borrow. What others are guaranteed is theirs."""
        way = self._way
        waits = waits_for(self._state, record, kept)
        if waits is None:
            return
        refusing, borrowed = waits
        account = own_quota(self._state, eq_class.tenant, refusing.gpu_model)
        more: Awaited = frozenset() if kept else borrowed.difference(way.kept)
        if more or account not in self._accounts:
            way.waits[eq_class.head] = (kept, waits)
            self._accounts.setdefault(account, eq_class.head)
            way.kept.update(dict.fromkeys(more, eq_class.head))
            if self._rules.passes_closers:
                way.closers[eq_class.head] = record.no_plan.awaits_min_runtime
            found = (*account, eq_class.head, more, record.no_plan.awaits_min_runtime)
            way.add(found, record.key)

    def _may_preempt(self, eq_class: EquivalenceClass, terms: Terms) -> bool:
        """Whether a plan could be made for the job where nobody ahead forbids it."""
        state = self._state
        if not (state.policy.preemption and terms.claim.record.job.preempts):
            return False
        return not state.only_backfilled or self.overdue(eq_class, terms)

    def _not_yet(self, eq_class: EquivalenceClass, record: JobRecord, verdict: Verdict) -> Verdict:
        """The reason with when the job will have waited for long enough to preempt those that it
        could, or the end of their protection."""
        state, now, why = self._state, self._out.now, record.no_plan
        plans = Unplanned(state.allows_plans, None)
        if state.memo.changed(UNPLANNED_AT_ALL, eq_class, plans):
            return verdict
        if now < why.preempts_from < math.inf:
            if delay_s := delay_of(state.policy):
                seconds = counted(delay_s, "second", "seconds")
                text = f"It may preempt others once it has waited for {seconds}."
            else:
                seconds = counted(AFTER_PREEMPTED_S, "second", "seconds")
                text = f"It was preempted, and may preempt others by priority {seconds} later."
            told = {PREEMPTS_FROM: why.preempts_from}
        elif now < why.protected_until < math.inf:
            text = "Jobs that it could preempt are in their minimum run time."
            told = {PROTECTED_UNTIL: why.protected_until}
        else:
            return verdict
        return replace(
            verdict,
            summary=f"{verdict.summary} {text}",
            evidence={**verdict.evidence, **told},
        )

    def overdue(self, eq_class: EquivalenceClass, terms: Terms) -> bool:
        """Whether what was backfilled past the job may be preempted for it."""
        return self._rules.overdue(self, eq_class, terms)

    def has_led(self, eq_class: EquivalenceClass, terms: Terms) -> bool:
        """Whether the job is the first that waits for a pool, or for quota to borrow, and has done
        so for long enough."""
        record, state = terms.claim.record, self._state
        since = record.blocked_since
        if since is None:
            return False
        if since + state.policy.backfill_after_s > self._out.now:
            return False
        if eq_class.refusal is not None:
            return waits_first(state, self._way, record) and bool(within_reach(state, record))
        if terms.bound:
            return False  # what it could take would be kept from it
        return any(m not in self._heads for m in within_reach(state, record))

    def is_due(self, record: JobRecord) -> bool:
        """Whether the job has been blocked for longer than the policy's threshold."""
        if record.blocked_since is None:
            self._out.block(record, self._out.now)
        assert record.blocked_since is not None
        due = record.blocked_since + self._state.policy.backfill_after_s
        if due > self._out.now:
            self._state.wake_at(due)
        return due <= self._out.now

    def waits_first(self, record: JobRecord) -> bool:
        """Whether quota refuses the job and it is the first to wait for some of it."""
        return waits_first(self._state, self._way, record)

    def lead(self, record: JobRecord, wanted: frozenset[str]) -> None:
        """Make the job the head of the pools that have none yet."""
        pools = [m for m in sorted(wanted) if m not in self._heads]
        if pools:
            led = frozenset(pools)
            self._way.before[record.job.id] = tuple(self._way.all_heads())
            expected = self._expected(record, led)
            closes = self.is_due(record) and expected is None
            head = Head(record.job.id, closes, expected, pools=led)
            self._heads.update(dict.fromkeys(pools, head))
            self._way.could[head.job_id] = self._open_ways(record)
            if closes and not record.job.without_gpus:
                self._way.closers[head.job_id] = record.no_plan.awaits_min_runtime
            self._way.add((*pools, head, record.no_plan.awaits_min_runtime), record.key)

    def plan(self, record: JobRecord, reach: frozenset[str]) -> bool:
        """Whether it is known when quota, limits and places will let the job start, which is the
        first to wait for some of it: what it needs then is kept for it."""
        way = self._way
        waits = news_of(self._state, way, record)
        if not waits:
            return False
        heads = tuple(way.all_heads())
        way.before[record.job.id] = heads
        # Who is first in a pool and has no known start may take any of its places at any time.
        first = {m for m, head in self._heads.items() if head.expected is None}
        pools = reach - first
        expected = self._expected(record, pools)
        for what in waits:
            way.asked.setdefault(what, record.job.id)
        head = Head(record.job.id, False, expected, pools=pools)
        if expected is not None:
            way.planned[record.job.id] = head
            for what in waits:
                way.awaited.setdefault(what, record.job.id)
        way.add((waits, head), record.key)
        return expected is not None

    def _expected(self, record: JobRecord, led: frozenset[str]) -> Expected | None:
        """When and where the job will start, in pools that no other head has the first right to;
        worked out again only when the cluster, the quotas or the heads ahead have changed, jobs
        ahead have started, which need not leave it its nodes, or a job is past its declared end."""
        state, known, name = self._state, record.expected, record.job.id
        at_stake = self._at_stake(record, led)
        # What was told stands while nothing is at stake, also where nothing is remembered.
        changed = state.memo.changed(_EXPECTED, record, at_stake)
        passed = known is not None and known.until <= self._out.now
        if changed or passed or self._way.starts:
            expected = self._foreseen(record, led)
            self._expect(record, expected, at_stake)
            if expected != known:
                at, nodes = (expected.at, expected.nodes) if expected else (None, frozenset[str]())
                self._out.reservations.append(Reservation(name, at, tuple(sorted(nodes))))
                if expected is not None:
                    state.reserving.add(name)
                else:
                    state.reserving.discard(name)
        return record.expected

    def _expect(self, record: JobRecord, start: Expected | None, at_stake: "_AtStake") -> None:
        """Note what was foreseen, and by what."""
        record.expect(start)
        self._state.memo.note(_EXPECTED, record, None, at_stake)

    def _at_stake(self, record: JobRecord, led: frozenset[str]) -> "_AtStake":
        """All that the forecast of the job's start depends on. Who starts behind a head does not
        delay it; if heads or quota stand between, others may do so."""
        state = self._state
        ahead = tuple([(head.job_id, head.expected) for head in self._way.before[record.job.id]])
        memo = state.memo
        booked = memo.booked if ahead or self._refused(record) else None
        return _AtStake(memo.places, memo.quotas, booked, led, ahead)

    def _refused(self, record: JobRecord) -> bool:
        """Whether quota or a limit of jobs keeps the job from its start, whatever is free."""
        refused = record.eq_class is not None and record.eq_class.refusal is not None
        return refused or over_job_limit(self._state, record) is not None

    def _foreseen(self, record: JobRecord, led: frozenset[str]) -> Expected | None:
        """The earliest start in the first way that quota allows now, else in any."""
        state, ahead, now = self._state, self._way.before[record.job.id], self._out.now
        closed = pools_wanted(state, record) - led
        if not self._refused(record):
            for candidate in candidates(state, record, closed):
                found = planned_start(state, record, candidate, now, ahead)
                if found is not None:
                    return found
            return None
        starts = [
            planned_start(state, record, candidate, now, ahead)
            for candidate in smallest(state, record, closed)
        ]
        return min([s for s in starts if s is not None], key=lambda s: s.at, default=None)

    def upset(self) -> bool:
        """Whether quota and limits let a job that closed something to those behind it start in
        other ways than they did then, or it waits for other quota: others have started since, and
        what it would borrow may be kept."""
        jobs, way = self._state.jobs, self._way
        for name, ways in way.could.items():
            if self._open_ways(jobs[name]) != ways:
                return True
        for name, (kept, waits) in way.waits.items():
            if over_job_limit(self._state, jobs[name]) is not None:
                return True
            if waits_for(self._state, jobs[name], kept) != waits:
                return True
        return bool(way.planned) and any(map(self._changed, way.all_heads()))

    def _changed(self, head: Head) -> bool:
        """Whether the job would start at another time, or elsewhere, than when it was asked; what
        it needs then is that of now in any case."""
        record = self._state.jobs[head.job_id]
        if head.expected is None or record.eq_class is None:
            return False
        at_stake = self._at_stake(record, head.pools)
        if not self._state.memo.changed(_EXPECTED, record, at_stake):
            return False
        found = self._foreseen(record, head.pools)
        if found != head.expected:
            return True
        self._expect(record, found, at_stake)
        return False

    def _open_ways(self, record: JobRecord) -> tuple[bool, ...]:
        """In which of its ways quota lets the job start, without what is kept; () if its tenant
        runs as many jobs as it may."""
        if over_job_limit(self._state, record) is not None:
            return ()
        book, kept, job = self._state.book, self._way.all_kept, record.job
        return tuple(
            book.refusal_of(job.tenant, start, kept, non_preemptible=not job.preemptible) is None
            for way in ask_of(self._state, record).ways
            for start in way.starts
        )

    def give_up(self) -> None:
        """Report the reservations of jobs that are the head of no pool any more."""
        if not self._state.reserving:
            return
        heads = {head.job_id for head in self._heads.values()}.union(self._way.planned)
        for job_id in sorted(self._state.reserving - heads):
            record = self._state.jobs.get(job_id)
            if record is not None:
                self._state.drop_expected(record)
                self._out.reservations.append(Reservation(job_id, None))
        self._state.reserving &= heads

    def _behind(self, eq_class: EquivalenceClass, terms: Terms) -> Verdict:
        """What closes pools to the class; the first of them that still is by what is known now, as
        a start since may have used up what was kept."""
        if terms.bar is not None:
            return quota_reserved(terms.bar)
        for model in sorted(terms.closed):
            lender = self._lender(eq_class, model)
            if lender is not None:
                return to_borrow(lender, model, self._by_users(eq_class, lender))
            ahead = self._way.queues.get((eq_class.tenant, eq_class.queue, model))
            if ahead is not None:
                return behind(ahead, model, {})
            head = self._heads.get(model)
            if head is not None and head.job_id != eq_class.head:
                return self._reserved(head)
            chain = self._state.book.chain(eq_class.tenant, model)
            ahead = self._pools.get(model)
            if ahead is None and chain:
                ahead = self._accounts.get((chain[0].tenant, model))
            if ahead is not None:
                return behind(ahead, model, self._by_users(eq_class, ahead))
        return Verdict(Reason.PENDING_EVALUATION, "The job is considered in the next cycle.")

    def _by_users(self, eq_class: EquivalenceClass, ahead: str) -> Numbers:
        """The shares of both users, where the job ahead comes first because its user holds less."""
        other = self._state.jobs[ahead]
        standings = self._standings
        if standings is None or not standings.of_users or other.job.tenant != eq_class.tenant:
            return {}
        mine = standings.of(eq_class.tenant, eq_class.user).share
        theirs = standings.of(eq_class.tenant, other.job.user).share
        if other.key.after != eq_class.jobs[0].after or theirs >= mine:
            return {}
        return {"user_share": mine, "user_share_ahead": theirs}

    def _lender(self, eq_class: EquivalenceClass, model: str) -> str | None:
        """The job ahead for which is kept what the class would borrow to start on this model."""
        state, way, kept = self._state, self._way, self._way.kept
        record = state.jobs[eq_class.head]
        for choice in ask_of(state, record).ways if kept else ():
            for demand in choice.starts:
                if model not in demand:
                    continue
                no = withheld(state, way, record.job, demand, way.all_kept)
                if no is not None:
                    return kept.get(no.account) or kept.get(no.account.cohort)
        return None

    def _reserved(self, head: Head) -> Verdict:
        verdict = self._way.told.get(head.job_id)
        if verdict is None:
            verdict = self._way.told[head.job_id] = reserved(head)
        return verdict


# --- the queueing policies ------------------------------------------------------------------------
class QueueingRules:
    """What a queueing policy has a blocked job close to the jobs behind it: a class for each.

    `closes_kept`: what is kept from a job is closed by it, too. `passes_closers`: whoever could be
    preempted for a job that closes something may pass it.
    """

    def __init__(self, *, closes_kept: bool = False, passes_closers: bool = False) -> None:
        self.closes_kept = closes_kept
        self.passes_closers = passes_closers

    def close(
        self,
        blocking: Blocking,
        eq_class: EquivalenceClass,
        record: JobRecord,
        wanted: frozenset[str],
    ) -> bool:
        """Close what the first job of the class, which wants these pools, is to close; whether the
        others of the class are behind it."""
        raise NotImplementedError

    def plan(self, _blocking: Blocking, _record: JobRecord, _reach: frozenset[str]) -> bool:
        """Whether the start is known of a job that quota or a limit of jobs keeps waiting: then
        what it needs is kept for it, and nothing closed."""
        return False

    def overdue(self, _blocking: Blocking, _eq_class: EquivalenceClass, _terms: Terms) -> bool:
        """Whether what passed the job may be preempted for it."""
        return False


class StrictFifo(QueueingRules):
    """The pools that it competes for; where quota refuses it, its tenant's quota, and what it would
    borrow."""

    def close(
        self,
        blocking: Blocking,
        eq_class: EquivalenceClass,
        record: JobRecord,
        wanted: frozenset[str],
    ) -> bool:
        if eq_class.refusal is None:
            blocking.close_pools(record, wanted)
        else:
            blocking.close_quota(eq_class, record)
        return True


class BestEffortFifo(QueueingRules):
    """Nothing; where shares decide, nodes are kept for the job whose turn it is."""

    def close(
        self,
        blocking: Blocking,
        eq_class: EquivalenceClass,
        _record: JobRecord,
        _wanted: frozenset[str],
    ) -> bool:
        blocking.line_up(eq_class)
        return False


class Backfill(QueueingRules):
    """The nodes of its start, and the quota where it waits for that; all that strict FIFO closes
    where no start is known and it has waited for longer than the threshold."""

    def close(
        self,
        blocking: Blocking,
        eq_class: EquivalenceClass,
        record: JobRecord,
        wanted: frozenset[str],
    ) -> bool:
        if eq_class.refusal is None:
            blocking.lead(record, wanted)
            return False
        if not (blocking.waits_first(record) and blocking.is_due(record)):
            return False
        blocking.close_quota(eq_class, record)
        return True

    def plan(self, blocking: Blocking, record: JobRecord, reach: frozenset[str]) -> bool:
        return blocking.plan(record, reach)

    def overdue(self, blocking: Blocking, eq_class: EquivalenceClass, terms: Terms) -> bool:
        return blocking.has_led(eq_class, terms)


RULES: Final[dict[QueueingPolicy, QueueingRules]] = {
    QueueingPolicy.STRICT_FIFO: StrictFifo(closes_kept=True),
    QueueingPolicy.BEST_EFFORT_FIFO: BestEffortFifo(),
    QueueingPolicy.BACKFILL: Backfill(passes_closers=True),
}
