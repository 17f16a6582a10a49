"""Celery's way into housekeeping."""

from celery import shared_task

from tenants.api import idempotency


@shared_task
def forget_old_keys() -> None:
    idempotency.forget_old_keys()
