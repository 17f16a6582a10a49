"""What quotas guaranteed, and where tenants were in the tree, at any time in the past: the current
state, with the changes of the audit trail undone."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from metrics.gpu_time.totals import MICROSECOND
from tenants.models import AuditRecord, Quota, Tenant

QUOTA_CHANGES = ("quota.changed", "quota.deleted")
TREE_CHANGES = ("tenant.created", "tenant.changed", "tenant.deleted")


class TenantPlace(NamedTuple):
    """A tenant's place: the name of its parent. `tenant_id` None: it was deleted."""

    parent: str | None
    tenant_id: int | None


class GuaranteeChange(NamedTuple):
    """`milli`: guaranteed from then on; None = the quota no longer exists."""

    at: datetime
    tenant: str
    gpu_model: str
    milli: int | None


class TreeChange(NamedTuple):
    """`place`: from then on; None = the tenant no longer exists."""

    at: datetime
    tenant: str
    place: TenantPlace | None


@dataclass(slots=True)
class GuaranteeHistory:
    """Tenants and guarantees (milli-GPU), by name, at one instant, and the changes from then to
    another instant, in order."""

    tree: dict[str, TenantPlace]
    guaranteed: dict[tuple[str, str], int]
    changes: list[GuaranteeChange | TreeChange] = field(default_factory=list)

    def apply(self, change: GuaranteeChange | TreeChange) -> None:
        if isinstance(change, GuaranteeChange):
            _set(self.guaranteed, (change.tenant, change.gpu_model), change.milli)
        else:
            _set(self.tree, change.tenant, change.place)

    def lineage(self, tenant: str) -> tuple[str, ...]:
        """Return the tenant and its ancestors, nearest first. Ends even if the tree is damaged."""
        seen: dict[str, None] = {}
        name: str | None = tenant
        while name is not None and name not in seen:
            seen[name] = None
            place = self.tree.get(name)
            name = place.parent if place else None
        return tuple(seen)

    def guarantee(self, tenant: str, gpu_model: str) -> int | None:
        """Return what the tenant with all below it may hold without borrowing. None if it has no
        quota of its own and uses an ancestor's."""
        own = self.guaranteed.get((tenant, gpu_model))
        if own is not None:
            return own
        inherits = any((name, gpu_model) in self.guaranteed for name in self.lineage(tenant))
        return None if inherits else 0


def history(begin: datetime, end: datetime) -> GuaranteeHistory:
    """Return the state as of `begin`, with the changes before `end`."""
    quotas = Quota.objects.order_by().values_list(
        "tenant__name", "gpu_type__name", "guaranteed_milli"
    )
    tenants = Tenant.objects.order_by().values_list("name", "parent__name", "pk")
    found = GuaranteeHistory(
        {name: TenantPlace(parent, pk) for name, parent, pk in tenants},
        {(tenant, gpu_type): milli for tenant, gpu_type, milli in quotas},
    )
    records = AuditRecord.objects.filter(action__in=QUOTA_CHANGES + TREE_CHANGES, at__gt=begin)
    for record in records.order_by("-at", "-id"):
        before, after = _both(record)
        found.apply(before)
        if record.at < end:
            found.changes.append(after)
    found.changes.reverse()
    return found


def _both(record: AuditRecord) -> tuple[GuaranteeChange | TreeChange, GuaranteeChange | TreeChange]:
    """Return the states before and after a recorded change."""
    at = record.at
    if record.action in QUOTA_CHANGES:
        tenant, _, gpu_type = record.subject.partition(" / ")
        was, became = _milli(record.before), _milli(record.after)
        return GuaranteeChange(at, tenant, gpu_type, was), GuaranteeChange(
            at, tenant, gpu_type, became
        )
    # The record of a deletion refers to the parent.
    pk = None if record.after is None else record.tenant_id
    name = record.subject
    was_at, is_at = _place(record.before, pk), _place(record.after, pk)
    return TreeChange(at, name, was_at), TreeChange(at, name, is_at)


def _milli(document: Any) -> int | None:
    return None if document is None else round(1000 * document["guaranteed"])


def _place(document: Any, tenant_id: int | None) -> TenantPlace | None:
    return None if document is None else TenantPlace(document["parent"], tenant_id)


def _set(values: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def guaranteed(begin: datetime, end: datetime) -> Counter[tuple[str, str]]:
    """Return the milli-GPU x milliseconds guaranteed in [begin, end), by names of tenant and GPU
    type."""
    found = history(begin, end)
    since = dict.fromkeys(found.guaranteed, begin)
    sums: Counter[tuple[str, str]] = Counter()
    for change in found.changes:
        if isinstance(change, GuaranteeChange):
            key = change.tenant, change.gpu_model
            length = change.at - since.get(key, begin)
            sums[key] += found.guaranteed.get(key, 0) * (length // MICROSECOND)
            since[key] = change.at
        found.apply(change)
    for key, milli in found.guaranteed.items():
        sums[key] += milli * ((end - since.get(key, begin)) // MICROSECOND)
    return Counter({key: (us + 500) // 1000 for key, us in sums.items()})
