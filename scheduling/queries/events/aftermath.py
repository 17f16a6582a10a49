"""What happened to jobs in a span of time, to see what a change has done."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, FloatField, OuterRef, Q, QuerySet, Sum
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import PreemptionKind
from scheduling.models import JobEvent, Placement
from scheduling.models.jobs import PREEMPTED
from tenants.effects import AffectedJob, Aftermath

NAMED = 5
COLUMNS = ("job_id", "job__name", "job__tenant__name", "job__user__username", "job__gpu_milli")


def aftermath(
    since: datetime,
    until: datetime,
    gpu_types: Sequence[str],
    cluster: str,
    told: Sequence[str],
) -> Aftermath:
    """Return what happened to jobs of these GPU types, or of a cluster, by five statements.

    With neither, all jobs count. `told`: ids of jobs that were predicted to start.
    """
    events = JobEvent.objects.filter(at__gte=since, at__lt=until).order_by()
    if cluster:
        events = events.filter(job__cluster__name=cluster)
    elif gpu_types:
        places = Placement.objects.filter(job=OuterRef("job"), gpu_model__in=gpu_types)
        events = events.filter(Exists(places))
    started = events.filter(kind=Kind.ADMITTED)
    stopped = events.filter(reason=PREEMPTED)
    starts = started.values("job_id", "job__gpu_milli").distinct()
    sums = starts.aggregate(jobs=Count("job_id"), milli=Sum("job__gpu_milli"))
    cost = Cast(KeyTextTransform("cost_gpu_s", "evidence"), FloatField())
    lost = stopped.aggregate(
        jobs=Count("job_id", distinct=True),
        reclaimed=Count(
            "job_id", distinct=True, filter=Q(evidence__kind=PreemptionKind.RECLAIM.value)
        ),
        cost=Sum(cost),
    )
    return Aftermath(
        started=sums["jobs"],
        started_milli=sums["milli"] or 0,
        told_and_started=started.filter(job__in=[UUID(one) for one in told])
        .values("job_id")
        .distinct()
        .count(),
        stopped=lost["jobs"],
        reclaimed=lost["reclaimed"],
        lost_gpu_s=lost["cost"] or 0.0,
        starts=_largest(started),
        stops=_largest(stopped),
    )


def _largest(events: QuerySet[JobEvent]) -> list[AffectedJob]:
    rows: Any = events.order_by("-job__gpu_milli", "job_id").values_list(*COLUMNS).distinct()
    return [
        AffectedJob(str(job), name, tenant, user or "", milli)
        for job, name, tenant, user, milli in rows[:NAMED]
    ]
