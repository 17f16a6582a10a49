"""REST for webhooks: read with an ETag, changed under it; tested; their secrets rotated."""

import uuid
from typing import Any

import django_filters as filters
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import ListView, View, etag, expected_version, location, rehearsed, shown
from tenants.api.filters import FilterSet, FlagFilter, of_tenant
from tenants.api.idempotency import idempotent
from tenants.api.schema import Shape
from tenants.api.serializers import ReasonInput
from tenants.errors import Invalid, NotFound
from tenants.permissions import access_of
from tenants.selectors import tenant_by_name
from tenants.services.audit import API, Why
from webhooks.api.serializers import (
    DeliveryOutput,
    NewWebhookOutput,
    SecretOutput,
    WebhookChange,
    WebhookInput,
    WebhookOutput,
)
from webhooks.models import Webhook
from webhooks.selectors import hook_by_id, visible_hooks
from webhooks.services.deliveries import ask_for_test
from webhooks.services.hooks import change_hook, create_hook, delete_hook, rotate_secret


class WebhookFilter(FilterSet):
    tenant = of_tenant("tenant__name")
    is_on = FlagFilter("is_on", label="true or false.")
    q = filters.CharFilter("name", "icontains", max_length=100, label="Part of the name.")

    class Meta:
        model = Webhook
        fields: list[str] = []


class WebhooksView(ListView):
    """Webhooks of the tenants that you administer, and, for operators, of the whole deployment.

    Each event is sent as a POST, signed as https://www.standardwebhooks.com says, and again for
    about a day until a receiver answers 2xx.
    """

    shapes = {
        "GET": Shape(WebhookOutput, many=True),
        "POST": Shape(NewWebhookOutput, WebhookInput, creates=True),
    }

    page_order = ("name", "id")
    queryset = Webhook.objects.none()
    filterset_class = WebhookFilter
    serializer_class = WebhookOutput

    def get_queryset(self) -> QuerySet[Webhook]:
        return visible_hooks(self.actor)

    def get(self, _request: Request) -> Response:
        return self.page(WebhookOutput)

    @idempotent(forget="secret")
    def post(self, _request: Request) -> Response:
        given = self.body(WebhookInput)
        name, why = given.pop("tenant", None), Why(given.pop("reason", ""), API)
        try:
            tenant = tenant_by_name(access_of(self.actor), name) if name is not None else None
        except NotFound as error:
            raise Invalid.field("tenant", error.detail) from None
        hook, secret = create_hook(self.actor, tenant, given, why=why, dry_run=self.dry_run)
        body = shown(WebhookOutput, hook)
        if self.dry_run:
            return rehearsed("create", body)
        headers = {**location(self.request, "api-webhook", hook.pk), **etag(hook.version)}
        return Response({**body, "secret": secret or None}, 201, headers=headers)


class WebhookView(View):
    """One webhook. PATCH sets what it names."""

    shapes = {
        "GET": Shape(WebhookOutput),
        "PATCH": Shape(WebhookOutput, WebhookChange, versioned=True),
        "DELETE": Shape(versioned=True),
    }

    def get(self, _request: Request, webhook_id: uuid.UUID) -> Response:
        hook = hook_by_id(self.actor, webhook_id)
        return Response(shown(WebhookOutput, hook), headers=etag(hook.version))

    def patch(self, request: Request, webhook_id: uuid.UUID) -> Response:
        given = self.changes(WebhookChange)
        why = Why(given.pop("reason", ""), API)
        hook = change_hook(
            self.actor,
            hook_by_id(self.actor, webhook_id),
            given,
            expected_version=expected_version(request),
            why=why,
            dry_run=self.dry_run,
        )
        answer = self.updated(WebhookOutput, hook)
        if not self.dry_run:
            answer["ETag"] = etag(hook.version)["ETag"]
        return answer

    def delete(self, request: Request, webhook_id: uuid.UUID) -> Response:
        hook = hook_by_id(self.actor, webhook_id)
        delete_hook(
            self.actor,
            hook,
            expected_version=expected_version(request),
            why=Why("", API),
            dry_run=self.dry_run,
        )
        return rehearsed("delete", None) if self.dry_run else Response(status=204)


class WebhookTestView(View):
    """Sends a test event, within seconds and once, also of a webhook that is off. The answer is its
    delivery, of which GET tells what became of it."""

    shapes = {"POST": Shape(DeliveryOutput, creates=True)}

    @idempotent()
    def post(self, _request: Request, webhook_id: uuid.UUID) -> Response:
        hook = hook_by_id(self.actor, webhook_id)
        delivery = ask_for_test(hook, dry_run=self.dry_run)
        body: dict[str, Any] = shown(DeliveryOutput, delivery)
        if self.dry_run:
            return rehearsed("create", body)
        where = location(self.request, "api-delivery", hook.pk, delivery.pk)
        return Response(body, 201, headers=where)


class WebhookRotateView(View):
    """Makes a new secret. The one before signs as well for a day: receivers take what either has
    signed, and can be changed one by one."""

    shapes = {"POST": Shape(SecretOutput, ReasonInput)}

    @idempotent(forget="secret")
    def post(self, _request: Request, webhook_id: uuid.UUID) -> Response:
        why = Why(self.body(ReasonInput).get("reason", ""), API)
        hook = hook_by_id(self.actor, webhook_id)
        made = rotate_secret(self.actor, hook, why=why, dry_run=self.dry_run)
        body = {"secret": made.secret, "previous_secret_until": made.hook.previous_until}
        if self.dry_run:
            return rehearsed("update", shown(SecretOutput, {**body, "secret": None}))
        return Response(shown(SecretOutput, body))
