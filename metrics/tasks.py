"""Celery's way into the recorder."""

from celery import shared_task
from django.utils import timezone

from metrics import services
from scheduling.models import Cluster


@shared_task
def record_samples() -> None:
    for cluster in Cluster.objects.filter(is_active=True):
        services.record_sample(cluster, timezone.now())


@shared_task
def thin_samples() -> None:
    services.thin_samples(timezone.now())
