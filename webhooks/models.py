"""Webhooks, what is to be delivered to them, and how far what happened has been read."""

import uuid

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from tenants.models import Tenant

DAY_S = 86400
# A job that waits for less than a minute waits for no reason worth a message.
PENDING_S = (60, 30 * DAY_S)
LONGEST_URL = 2000


class HookEvent(models.TextChoices):
    """What a webhook may be told of."""

    STARTED = "job.started", "Job started"
    PENDING_LONG = "job.pending_long", "Job waits long"
    PREEMPTED = "job.preempted", "Job preempted"
    SUCCEEDED = "job.succeeded", "Job succeeded"
    FAILED = "job.failed", "Job failed"
    CANCELLED = "job.cancelled", "Job cancelled"
    QUOTA = "quota.changed", "Quota changed"
    GFR = "gfr.high", "Fragmentation (GFR) high"


# Sent on request, to see whether a receiver takes anything.
TEST = "webhook.test"


class HookFormat(models.TextChoices):
    STANDARD = "standard", "Standard Webhooks (signed JSON)"
    SLACK = "slack", "Slack message"


class Webhook(models.Model):
    """An address that is told of events of `tenant` and those below it; null = of the whole
    deployment. `version` is the ETag, and counts what people change."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.CASCADE, related_name="webhooks")
    name = models.CharField(max_length=100)
    url = models.CharField(max_length=LONGEST_URL)
    format = models.CharField(
        max_length=16, choices=HookFormat.choices, default=HookFormat.STANDARD.value
    )
    events = models.JSONField(default=list)  # values of HookEvent, in its order
    # How long a job waits before that is told, and the GFR of a cluster from which on it is.
    pending_s = models.PositiveIntegerField(
        default=3600, validators=[MinValueValidator(PENDING_S[0]), MaxValueValidator(PENDING_S[1])]
    )
    gfr_percent = models.FloatField(
        default=10.0, validators=[MinValueValidator(0.1), MaxValueValidator(100)]
    )
    is_on = models.BooleanField(default=True)
    off_reason = models.TextField(blank=True)  # why Kant turned it off; "" = a person did
    # Its secret is made from the site's key, this row's id and this number (signing.py). The one
    # before signs as well until `previous_until`.
    secret_number = models.PositiveIntegerField(default=1)
    previous_until = models.DateTimeField(null=True, blank=True)
    maker = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    maker_name = models.CharField(max_length=150)
    version = models.PositiveBigIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    # What happened before it was turned on is not told.
    since = models.DateTimeField()
    # Since when nothing could be delivered; null = the last delivery was taken.
    failing_since = models.DateTimeField(null=True, blank=True)
    last_ok_at = models.DateTimeField(null=True, blank=True)
    # Events not told because too many deliveries waited.
    skipped = models.PositiveBigIntegerField(default=0)
    # Jobs that became overdue by then were told of; clusters that were told to be fragmented and
    # still are, by name.
    pending_until = models.DateTimeField()
    high = models.JSONField(default=list, blank=True)

    class Meta:
        ordering = ["name", "id"]

    def __str__(self) -> str:
        return self.name


class DeliveryState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    DELIVERED = "delivered", "Delivered"
    FAILED = "failed", "Failed"


class HookDelivery(models.Model):
    """One event for one webhook: what is sent, and what became of it. `key` names the event, so
    that none is told twice; the receiver gets `id`, the same at each try."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries")
    key = models.CharField(max_length=100)
    event = models.CharField(max_length=32)
    subject = models.CharField(max_length=200, blank=True)  # e.g. "vision / train-1"
    body = models.TextField(blank=True)  # "" = not kept any more
    state = models.CharField(
        max_length=16, choices=DeliveryState.choices, default=DeliveryState.WAITING.value
    )
    tries = models.PositiveIntegerField(default=0)
    # Of the last try: the code of the answer, null = there was none; what was wrong, or how the
    # answer begins; how long it took; when it began.
    status = models.PositiveSmallIntegerField(null=True)
    outcome = models.CharField(max_length=300, blank=True)
    took_ms = models.PositiveIntegerField(null=True)
    tried_at = models.DateTimeField(null=True)
    next_at = models.DateTimeField(null=True)  # of the next try; null = there is none
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        verbose_name_plural = "hook deliveries"
        constraints = [
            models.UniqueConstraint(fields=["webhook", "key"], name="one_delivery_of_an_event"),
        ]
        indexes = [
            models.Index(fields=["webhook", "-created_at", "-id"], name="deliveries_of_a_hook"),
            models.Index(
                fields=["created_at"], condition=~models.Q(body=""), name="deliveries_with_body"
            ),
            models.Index(
                fields=["next_at"], condition=models.Q(state="waiting"), name="deliveries_due"
            ),
        ]


class HookOutbox(models.Model):
    """The one row that says how far events were read, and who sends now.

    Up to `read_to` the events of jobs were read, except `gaps`: [[id, since when it is missing],
    …], which may be of transactions that commit late. `version` guards each step of the reader.
    """

    read_to = models.BigIntegerField(default=0)
    gaps = models.JSONField(default=list)
    audited_to = models.DateTimeField()  # records of the audit trail were read up to then
    watched_at = models.DateTimeField()  # when waits and GFR were looked at last
    version = models.PositiveBigIntegerField(default=1)
    sender = models.CharField(max_length=64, blank=True)
    sender_until = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "outboxes"
