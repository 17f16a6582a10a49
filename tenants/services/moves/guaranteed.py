"""How many GPUs tenants take along when they move."""

from collections.abc import Mapping

from tenants.models import Quota
from tenants.selectors import parents_by_id, subtree_ids
from tenants.services.quota_sums import promised_below


def moved_milli(tenants: Mapping[int, int | None]) -> int:
    """What is guaranteed below tenants that get another place, as it goes with them; {tenant: the
    one above it then}."""
    parents = parents_by_id()
    moved = [t for t, above in tenants.items() if t in parents and parents[t] != above]
    rows = Quota.objects.order_by().values_list("gpu_type", "tenant", "guaranteed_milli")
    by_type: dict[int, dict[int, int]] = {}
    for gpu_type, tenant, milli in rows if moved else ():
        by_type.setdefault(gpu_type, {})[tenant] = milli
    return sum(
        promised_below(parents, None, {t: given[t] for t in given.keys() & below})
        for below in (subtree_ids(tenant, parents) for tenant in moved)
        for given in by_type.values()
    )
