"""Why a class could not start: limits, quota, the jobs ahead, or places."""

import math
from dataclasses import replace

from scheduling.engine.admission.candidates import ask_of
from scheduling.engine.admission.limits import over_job_limit
from scheduling.engine.admission.start import would_start
from scheduling.engine.backfill.kept_quota import withheld
from scheduling.engine.backfill.settled import UNPLANNED_AT_ALL
from scheduling.engine.backfill.terms import ahead_in
from scheduling.engine.backfill.walk import Walk
from scheduling.engine.memo import WOULD_START, Finding, Question
from scheduling.engine.queue.preemption_delay import AFTER_PREEMPTED_S, delay_of
from scheduling.engine.queue.reservations import Head, Terms
from scheduling.engine.queue.waiting import EquivalenceClass, Unplanned
from scheduling.engine.reasons.behind import Numbers, behind, quota_reserved, reserved, to_borrow
from scheduling.engine.reasons.quota import quota_verdict
from scheduling.engine.verdict import PREEMPTS_FROM, PROTECTED_UNTIL, Reason, Verdict, counted


class _WouldStart(Question):
    """Whether only reserved nodes keep the class waiting, with these jobs ahead."""

    def stands(self, _state: object, _subject: object, known: Finding, depends_on: object) -> bool:
        return known.depends_on is depends_on


# Not checked: it only chooses a reason, which may be as old as the numbers in it.
_WOULD_START = _WouldStart(WOULD_START, checked=False)


def why(walk: Walk, eq_class: EquivalenceClass, terms: Terms, wanted: frozenset[str]) -> Verdict:
    capped = over_job_limit(walk.state, walk.state.jobs[eq_class.head])
    if capped is not None:
        return capped
    if eq_class.refusal is not None:
        tenant = walk.state.jobs[eq_class.head].job.tenant
        return quota_verdict(walk.state.book, tenant, eq_class.refusal)
    if terms.avoid and _would_start(walk, eq_class, terms):
        if terms.claim.avoid:
            return _reserved(walk, walk.way.heads[min(m for m in wanted if m in walk.way.heads)])
        holds = ahead_in(walk, wanted).holds
        return _reserved(walk, next(h for h in holds if h.nodes & terms.avoid))
    if eq_class.failure is not None:
        return eq_class.failure
    if terms.closed:
        return behind_whom(walk, eq_class, terms)
    return Verdict(Reason.PENDING_EVALUATION, "The job is considered in the next cycle.")


def behind_whom(walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> Verdict:
    """Return the reason for pools that are closed to the class.

    Name the first of them that is still closed by what is known now: a start since then may have
    used up what was kept.
    """
    if terms.bar is not None:
        return quota_reserved(terms.bar)
    for model in sorted(terms.closed):
        lender = _lender(walk, eq_class, model)
        if lender is not None:
            return to_borrow(lender, model, _by_users(walk, eq_class, lender))
        ahead = walk.way.queues.get((eq_class.tenant, eq_class.queue, model))
        if ahead is not None:
            return behind(ahead, model, {})
        head = walk.way.heads.get(model)
        if head is not None and head.job_id != eq_class.head:
            return _reserved(walk, head)
        chain = walk.state.book.chain(eq_class.tenant, model)
        ahead = walk.way.pools.get(model)
        if ahead is None and chain:
            ahead = walk.way.accounts.get((chain[0].tenant, model))
        if ahead is not None:
            return behind(ahead, model, _by_users(walk, eq_class, ahead))
    return Verdict(Reason.PENDING_EVALUATION, "The job is considered in the next cycle.")


def not_yet(walk: Walk, eq_class: EquivalenceClass, terms: Terms, verdict: Verdict) -> Verdict:
    """Add to the reason when the job may preempt others.

    That is when it has waited for long enough, or when jobs that it could preempt are no longer
    protected.
    """
    state, now, why = walk.state, walk.out.now, walk.state.jobs[eq_class.head].no_plan
    claim = terms.claim
    plans = Unplanned(state.allows_plans, None, barred=claim.barred, turn_nodes=claim.turn_nodes)
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


def _would_start(walk: Walk, eq_class: EquivalenceClass, terms: Terms) -> bool:
    """Return whether only reserved nodes keep the class waiting.

    The answer costs as much as a start and only chooses a reason. It is therefore found anew no
    more often than numbers are told.
    """
    memo, mark = walk.state.memo, walk.way.mark
    known = memo.recall(_WOULD_START, eq_class, mark)
    if known is not None:
        return bool(known.answer)
    would = would_start(walk.state, walk.state.jobs[eq_class.head], terms.closed)
    until = walk.out.now + walk.out.refresh_s
    memo.note(_WOULD_START, eq_class, would, mark, until)
    return would


def _by_users(walk: Walk, eq_class: EquivalenceClass, ahead: str) -> Numbers:
    """Return the shares of both users if the job ahead goes first because its user holds less."""
    other = walk.state.jobs[ahead]
    standings = walk.standings
    if standings is None or not standings.of_users or other.job.tenant != eq_class.tenant:
        return {}
    mine = standings.of(eq_class.tenant, eq_class.user).share
    theirs = standings.of(eq_class.tenant, other.job.user).share
    if other.key.after != eq_class.jobs[0].after or theirs >= mine:
        return {}
    return {"user_share": mine, "user_share_ahead": theirs}


def _lender(walk: Walk, eq_class: EquivalenceClass, model: str) -> str | None:
    """Return the job ahead for which Kant keeps what the class would borrow on this model."""
    state, way, kept = walk.state, walk.way, walk.way.kept
    record = state.jobs[eq_class.head]
    for choice in ask_of(state, record).ways if kept else ():
        for demand in choice.starts:
            if model not in demand:
                continue
            no = withheld(state, way, record.job, demand, way.all_kept)
            if no is not None:
                return kept.get(no.account) or kept.get(no.account.cohort)
    return None


def _reserved(walk: Walk, head: Head) -> Verdict:
    verdict = walk.way.told.get(head.job_id)
    if verdict is None:
        verdict = walk.way.told[head.job_id] = reserved(head)
    return verdict
