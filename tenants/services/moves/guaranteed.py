"""How many GPUs are guaranteed to tenants, and how many move along with tenants."""

from collections.abc import Mapping

from tenants.models import Quota
from tenants.selectors import parents_by_id, subtree_ids
from tenants.services.quota_sums import promised_below


def guaranteed_by_type() -> dict[int, dict[int, int]]:
    """Return {GPU type: {tenant: guaranteed milli-GPU}} of all quotas."""
    given: dict[int, dict[int, int]] = {}
    rows = Quota.objects.order_by().values_list("gpu_type", "tenant", "guaranteed_milli")
    for gpu_type, tenant, milli in rows:
        given.setdefault(gpu_type, {})[tenant] = milli
    return given


def moved_milli(tenants: Mapping[int, int | None]) -> int:
    """Return the guaranteed milli-GPU that move along when tenants get another parent; `tenants` is
    {tenant: its new parent}."""
    parents = parents_by_id()
    moved = [t for t, above in tenants.items() if t in parents and parents[t] != above]
    by_type = guaranteed_by_type() if moved else {}
    return sum(
        promised_below(parents, None, {t: given[t] for t in given.keys() & below})
        for below in (subtree_ids(tenant, parents) for tenant in moved)
        for given in by_type.values()
    )
