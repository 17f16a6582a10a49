"""Deliveries that people ask for, and the end of old ones."""

import logging
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta

from celery import current_app
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from tenants.errors import Conflict
from tenants.outage import REDIS_ERRORS, Outage
from tenants.services.transactions import unit_of_work
from webhooks.models import TEST, DeliveryState, HookDelivery, Webhook
from webhooks.outbox.collect import delivery_of
from webhooks.outbox.messages import test_message

log = logging.getLogger(__name__)

TASK = "webhooks.tasks.send"
FORGET_S = 5
# Tests that wait for their turn, of one webhook.
MOST_TESTS = 5
BODIES_KEPT, KEPT = timedelta(days=3), timedelta(days=14)
BATCH, BUDGET_S, PAUSE = 1000, 20.0, 1.0

_outage = Outage(log, "Redis", "webhooks are sent by the next tick, not at once")


def ask_for_test(hook: Webhook, *, dry_run: bool = False) -> HookDelivery:
    """A test event for a webhook, also for one that is off. It is tried once, within seconds.
    Raises Conflict where MOST_TESTS wait already."""
    now = timezone.now()
    with unit_of_work(dry_run):
        waiting = hook.deliveries.filter(event=TEST, state=DeliveryState.WAITING)
        if waiting.count() >= MOST_TESTS:
            raise Conflict(
                f"{MOST_TESTS} tests of “{hook.name}” are already waiting. Wait until they are "
                "sent."
            )
        delivery = delivery_of(hook, test_message(hook, f"test-{uuid.uuid4()}", now), now)
        delivery.save(force_insert=True)
        transaction.on_commit(ring, robust=True)
    return delivery


def deliver_again(delivery: HookDelivery, *, dry_run: bool = False) -> HookDelivery:
    """Send a delivery once more, with the same id. Raises Conflict where its body is not kept any
    more, it waits for a try anyway, or its webhook is off."""
    with unit_of_work(dry_run):
        rows = HookDelivery.objects.select_for_update(of=("self",)).select_related("webhook")
        found = rows.get(pk=delivery.pk)
        if not found.body:
            raise Conflict(
                f"Deliveries are kept for {BODIES_KEPT.days} days, and this one is older."
            )
        if not found.webhook.is_on and found.event != TEST:
            raise Conflict(f"The webhook “{found.webhook.name}” is off. Turn it on first.")
        if found.state == DeliveryState.WAITING and found.tries == 0:
            raise Conflict("It has not been sent for the first time yet.")
        # As if it were new: it has all its tries again.
        found.state, found.tries, found.next_at = DeliveryState.WAITING.value, 0, timezone.now()
        found.save(update_fields=["state", "tries", "next_at"])
        transaction.on_commit(ring, robust=True)
    return found


def forget_old_deliveries(now: datetime, *, budget_s: float = BUDGET_S) -> int:
    """Delete deliveries that are over and older than KEPT, and the bodies of those older than
    BODIES_KEPT, a part at a time; returns how many rows were deleted or emptied."""
    deadline = time.monotonic() + budget_s
    over = HookDelivery.objects.exclude(state=DeliveryState.WAITING).order_by()
    old, bodies = (
        over.filter(created_at__lt=now - KEPT),
        over.filter(created_at__lt=now - BODIES_KEPT).exclude(body=""),
    )
    return _in_parts(old, lambda rows: rows.delete(), deadline) + _in_parts(
        bodies, lambda rows: rows.update(body=""), deadline
    )


def _in_parts(
    rows: QuerySet[HookDelivery], act: Callable[[QuerySet[HookDelivery]], object], deadline: float
) -> int:
    """Do something to rows that are none of these afterwards; returns to how many."""
    touched = 0
    while time.monotonic() < deadline:
        began = time.monotonic()
        ids = list(rows.values_list("pk", flat=True)[:BATCH])
        act(HookDelivery.objects.filter(pk__in=ids))
        touched += len(ids)
        if len(ids) < BATCH:
            break
        time.sleep(PAUSE * (time.monotonic() - began))  # others write, too
    return touched


def ring() -> None:
    """Have a worker send now; it looks every two seconds anyway."""
    try:
        current_app.send_task(TASK, expires=FORGET_S, retry=False)
        _outage.over()
    except REDIS_ERRORS as error:
        _outage.began(error)
