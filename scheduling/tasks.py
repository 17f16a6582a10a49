"""Celery tasks: each fetches what it names and calls one service."""

from celery import shared_task

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
