"""The quota book balances after any sequence of changes, and refuses for the right reason."""

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.quota.accounts import Account, Cohort
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.quota.ledger import ledger
from scheduling.engine.reasons.quota import quota_verdict
from scheduling.engine.types import QuotaSpec, Sharing, TenantSpec
from scheduling.engine.verdict import Reason
from tests.cases import examples

MODEL = "H100"
FLAT = tuple(TenantSpec(name) for name in "abcd")
TREE = (
    TenantSpec("a"),
    TenantSpec("b", "a"),
    TenantSpec("c", "a"),
    TenantSpec("d", "c"),
    TenantSpec("e"),
)


def quotas_of(names: str) -> st.SearchStrategy[tuple[QuotaSpec, ...]]:
    """Quotas of all tenants but at most one, small enough that each limit is reached."""
    limit = st.none() | st.integers(0, 4)
    rows = st.tuples(
        *(
            st.builds(
                QuotaSpec,
                st.just(name),
                st.just(MODEL),
                st.integers(0, 10),
                st.sampled_from((Sharing.SHARED, Sharing.SHARED, Sharing.ISOLATED)),
                limit,
                limit,
            )
            for name in names
        )
    )
    without = st.none() | st.sampled_from(names)
    return st.tuples(rows, without).map(lambda d: tuple(q for q in d[0] if q.tenant != d[1]))


def edits(names: str) -> st.SearchStrategy[list[Any]]:
    ask = st.tuples(st.just("ask"), st.sampled_from(names), st.integers(1, 8))
    end = st.tuples(st.just("end"), st.integers(0, 30), st.just(0))
    quotas = st.tuples(st.just("quotas"), quotas_of(names), st.just(0))
    # Four of seven steps request quota, because most requests are refused.
    return st.lists(st.one_of(ask, ask, ask, ask, end, end, quotas), min_size=5, max_size=30)


def check_balance(book: QuotaBook, model: str = MODEL) -> None:
    """Own + borrowed = used; totals match their parts; lent never exceeds what is lendable."""
    lent: dict[str, int] = {}
    for loan in ledger(book, model):
        assert loan.milli > 0
        lent[loan.lender] = lent.get(loan.lender, 0) + loan.milli
    for account in book.accounts():
        if account.gpu_model != model:
            continue
        held = sum(
            b.held.get(model, 0)
            for b in book.bookings.values()
            if account.tenant in book.lineage(b.tenant)
        )
        assert account.used == held
        assert account.non_preemptible == sum(
            b.held.get(model, 0)
            for b in book.bookings.values()
            if b.non_preemptible and account.tenant in book.lineage(b.tenant)
        )
        cohort = account.cohort
        assert cohort.lendable == sum(a.lendable for a in cohort.members)
        assert cohort.borrowed == sum(a.over for a in cohort.members)
        assert account.over >= max(0, account.used - account.guaranteed)
        borrowed = [x.milli for x in ledger(book, model) if x.borrower == account.tenant]
        if account.own_jobs is None:
            assert sum(borrowed) == account.over
            idle = max(0, account.guaranteed - account.used)
            lends = min(account.lend_limit, idle) if account.shared else 0
            assert lent.get(account.tenant, 0) <= lends


def test_flat_book_agrees_with_the_rules_written_out() -> None:
    answers: Counter[str] = Counter()

    @settings(max_examples=examples(150))
    @given(quotas_of("abcd"), edits("abcd"))
    def agrees(quotas: Any, steps: Any) -> None:
        book = QuotaBook()
        book.replace(FLAT, quotas)
        rows = {q.tenant: q for q in quotas}
        used: dict[str, int] = {}
        jobs: list[tuple[str, str, int]] = []
        for i, (what, arg, amount) in enumerate(steps):
            if what == "quotas":
                rows = {q.tenant: q for q in arg}
                book.replace(FLAT, arg)
            elif what == "end" and jobs:
                name, tenant, milli = jobs.pop(arg % len(jobs))
                book.unbook(name, MODEL, milli)
                used[tenant] -= milli
            elif what == "ask":
                why = why_not_by_rules(rows, used, arg, amount)
                no = book.refusal(arg, MODEL, amount)
                assert (None if no is None else no.reason) == why
                answers[str(why)] += 1
                if no is None:
                    jobs.append((f"j{i}", arg, amount))
                    before = max(0, used.get(arg, 0) - rows[arg].guaranteed)
                    used[arg] = used.get(arg, 0) + amount
                    after = max(0, used[arg] - rows[arg].guaranteed)
                    assert book.book(f"j{i}", arg, MODEL, amount, float(i)) == after - before
            check_balance(book)

    agrees()
    # Otherwise the test would not notice a missing rule.
    assert min(answers[str(why)] for why in (None, *REFUSALS)) >= examples(150) // 10, answers


