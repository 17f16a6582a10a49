"""Quotas as a tree with a bar per tenant, all on one scale."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from scheduling.pages.tenants.tenants import in_tree_order
from scheduling.queries.quota_use import quota_uses
from tenants.facts import QuotaUse
from tenants.models import Tenant
from tenants.templatetags.ui import bar_milli

PARTS = ("guaranteed", "used", "borrowed", "lent")


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """What a tenant, including tenants below it, uses of its quotas of the selected GPU models, in
    milli-GPU. `full`: what the whole width of every bar stands for."""

    tenant: Tenant
    depth: int
    guaranteed: int
    used: int
    borrowed: int
    lent: int
    full: int


def quota_tree(gpu_model: str) -> list[QuotaRow]:
    """Return the tenants with quota or use, below their parents. Siblings are sorted by what they
    borrow, then by what they use, most first. `gpu_model`: "" = all models together."""
    totals: dict[str, Counter[str]] = {}
    for use in quota_uses():
        if gpu_model in ("", use.gpu_model):
            totals.setdefault(use.tenant, Counter()).update(_parts(use))
    tenants = list(Tenant.objects.all())
    names: dict[int | None, str] = {tenant.pk: tenant.name for tenant in tenants}
    above = {tenant.name: names.get(tenant.parent_id) for tenant in tenants}
    shown = _with_those_above((name for name, total in totals.items() if +total), above)
    for name in shown:
        totals.setdefault(name, Counter()).update(dict.fromkeys(PARTS, 0))
    full = max((bar_milli(**totals[name]) for name in shown), default=0)
    order = in_tree_order(
        [tenant for tenant in tenants if tenant.name in shown],
        lambda t: (-totals[t.name]["borrowed"], -totals[t.name]["used"], t.name),
    )
    return [
        QuotaRow(tenant, depth, **{part: totals[tenant.name][part] for part in PARTS}, full=full)
        for tenant, depth in order
    ]


def _parts(use: QuotaUse) -> dict[str, int]:
    return {part: getattr(use, part) for part in PARTS}


def _with_those_above(names: Iterable[str], above: dict[str, str | None]) -> set[str]:
    found: set[str] = set()
    for name in names:
        here: str | None = name
        while here is not None and here not in found:
            found.add(here)
            here = above.get(here)
    return found
