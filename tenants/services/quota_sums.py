"""The sums that quotas must obey along the tenant tree, as pure arithmetic on milli-GPU.

A tenant without a quota of its own is transparent: the quotas below it count against the nearest
quota above it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tenants.permissions import lineage

Parents = Mapping[int, int | None]
Guaranteed = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Overpromise:
    """Guarantees that exceed what they are made from. `over` None = installed capacity."""

    over: int | None
    promised: int
    exists: int


def nearest_above(parents: Parents, tenant: int, quotas: Guaranteed) -> int | None:
    """Return the closest ancestor with a quota."""
    return next((t for t in lineage(parents, parents.get(tenant)) if t in quotas), None)


def promised_below(parents: Parents, tenant: int | None, quotas: Guaranteed) -> int:
    """Return the sum of guarantees that count directly against `tenant` (None = against
    capacity)."""
    return sum(milli for t, milli in quotas.items() if nearest_above(parents, t, quotas) == tenant)


def excess_of(
    parents: Parents,
    before: Guaranteed,
    after: Guaranteed,
    installed: int | None,
    *,
    parents_before: Parents | None = None,
) -> Overpromise | None:
    """Return the first sum that `after` breaks and that `before` kept, or broke by less.

    So an excess that already exists may be reduced step by step. `installed` None = unknown.
    `parents_before`: the tree before, when it changes too.
    """
    tree_before = parents if parents_before is None else parents_before
    for tenant in (*after, None):
        exists = installed if tenant is None else after[tenant]
        if exists is None:
            continue
        over = promised_below(parents, tenant, after) - exists
        if over <= 0:
            continue
        had = exists if tenant is None else before.get(tenant, 0)
        if over > promised_below(tree_before, tenant, before) - had:
            return Overpromise(tenant, over + exists, exists)
    return None