REFUSALS = (Reason.WAITING_FOR_QUOTA, Reason.BORROW_LIMIT_REACHED)


def why_not_by_rules(
    rows: dict[str, QuotaSpec], used: dict[str, int], tenant: str, asked: int
) -> Reason | None:
    """The rules of engine.md, Quota, for tenants without a tree, as literally as possible. Return
    None if the request is allowed."""
    if tenant not in rows:
        return Reason.WAITING_FOR_QUOTA
    row, after = rows[tenant], used.get(tenant, 0) + asked
    if after <= row.guaranteed:
        return None
    if row.mode is Sharing.ISOLATED:
        return Reason.WAITING_FOR_QUOTA
    if row.borrow_limit is not None and after - row.guaranteed > row.borrow_limit:
        return Reason.BORROW_LIMIT_REACHED
    lendable, borrowed = 0, after - row.guaranteed
    for other, its in rows.items():
        if other == tenant:
            continue
        idle = max(0, its.guaranteed - used.get(other, 0))
        if its.mode is Sharing.SHARED:
            lendable += idle if its.lend_limit is None else min(idle, its.lend_limit)
        borrowed += max(0, used.get(other, 0) - its.guaranteed)
    return None if borrowed <= lendable else Reason.WAITING_FOR_QUOTA


@settings(max_examples=examples(150))
@given(quotas_of("abcde"), edits("abcde"))
def test_a_tree_stays_balanced_and_no_isolated_ancestor_is_exceeded(
    quotas: Any, steps: Any
) -> None:
    book = QuotaBook()
    book.replace(TREE, quotas)
    jobs: list[tuple[str, int]] = []
    for i, (what, arg, amount) in enumerate(steps):
        if what == "quotas":
            book.replace(TREE, arg)
        elif what == "end" and jobs:
            name, milli = jobs.pop(arg % len(jobs))
            book.unbook(name, MODEL, milli)
        elif what == "ask" and book.chain(arg, MODEL):
            refusal = book.refusal(arg, MODEL, amount)
            if refusal is None:
                jobs.append((f"j{i}", amount))
                book.book(f"j{i}", arg, MODEL, amount, float(i))
                for account in book.chain(arg, MODEL):
                    if not account.shared:
                        assert account.used <= account.guaranteed
                    assert account.over <= account.borrow_limit or account.over <= 0
            else:
                assert refusal.allowed < amount
        check_balance(book)


@settings(max_examples=examples(100))
@given(quotas_of("abcde"), st.sampled_from("abcde"), st.integers(1, 40))
def test_the_ceiling_is_what_a_tenant_gets_while_nobody_else_uses_anything(
    quotas: Any, tenant: str, asked: int
) -> None:
    book = QuotaBook()
    book.replace(TREE, quotas)
    assert (book.refusal(tenant, MODEL, asked) is None) == (asked <= book.ceiling(tenant, MODEL))
    if not book.chain(tenant, MODEL):
        assert book.ceiling(tenant, MODEL) == 0


