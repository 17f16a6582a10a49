"""What each tenant uses, borrows and lends, of a tree of two levels."""

from scheduling.engine.queueing.quota import QuotaBook
from scheduling.engine.types import Quota, QuotaMode, Tenant
from scheduling.quota_use import quota_uses

TREE = {"products": None, "search": "products", "ads": "products", "research": None}
GUARANTEED = {"products": 115, "search": 40, "ads": 40, "research": 60}


def uses(**held: int) -> dict[str, tuple[int, int, int]]:
    """{tenant: (used, borrowed, lent)} in GPUs while each tenant's job holds so many."""
    book = QuotaBook()
    book.replace(
        [Tenant(name, parent) for name, parent in TREE.items()],
        [Quota(name, "A100", 1000 * n, QuotaMode.SHARED) for name, n in GUARANTEED.items()],
    )
    for since, (tenant, gpus) in enumerate(held.items()):
        book.book(f"of-{tenant}", tenant, "A100", 1000 * gpus, since)
    return {
        u.tenant: (u.used // 1000, u.borrowed // 1000, u.lent // 1000) for u in quota_uses(book)
    }


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
