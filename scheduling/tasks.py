"""Celery tasks: each fetches what it names and calls one service."""

from celery import shared_task
from celery.signals import worker_shutdown

from scheduling.models import Cluster
from scheduling.services.cycle import scheduler


@shared_task
def run_cycle(cluster_id: int) -> None:
    """The doorbell: one cluster has news."""
    scheduler.run(cluster_id)


@shared_task
def tick() -> None:
    """The tick: time has passed for every cluster."""
    for cluster_id in Cluster.objects.filter(is_active=True).values_list("id", flat=True):
        scheduler.run(cluster_id)


@worker_shutdown.connect
def _hand_over(**_: object) -> None:
    """Who is told to end lets a standby go on at once, not after its lease."""
    scheduler.stop()