@settings(max_examples=examples(150))
@given(quotas_of("abcde"), edits("abcde"), st.sampled_from("abcde"), st.integers(1, 30))
def test_what_is_kept_for_a_borrower_is_left_to_it_and_nothing_else(
    quotas: Any, steps: Any, first: str, wants: int
) -> None:
    """Others still use their own guarantees; what they borrow does not reduce what the borrower
    waits for."""
    book = QuotaBook()
    book.replace(TREE, quotas)
    if not book.chain(first, MODEL):
        return
    for i, (what, tenant, amount) in enumerate(steps):
        if what != "ask" or not book.chain(tenant, MODEL):
            continue
        no = book.refusal(first, MODEL, wants)
        if no is None or tenant == first:
            if book.refusal(tenant, MODEL, amount) is None:
                book.book(f"j{i}", tenant, MODEL, amount, float(i))
            continue
        kept = book.awaited(first, {MODEL: wants}, no)
        refused = book.refusal(tenant, MODEL, amount) is not None
        if book.refusal(tenant, MODEL, amount, kept) is not None:
            by_right = not book.would_borrow(tenant, MODEL, amount)  # it may reclaim it
            assert refused or by_right or book.wants(tenant, {MODEL: amount}, kept)
            continue
        assert not refused
        before = {what: over_of(what) for what in kept}
        book.book(f"j{i}", tenant, MODEL, amount, float(i))
        assert {what: over_of(what) for what in kept} == before


@settings(max_examples=examples(300))
@given(
    *(quotas_of("abcde"), edits("abcde"), edits("abcde"), st.sampled_from("abcde")),
    *(st.integers(1, 30), st.booleans()),
)
def test_an_answer_stands_until_enough_has_changed(
    quotas: Any, before: Any, after: Any, tenant: str, asked: int, non_preemptible: bool
) -> None:
    """A refusal ends only once at least the refused amount is given back; one begins only once at
    least the slack is booked."""
    book = QuotaBook()
    book.replace(TREE, quotas)
    if not book.chain(tenant, MODEL):
        return
    book.reclaim(True)
    jobs = play(book, before, [])
    no = book.refusal(tenant, MODEL, asked, non_preemptible=non_preemptible)
    if no is None:
        begin = book.booked.get(MODEL, 0) + book.slack(
            tenant, MODEL, asked, non_preemptible=non_preemptible
        )
    else:
        end = book.returned.get(MODEL, 0) + asked - no.allowed
    for step in after:
        jobs = play(book, [step], jobs)
        if no is None and book.booked.get(MODEL, 0) <= begin:
            assert book.refusal(tenant, MODEL, asked, non_preemptible=non_preemptible) is None
        elif no is not None and book.returned.get(MODEL, 0) < end:
            assert book.refusal(tenant, MODEL, asked, non_preemptible=non_preemptible) is not None


