"""Shapes of webhooks and their deliveries in REST."""

from typing import Any

from rest_framework import serializers

from tenants.api.fields import Boolean, Choice, Integer, List, Number, Text
from tenants.api.serializers import ReasonInput
from webhooks.models import LONGEST_URL, PENDING_S, DeliveryState, HookEvent, HookFormat


class WebhookChange(ReasonInput):
    """Settings of a webhook; what is not given stays."""

    name = Text(max_length=100, required=False)
    url = Text(
        max_length=LONGEST_URL,
        required=False,
        help_text="Must be https and a public address, unless an operator allows its network.",
    )
    format = Choice(HookFormat.values, required=False)
    events = List(
        child=Choice(HookEvent.values),
        max_length=len(HookEvent.values),
        required=False,
        help_text="Events to send. `gfr.high` only if `tenant` is null.",
    )
    pending_s = Integer(
        min_value=PENDING_S[0],
        max_value=PENDING_S[1],
        required=False,
        help_text="For `job.pending_long`: seconds that a job waits before the event is sent.",
    )
    gfr_percent = Number(
        min_value=0.1,
        max_value=100,
        required=False,
        help_text="For `gfr.high`: GFR of a cluster, in percent over five minutes, from which "
        "the event is sent.",
    )
    is_on = Boolean(
        required=False,
        help_text="Turning it off drops waiting deliveries; events that occur while it is off "
        "are never sent.",
    )


class WebhookInput(WebhookChange):
    name = Text(max_length=100)
    url = Text(max_length=LONGEST_URL)
    events = List(child=Choice(HookEvent.values), max_length=len(HookEvent.values))
    tenant = Text(
        max_length=63,
        required=False,
        allow_null=True,
        help_text="Sends events of this tenant and the tenants below it; null = of all tenants "
        "(operators only).",
    )


class WebhookOutput(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    tenant = serializers.CharField(source="tenant.name", default=None, allow_null=True)
    name = serializers.CharField()
    url = serializers.CharField()
    format = serializers.ChoiceField(HookFormat.choices)
    events = serializers.ListField(child=serializers.ChoiceField(HookEvent.choices))
    pending_s = serializers.IntegerField()
    gfr_percent = serializers.FloatField()
    is_on = serializers.BooleanField()
    off_reason = serializers.CharField(
        allow_blank=True, help_text="Why Kant turned it off; empty if a user did."
    )
    failing_since = serializers.DateTimeField(
        allow_null=True, help_text="Start of the failures; null = the last delivery succeeded."
    )
    last_ok_at = serializers.DateTimeField(
        allow_null=True, help_text="Last successful delivery, to the minute."
    )
    skipped = serializers.IntegerField(
        help_text="Events dropped because 10,000 deliveries were waiting."
    )
    previous_secret_until = serializers.DateTimeField(
        source="previous_until",
        allow_null=True,
        help_text="Until this time the previous secret signs, too.",
    )
    made_by = serializers.CharField(source="maker_name")
    created_at = serializers.DateTimeField()
    version = serializers.IntegerField()


class NewWebhookOutput(WebhookOutput):
    secret = serializers.CharField(
        allow_null=True,
        help_text="The secret, shown only once; null if the request is repeated, and for Slack "
        "messages, which are not signed.",
    )


class SecretOutput(serializers.Serializer[Any]):
    secret = serializers.CharField(
        allow_null=True, help_text="The secret, shown only once; null if the request is repeated."
    )
    previous_secret_until = serializers.DateTimeField(
        help_text="Until this time the previous secret signs, too: each delivery has two "
        "signatures."
    )


class DeliveryOutput(serializers.Serializer[Any]):
    """`status`, `outcome`, `took_ms`, `tried_at`: of the last try."""

    id = serializers.UUIDField()
    event = serializers.CharField()
    subject = serializers.CharField()
    state = serializers.ChoiceField(DeliveryState.choices)
    tries = serializers.IntegerField()
    status = serializers.IntegerField(allow_null=True, help_text="HTTP status; null = no answer.")
    outcome = serializers.CharField(
        allow_blank=True, help_text="Start of the answer, or what went wrong."
    )
    took_ms = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()
    tried_at = serializers.DateTimeField(allow_null=True)
    next_at = serializers.DateTimeField(allow_null=True, help_text="Time of the next try.")


class WholeDeliveryOutput(DeliveryOutput):
    body = serializers.CharField(allow_null=True, help_text="The body sent; null = no longer kept.")
