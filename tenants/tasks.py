"""Celery tasks of housekeeping."""

from celery import shared_task

from tenants.api import idempotency
from tenants.services import tokens
from tenants.services.drafts.edits import forget_old_drafts as delete_old_drafts
from tenants.services.orders.carrying_out import carry_out_due, forget_old_orders
from tenants.services.previews.happened import tell_what_happened as write_what_happened
from tenants.services.previews.kept import forget_old_previews
from tenants.sign_in.sessions import SessionStore


@shared_task
def forget_old_keys() -> None:
    idempotency.forget_old_keys()


@shared_task
def forget_old_drafts() -> None:
    delete_old_drafts()
    forget_old_orders()
    forget_old_previews()


@shared_task
def carry_out_orders() -> None:
    """Carry out the quota orders that are due."""
    carry_out_due()


@shared_task
def tell_what_happened() -> None:
    """Record what happened after changes that are an hour old, beside their predictions."""
    write_what_happened()


@shared_task
def forget_ended_tokens() -> None:
    tokens.forget_ended_tokens()


@shared_task
def forget_old_sessions() -> None:
    """Delete expired sessions; Django leaves that to the application."""
    SessionStore.clear_expired()
