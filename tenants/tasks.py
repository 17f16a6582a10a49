"""Celery's way into housekeeping."""

from celery import shared_task
from django.contrib.sessions.backends.db import SessionStore

from tenants.api import idempotency
from tenants.services import tokens


@shared_task
def forget_old_keys() -> None:
    idempotency.forget_old_keys()


@shared_task
def forget_ended_tokens() -> None:
    tokens.forget_ended_tokens()


@shared_task
def forget_old_sessions() -> None:
    """Sign-ins that have expired; Django leaves their rows to whoever asks."""
    SessionStore.clear_expired()
