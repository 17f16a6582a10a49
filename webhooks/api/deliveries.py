"""REST for the deliveries of a webhook."""

import uuid

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import ListView, View, shown
from tenants.api.filters import AnyOf, FilterSet
from tenants.api.idempotency import idempotent
from tenants.api.schema import Shape
from webhooks.api.serializers import DeliveryOutput, WholeDeliveryOutput
from webhooks.models import TEST, DeliveryState, HookDelivery, HookEvent
from webhooks.selectors import delivery_by_id, hook_by_id
from webhooks.services.deliveries import deliver_again


class DeliveryFilter(FilterSet):
    state = AnyOf(DeliveryState)
    event = AnyOf((*HookEvent.values, TEST))

    class Meta:
        model = HookDelivery
        fields: list[str] = []


class DeliveriesView(ListView):
    """What was sent, or waits for its next try, the newest first. It is kept for 14 days."""

    shapes = {"GET": Shape(DeliveryOutput, many=True)}

    page_order = ("-created_at", "-id")
    queryset = HookDelivery.objects.none()
    filterset_class = DeliveryFilter
    serializer_class = DeliveryOutput

    def get_queryset(self) -> QuerySet[HookDelivery]:
        return hook_by_id(self.actor, self.kwargs["webhook_id"]).deliveries.defer("body")

    def get(self, _request: Request, webhook_id: uuid.UUID) -> Response:  # noqa: ARG002
        return self.page(DeliveryOutput)


class DeliveryView(View):
    """One delivery with what is sent, which is kept for three days."""

    shapes = {"GET": Shape(WholeDeliveryOutput)}

    def get(self, _request: Request, webhook_id: uuid.UUID, delivery_id: uuid.UUID) -> Response:
        found = delivery_by_id(hook_by_id(self.actor, webhook_id), delivery_id)
        body = shown(WholeDeliveryOutput, found)
        return Response({**body, "body": found.body or None})


class RedeliverView(View):
    """Sends a delivery again, with the same `webhook-id`, and all its tries."""

    shapes = {"POST": Shape(DeliveryOutput)}

    @idempotent()
    def post(self, _request: Request, webhook_id: uuid.UUID, delivery_id: uuid.UUID) -> Response:
        found = delivery_by_id(hook_by_id(self.actor, webhook_id), delivery_id)
        return self.updated(DeliveryOutput, deliver_again(found, dry_run=self.dry_run))
