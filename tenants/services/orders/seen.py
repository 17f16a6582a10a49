"""Orders as people see them: only with quotas and tenants that they may see."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Prefetch, Q, QuerySet
from django.utils import timezone

from tenants.errors import NotFound
from tenants.models import OrderCell, OrderState, OrderTenant, Quota, QuotaOrder, User
from tenants.permissions import access_of
from tenants.selectors import visible_names
from tenants.services.drafts.conflicts import order_typed
from tenants.services.drafts.seen import Overtaken, overtaken
from tenants.services.moves.conflicts import OvertakenPlace, overtaken_place, shown_to
from tenants.services.moves.typed import as_typed, in_words, typed
from tenants.services.orders.carrying_out import KEPT, OVER
from tenants.services.quota_terms import gpus

TOLD = timedelta(days=7)  # how long the quota page shows orders that are over
PENDING = (OrderState.WAITING, OrderState.SCHEDULED)  # nothing is applied yet


@dataclass(frozen=True, slots=True)
class SeenOrderCell:
    """A quota of an order, next to the quota as it is now. `pending`: the order is not applied
    yet."""

    cell: OrderCell
    quota: Quota | None
    pending: bool

    @property
    def before(self) -> float | None:
        """The guarantee when the order was carried out, in GPUs; None if it was not, or there was
        no quota."""
        before = self.cell.record.before if self.cell.record else None
        return None if before is None else before["guaranteed"]

    @property
    def now(self) -> float | None:
        """The current guarantee, in GPUs; None = there is no quota."""
        return gpus(self.quota.guaranteed_milli) if self.quota else None

    @property
    def is_overtaken(self) -> bool:
        """Whether the quota has changed since the order was placed, so that the order can no longer
        be applied."""
        return self.pending and self.cell.version != (self.quota.version if self.quota else 0)

    def overtaken(self) -> Overtaken:
        """Return who changed it, with two statements."""
        cell = self.cell
        mine = order_typed(cell.guaranteed_milli, cell.terms)
        return overtaken(cell.tenant, cell.gpu_type, cell.version, self.quota, mine)


@dataclass(frozen=True, slots=True)
class SeenOrderTenant:
    """A tenant of an order. `names`: the tenants that the viewer sees."""

    one: OrderTenant
    pending: bool
    names: Container[str]

    @property
    def fields(self) -> dict[str, str]:
        """What it sets, as typed."""
        return self._typed(self.one.fields)

    @property
    def before(self) -> dict[str, str]:
        """The tenant's current state while the order is pending; afterwards its state when the
        order was carried out."""
        if self.pending:
            return self._shown(as_typed(self.one.tenant))
        return self._shown(self.one.base)

    @property
    def told(self) -> list[str]:
        """The change in words."""
        return in_words(self.fields, self._full(self.before))

    @property
    def overtaken(self) -> OvertakenPlace | None:
        """Who changed the tenant while the order was pending; None = nobody."""
        if not self.pending:
            return None
        found = overtaken_place(self.one.tenant, self.one.fields, self.one.base)
        return found.seen_by(self.names) if found else None

    def _typed(self, fields: Mapping[str, Any]) -> dict[str, str]:
        texts = typed(fields.get("parent"), fields.get("weight", 1.0))
        return self._shown({name: texts[name] for name in texts if name in fields})

    def _shown(self, texts: Mapping[str, str]) -> dict[str, str]:
        return shown_to(self.names, texts)

    def _full(self, texts: Mapping[str, str]) -> dict[str, str]:
        return as_typed(self.one.tenant) | dict(texts)


def tenants_of(orders: Iterable[QuotaOrder], viewer: User) -> dict[UUID, list[SeenOrderTenant]]:
    """Return {order: its tenants}, as loaded with the orders."""
    found = {one.pk: (one, one.seen_tenants) for one in orders}  # type: ignore[attr-defined]
    some = any(rows for _, rows in found.values())
    names = visible_names(viewer) if some else frozenset[str]()
    return {
        pk: [SeenOrderTenant(row, order.state in PENDING, names) for row in rows]
        for pk, (order, rows) in found.items()
    }


def visible_orders(viewer: User) -> QuerySet[QuotaOrder]:
    """Return orders of quotas and tenants that the viewer sees, each with the visible ones."""
    visible = access_of(viewer).visible_tenants()
    cells = OrderCell.objects.select_related("tenant", "gpu_type", "record")
    tenants = OrderTenant.objects.select_related("tenant__parent", "record")
    if visible is not None:
        cells = cells.filter(tenant__in=visible)
        tenants = tenants.filter(tenant__in=visible)
    return QuotaOrder.objects.filter(
        Exists(cells.order_by().filter(order=OuterRef("pk")))
        | Exists(tenants.order_by().filter(order=OuterRef("pk")))
    ).prefetch_related(
        Prefetch("cells", queryset=cells, to_attr="seen"),
        Prefetch("tenants", queryset=tenants, to_attr="seen_tenants"),
    )


def told_orders(viewer: User) -> QuerySet[QuotaOrder]:
    """Return orders that are not over, and those that ended recently with something to report."""
    lately = Q(over_at__gte=timezone.now() - TOLD) & ~Q(outcome="")
    return visible_orders(viewer).filter(~Q(state__in=OVER) | lately)


def visible_order(viewer: User, order_id: UUID) -> QuotaOrder:
    """Return one order; raise NotFound when the viewer may not see it."""
    order = visible_orders(viewer).filter(pk=order_id).first()
    if order is None:
        raise NotFound(
            f"There is no order {order_id} that you may see. GET /api/v1/quota-orders lists them."
        )
    return order


def cells_seen(orders: Iterable[QuotaOrder]) -> dict[UUID, list[SeenOrderCell]]:
    """Return {order: its quotas}, as loaded with the orders, with one statement for the current
    quotas."""
    orders = list(orders)
    found: dict[UUID, list[OrderCell]] = {
        one.pk: one.seen  # type: ignore[attr-defined]
        for one in orders
    }
    tenants = {cell.tenant_id for cells in found.values() for cell in cells}
    rows = Quota.objects.filter(tenant__in=tenants).order_by() if tenants else ()
    now = {(quota.tenant_id, quota.gpu_type_id): quota for quota in rows}
    return {
        order.pk: [
            SeenOrderCell(cell, now.get((cell.tenant_id, cell.gpu_type_id)), order.state in PENDING)
            for cell in found[order.pk]
        ]
        for order in orders
    }


def lapses_at(order: QuotaOrder) -> datetime | None:
    """Return when an order that waits for approval fails without it; None = it is not waiting."""
    if order.state != OrderState.WAITING:
        return None
    kept = order.created_at + KEPT
    return min(kept, order.ends_at) if order.ends_at else kept
