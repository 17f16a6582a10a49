"""Celery tasks: each fetches what it names and calls one service."""

from celery import shared_task

from scheduling.services.loop import loop


@shared_task
def run_cycle(cluster_id: int) -> None:
    """The doorbell: one cluster has news."""
    loop.hear(cluster_id)
