"""A cluster's state under its current policy: what waits, and what was preempted lately."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Q, Sum
from django.utils import timezone

from metrics import selectors
from scheduling.models import Cluster, JobEvent
from scheduling.models.jobs import PREEMPTED

LATELY = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class PolicyStanding:
    """Waiting jobs, except those on hold: their number, their milli-GPU, since when the first
    waits, and how many have a reserved start; and how many jobs were preempted within `LATELY`."""

    waiting: int
    milli: int
    oldest: datetime | None
    reserved: int
    preempted: int


def standing_of(cluster: Cluster) -> PolicyStanding:
    found: dict[str, Any] = (
        selectors.waiting_jobs(cluster)
        .filter(held=False)
        .order_by()
        .aggregate(
            waiting=Count("pk"),
            milli=Sum("gpu_milli", default=0),
            oldest=Min("submitted_at"),
            reserved=Count("pk", filter=Q(reserved_start__isnull=False)),
        )
    )
    since = timezone.now() - LATELY
    events = JobEvent.objects.filter(reason=PREEMPTED, at__gte=since, job__cluster=cluster)
    return PolicyStanding(**found, preempted=events.order_by().values("job_id").distinct().count())
