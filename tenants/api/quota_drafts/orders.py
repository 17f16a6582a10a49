"""REST for quota orders: changes made at a given time, taken back at a given time, or waiting for
approval."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import ListView, View, rehearsed
from tenants.api.effects import DryRunWithEffects, effects_body
from tenants.api.filters import OrderFilter
from tenants.api.idempotency import idempotent
from tenants.api.quota_drafts.serializers import OrderOutput
from tenants.api.schema import Shape
from tenants.api.serializers import RevertInput
from tenants.models import QuotaOrder, Scope, User
from tenants.services.audit import API
from tenants.services.orders import placing
from tenants.services.orders.carrying_out import rehearse
from tenants.services.orders.seen import (
    cells_seen,
    tenants_of,
    visible_order,
    visible_orders,
)
from tenants.services.previews.kept import quota_effects


class OrdersView(ListView):
    """Orders for quotas that you see: changes that take effect at a given time, only until a given
    time, or after approval; newest first. Orders that are over are kept for 30 days."""

    scope = Scope.QUOTA
    shapes = {"GET": Shape(OrderOutput, many=True)}

    page_order = ("-created_at", "-id")
    filterset_class = OrderFilter
    serializer_class = OrderOutput

    def get_queryset(self) -> QuerySet[QuotaOrder]:
        return visible_orders(self.actor)

    def get(self, _request: Request) -> Response:
        rows = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(shown_orders(self.actor, rows))


class OrderView(View):
    scope = Scope.QUOTA
    shapes = {"GET": Shape(OrderOutput)}

    def get(self, _request: Request, order_id: uuid.UUID) -> Response:
        return Response(shown_order(self.actor, order_id))


class OrderActView(View):
    """An action on an order; `act` is the service. `tells_effects`: a dry run says what it would do
    to jobs."""

    scope = Scope.QUOTA
    shapes = {"POST": Shape(OrderOutput, RevertInput)}
    act: Callable[..., QuotaOrder]
    tells_effects = False

    @idempotent()
    def post(self, _request: Request, order_id: uuid.UUID) -> Response:
        given = self.body(RevertInput)
        order = visible_order(self.actor, order_id)
        type(self).act(self.actor, order, reason=given["reason"], source=API, dry_run=self.dry_run)
        body = shown_order(self.actor, order.pk)
        if not self.dry_run:
            return Response(body)
        if not self.tells_effects:
            return rehearsed("update", body)
        found = rehearse(order)
        effects = quota_effects(self.actor, found.after, found.planned)
        return rehearsed("update", body, effects=effects_body(effects))


class OrderCancelView(OrderActView):
    """Cancels an order that has not been applied yet."""

    act = placing.cancel_order


class OrderEndView(OrderActView):
    """Takes back at once what a temporary order has changed."""

    act = placing.end_order


class OrderKeepView(OrderActView):
    """Makes permanent what a temporary order has changed."""

    act = placing.keep_order


class OrderApproveView(OrderActView):
    """Approves an order that waits for approval; its author may not. A dry run says what it would
    do to jobs if it were carried out now."""

    shapes = {"POST": Shape(OrderOutput, RevertInput, rehearsal=DryRunWithEffects)}
    act = placing.approve_order
    tells_effects = True


class OrderRefuseView(OrderActView):
    """Rejects an order that waits for approval; its author may not."""

    act = placing.refuse_order


ACTIONS = {
    "approve": OrderApproveView,
    "refuse": OrderRefuseView,
    "cancel": OrderCancelView,
    "end": OrderEndView,
    "keep": OrderKeepView,
}


def shown_order(viewer: User, order_id: uuid.UUID) -> dict[str, Any]:
    """Return an order as the viewer may see it now; raise NotFound."""
    return shown_orders(viewer, [visible_order(viewer, order_id)])[0]


def shown_orders(viewer: User, orders: Sequence[QuotaOrder]) -> list[dict[str, Any]]:
    """Return the representations of orders that `visible_orders` has read."""
    context = {"cells": cells_seen(orders), "tenants": tenants_of(orders, viewer)}
    return [dict(one) for one in OrderOutput(orders, many=True, context=context).data]