def play(book: QuotaBook, steps: Any, jobs: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Book and give back as the steps say, where quota allows. Return the jobs that hold quota;
    those with an even amount are non-preemptible."""
    jobs = list(jobs)
    for what, arg, amount in steps:
        if what == "end" and jobs:
            name, milli = jobs.pop(arg % len(jobs))
            book.unbook(name, MODEL, milli)
        elif what == "ask" and book.chain(arg, MODEL):
            non_preemptible = amount % 2 == 0
            if book.refusal(arg, MODEL, amount, non_preemptible=non_preemptible) is None:
                name = f"j{book.version}"
                jobs.append((name, amount))
                book.book(name, arg, MODEL, amount, 0.0, non_preemptible=non_preemptible)
    return jobs


@settings(max_examples=examples(200))
@given(quotas_of("abcde"), edits("abcde"), st.randoms(use_true_random=False))
def test_fixed_jobs_hold_what_is_guaranteed_wherever_lenders_reclaim(
    quotas: Any, steps: Any, rng: Any
) -> None:
    """Fixed jobs follow the rules for all jobs and one more: at no level do they hold more than the
    guarantee. A job that turns fixed while it runs may exceed it; then no further one starts."""
    book = QuotaBook()
    book.replace(TREE, quotas)
    book.reclaim(True)
    jobs: list[tuple[str, int]] = []
    for i, (what, arg, amount) in enumerate(steps):
        if what == "quotas":
            book.replace(TREE, arg)
        elif what == "end" and jobs:
            name, milli = jobs.pop(arg % len(jobs))
            if rng.random() < 0.3:
                book.rebook(name, non_preemptible=not book.bookings[name].non_preemptible)
            book.unbook(name, MODEL, milli)
        elif what == "ask" and book.chain(arg, MODEL):
            chain = book.chain(arg, MODEL)
            within = all(a.non_preemptible + amount <= a.guaranteed for a in chain)
            soft = book.refusal(arg, MODEL, amount)
            no = book.refusal(arg, MODEL, amount, non_preemptible=True)
            assert (no is None) == (within and soft is None)
            assert (amount <= book.ceiling(arg, MODEL, non_preemptible=True)) >= within
            if no is None or soft is None:
                jobs.append((f"j{i}", amount))
                book.book(f"j{i}", arg, MODEL, amount, float(i), non_preemptible=no is None)
                if no is not None and rng.random() < 0.3:
                    book.rebook(f"j{i}", non_preemptible=True)
            elif no.non_preemptible:
                assert no.allowed == max(0, no.account.guaranteed - no.account.non_preemptible)
        check_balance(book)
    book.reclaim(False)
    for tenant in [t for t in "abcde" if book.chain(t, MODEL)]:
        assert book.refusal(tenant, MODEL, 1) == book.refusal(
            tenant, MODEL, 1, non_preemptible=True
        )


def over_of(what: Account | Cohort) -> int:
    """Return what is borrowed from it."""
    return what.over if isinstance(what, Account) else what.borrowed


def test_quota_below_use_makes_the_rest_borrowed_from_nobody() -> None:
    book = QuotaBook()
    book.replace(FLAT, (QuotaSpec("a", MODEL, 8),))
    book.book("j", "a", MODEL, 8, 5.0)
    book.replace(FLAT, (QuotaSpec("a", MODEL, 3), QuotaSpec("b", MODEL, 1)))
    assert [(x.borrower, x.lender, x.milli, x.job_id, x.since) for x in ledger(book)] == [
        ("a", "b", 1, "j", 5.0),
        ("a", "", 4, "j", 5.0),
    ]


def test_what_is_used_in_other_clusters_counts() -> None:
    book = QuotaBook()
    book.replace(FLAT, (QuotaSpec("a", MODEL, 8, Sharing.ISOLATED),), (("a", MODEL, 6, 5),))
    refusal = book.refusal("a", MODEL, 3)
    assert refusal is not None
    assert (refusal.reason, refusal.allowed) == (Reason.WAITING_FOR_QUOTA, 2)
    book.replace(FLAT, (QuotaSpec("a", MODEL, 8), QuotaSpec("b", MODEL, 8)), (("a", MODEL, 6, 5),))
    book.reclaim(True)
    assert book.refusal("a", MODEL, 3, non_preemptible=True) is None
    refusal = book.refusal("a", MODEL, 4, non_preemptible=True)
    assert refusal is not None
    assert (refusal.non_preemptible, refusal.allowed) == (True, 3)


def test_a_refusal_says_how_much_of_it_could_be_had() -> None:
    book = QuotaBook()
    book.replace(FLAT, (QuotaSpec("a", MODEL, 49_384), QuotaSpec("b", MODEL, 8_000)))
    book.book("j", "b", MODEL, 8_000, 0.0)
    refusal = book.refusal("a", MODEL, 64_000)
    assert refusal is not None
    assert quota_verdict(book, "a", refusal).summary == (
        "Needs 64 H100 GPUs. The idle quota of tenant a and what others can lend come to 49.384."
    )
    book.book("k", "a", MODEL, 49_384, 0.0)
    refusal = book.refusal("a", MODEL, 64_000)
    assert refusal is not None
    assert quota_verdict(book, "a", refusal).summary == (
        "Needs 64 H100 GPUs. Tenant a has used its quota, and no other tenant has idle quota to "
        "lend."
    )


def test_a_tree_that_bites_its_tail_ends() -> None:
    book = QuotaBook()
    book.replace(
        (TenantSpec("a", "b"), TenantSpec("b", "a")),
        (QuotaSpec("a", MODEL, 8), QuotaSpec("b", MODEL, 4)),
    )
    assert {account.tenant for account in book.chain("a", MODEL)} == {"a", "b"}
    assert book.refusal("a", MODEL, 1) is None
