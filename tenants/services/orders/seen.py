"""Orders as people see them: of quotas that they see."""

from datetime import timedelta
from uuid import UUID

from django.db.models import Exists, OuterRef, Prefetch, Q, QuerySet
from django.utils import timezone

from tenants.errors import NotFound
from tenants.models import OrderCell, QuotaOrder, User
from tenants.permissions import access_of
from tenants.services.orders.carrying_out import OVER

TOLD = timedelta(days=7)  # for so long the quota page tells of orders that are over


def visible_orders(viewer: User) -> QuerySet[QuotaOrder]:
    """Orders of quotas that the viewer sees, each with those of its cells."""
    visible = access_of(viewer).visible_tenants()
    cells = OrderCell.objects.select_related("tenant", "gpu_type", "record")
    if visible is not None:
        cells = cells.filter(tenant__in=visible)
    return QuotaOrder.objects.filter(
        Exists(cells.order_by().filter(order=OuterRef("pk")))
    ).prefetch_related(Prefetch("cells", queryset=cells, to_attr="seen"))


def told_orders(viewer: User) -> QuerySet[QuotaOrder]:
    """Those that are not over, and those that ended lately otherwise than was meant."""
    lately = Q(over_at__gte=timezone.now() - TOLD) & ~Q(outcome="")
    return visible_orders(viewer).filter(~Q(state__in=OVER) | lately)


def visible_order(viewer: User, order_id: UUID) -> QuotaOrder:
    """One of them; raises NotFound."""
    order = visible_orders(viewer).filter(pk=order_id).first()
    if order is None:
        raise NotFound(
            f"There is no order {order_id} that you may see. GET /api/v1/quota-orders lists them."
        )
    return order


def guaranteed_before(cell: OrderCell) -> float | None:
    """What was guaranteed, in GPUs, when the order was carried out; None where it was not, or
    there was no quota."""
    before = cell.record.before if cell.record else None
    return None if before is None else before["guaranteed"]
