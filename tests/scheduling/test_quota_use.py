"""What each tenant of a two-level tree uses, borrows and lends."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.types import QuotaSpec, Sharing, TenantSpec
from scheduling.queries.quota_use import quota_uses
from tenants.facts import HIDDEN, QuotaUse

TREE = {"products": None, "search": "products", "ads": "products", "research": None}
GUARANTEED = {"products": 115, "search": 40, "ads": 40, "research": 60}
TREE_AND_QUOTAS = (
    [TenantSpec(name, parent) for name, parent in TREE.items()],
    [QuotaSpec(name, "A100", 1000 * n, Sharing.SHARED) for name, n in GUARANTEED.items()],
)


def book_of(**held: int) -> QuotaBook:
    """Return the book while each tenant's job holds this many GPUs."""
    book = QuotaBook()
    book.replace(*TREE_AND_QUOTAS)
    for since, (tenant, gpus) in enumerate(held.items()):
        book.book(f"of-{tenant}", tenant, "A100", 1000 * gpus, since)
    return book


def uses(**held: int) -> dict[str, tuple[int, int, int]]:
    """Return {tenant: (used, borrowed, lent)} in GPUs."""
    found = quota_uses(book_of(**held))
    return {u.tenant: (u.used // 1000, u.borrowed // 1000, u.lent // 1000) for u in found}


def loans(**held: int) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """Return {tenant: (borrowed from whom, lent to whom)} in milli-GPU, for tenants with loans."""
    found = quota_uses(book_of(**held))
    ends = {u.tenant: (dict(u.borrowed_from), dict(u.lent_to)) for u in found}
    return {tenant: both for tenant, both in ends.items() if any(both)}


def test_what_a_tenant_lets_its_own_children_use_is_not_lent():
    seen = uses(ads=75)
    assert seen["ads"] == (75, 35, 0)
    assert seen["search"] == (0, 0, 0)
    assert seen["products"] == (75, 0, 0)


def test_what_a_child_borrows_beyond_its_group_is_borrowed_by_its_parent_only():
    seen = uses(ads=90, search=40)
    assert seen["products"] == (130, 15, 0)
    assert seen["ads"] == (90, 50, 0)
    assert seen["research"] == (0, 0, 15)


def test_siblings_of_the_parent_are_lent_to():
    seen = uses(research=80)
    assert seen["research"] == (80, 20, 0)
    assert seen["products"] == (0, 0, 20)


def test_each_loan_is_told_at_both_ends():
    assert loans(research=80) == {
        "research": ({"products": 20_000}, {}),
        "products": ({}, {"research": 20_000}),
    }


def test_what_a_parent_has_left_for_its_children_comes_from_it_and_is_not_lent():
    assert loans(ads=90, search=40) == {
        "ads": ({"products": 50_000}, {}),
        "products": ({"research": 15_000}, {}),
        "research": ({}, {"products": 15_000}),
    }


def test_what_a_parent_itself_uses_of_its_children_is_within_its_own_quota():
    assert loans(products=50) == {"ads": ({}, {"products": 15_000})}


@given(st.lists(st.tuples(st.sampled_from(sorted(TREE)), st.integers(1, 60), st.booleans())))
def test_uses_depend_on_what_tenants_hold_not_on_their_jobs(jobs):
    """The book for pages can therefore be built from sums."""
    by_job, by_sums = book_of(), QuotaBook()
    held, fixed = Counter(), Counter()
    for since, (tenant, gpus, preemptible) in enumerate(jobs):
        by_job.book(f"{since}", tenant, "A100", 1000 * gpus, since, non_preemptible=not preemptible)
        held[tenant] += 1000 * gpus
        fixed[tenant] += 0 if preemptible else 1000 * gpus
    by_sums.replace(*TREE_AND_QUOTAS, [(t, "A100", held[t], fixed[t]) for t in held])
    assert quota_uses(by_sums) == quota_uses(by_job)


def test_of_tenants_somebody_may_not_see_only_the_sum_is_told():
    use = QuotaUse("a", "A100", 0, 9, 9, 0, {"b": 5, "c": 3, "d": 1}, {})
    assert use.seen_by({"a", "c"}).borrowed_from == {"c": 3, HIDDEN: 6}
    assert use.seen_by({"b", "c", "d"}).borrowed_from == use.borrowed_from
