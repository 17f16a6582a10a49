"""Celery's way into webhooks."""

from celery import shared_task
from django.utils import timezone

from webhooks.outbox import collect as outbox
from webhooks.sending.rounds import send_due
from webhooks.services import deliveries


@shared_task
def collect() -> None:
    """What happened becomes deliveries, which are sent at once."""
    if outbox.collect(timezone.now()):
        deliveries.ring()


@shared_task
def send() -> None:
    """Deliveries whose time has come."""
    send_due()


@shared_task
def forget_old_deliveries() -> None:
    deliveries.forget_old_deliveries(timezone.now())
