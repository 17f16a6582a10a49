"""REST for orders to free whole nodes at a future time."""

import uuid

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.filters import PlanOrderFilter
from scheduling.api.node_serializers import NodeReason, PlanOrderInput, PlanOrderOutput
from scheduling.api.nodes import wished
from scheduling.models import PlanOrder
from scheduling.queries import selectors
from scheduling.services.clusters.plan_orders import Approved, cancel_plan, order_plan
from tenants.api.base import ListView, OperatorsOnly, View, rehearsed
from tenants.api.idempotency import idempotent
from tenants.api.schema import Shape
from tenants.errors import NotFound
from tenants.services.audit import API, Why


class PlanOrdersView(ListView):
    """Orders to free whole nodes at a future time, newest first.

    Finished orders are kept for 30 days. POST adds an order. Its plan is made at the ordered time,
    and carried out only if it stays within what was approved in the order. For operators.
    """

    permission_classes = [OperatorsOnly]
    shapes = {
        "GET": Shape(PlanOrderOutput, many=True),
        "POST": Shape(PlanOrderOutput, PlanOrderInput, creates=True),
    }

    page_order = ("-created_at", "-id")
    filterset_class = PlanOrderFilter
    queryset = PlanOrder.objects.none()
    serializer_class = PlanOrderOutput

    def get_queryset(self) -> QuerySet[PlanOrder]:
        cluster = selectors.cluster_by_name(self.kwargs["name"])
        return PlanOrder.objects.filter(cluster=cluster).select_related("cluster")

    def get(self, _request: Request, name: str) -> Response:  # noqa: ARG002
        return self.page(PlanOrderOutput)

    @idempotent()
    def post(self, _request: Request, name: str) -> Response:
        given = self.body(PlanOrderInput)
        order = order_plan(
            self.actor,
            selectors.cluster_by_name(name),
            wished(given),
            Approved(given["most_lost_gpu_s"], given["most_moves"]),
            starts_at=given["starts_at"],
            ends_at=given.get("ends_at"),
            why=Why(given["reason"], API),
            dry_run=self.dry_run,
        )
        body = dict(PlanOrderOutput(order).data)
        return rehearsed("create", body) if self.dry_run else Response(body, status=201)


class PlanOrderView(View):
    """One order to free whole nodes. For operators."""

    permission_classes = [OperatorsOnly]
    shapes = {"GET": Shape(PlanOrderOutput)}

    def get(self, _request: Request, name: str, order_id: uuid.UUID) -> Response:
        return Response(PlanOrderOutput(_known(name, order_id)).data)


class PlanOrderCancelView(View):
    """Cancel an order that has not been carried out. For operators."""

    permission_classes = [OperatorsOnly]
    shapes = {"POST": Shape(PlanOrderOutput, NodeReason)}

    @idempotent()
    def post(self, _request: Request, name: str, order_id: uuid.UUID) -> Response:
        why, order = Why(self.body(NodeReason)["reason"], API), _known(name, order_id)
        order = cancel_plan(self.actor, order, why=why, dry_run=self.dry_run)
        body = dict(PlanOrderOutput(order).data)
        return rehearsed("update", body) if self.dry_run else Response(body)


def _known(cluster: str, order_id: uuid.UUID) -> PlanOrder:
    """Return the plan order. Raises NotFound."""
    rows = PlanOrder.objects.filter(cluster=selectors.cluster_by_name(cluster), pk=order_id)
    order = rows.select_related("cluster").first()
    if order is None:
        raise NotFound(f"Cluster “{cluster}” has no plan order {order_id}.")
    return order
