"""What is told when it has lasted, or has become too much: waits of jobs, and GFR of clusters.
Nobody writes these down as events."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import DateTimeField, F, Max, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce
from django.urls import reverse

from metrics.models import MetricSample
from scheduling.engine.states import WAITING, JobEventKind
from scheduling.models import Cluster, Job, JobEvent
from webhooks.models import HookEvent, Webhook
from webhooks.outbox.happened import job_data, subject_of_job, with_what_is_told
from webhooks.outbox.messages import HookMessage

EVERY = timedelta(seconds=15)
# Of so many jobs a step tells; the next one goes on.
MOST_JOBS = 500
# GFR is that of so long on average: a gang that starts is no reason for a message.
GFR_OVER = timedelta(minutes=5)
# Once told it is told again only after it has been so much below, relative to the threshold.
CALM = 0.8


def overdue(
    hook: Webhook, tenants: Iterable[int] | None, now: datetime
) -> tuple[list[HookMessage], datetime]:
    """Jobs that came to wait for longer than the webhook says since it looked last, and until when
    that was looked at. `tenants`: those that it serves, None = all. What is held, or is not to
    start yet, does not count."""
    patience = timedelta(seconds=hook.pending_s)
    again = (
        JobEvent.objects.filter(
            job=OuterRef("pk"), kind__in=(JobEventKind.PREEMPTED, JobEventKind.REQUEUED)
        )
        .order_by()
        .values("job")
        .annotate(last=Max("at"))
        .values("last")
    )
    clusters = list(Cluster.objects.values_list("pk", flat=True))  # as the index of states begins
    jobs = Job.objects.filter(
        Q(start_not_before=None) | Q(start_not_before__lte=now - patience),
        cluster__in=clusters,
        state__in=list(WAITING),
        held=False,
        submitted_at__lte=now - patience,
    )
    if tenants is not None:
        jobs = jobs.filter(tenant__in=list(tenants))
    since = Coalesce(Subquery(again, output_field=DateTimeField()), F("submitted_at"))
    found = (
        jobs.annotate(waits_since=since)
        .filter(waits_since__gt=hook.pending_until - patience, waits_since__lte=now - patience)
        .order_by("waits_since", "id")
    )
    rows = list(with_what_is_told(found)[:MOST_JOBS])
    until = rows[-1].waits_since + patience if len(rows) == MOST_JOBS else now
    return [_of_wait(job, now) for job in rows], until


def _of_wait(job: Job, now: datetime) -> HookMessage:
    since: datetime = job.waits_since  # type: ignore[attr-defined]
    data = {**job_data(job, None, now), "waited_s": round((now - since).total_seconds(), 3)}
    return HookMessage(
        key=f"wait-{job.pk}-{since.timestamp():.0f}",
        event=HookEvent.PENDING_LONG,
        at=now,
        subject=subject_of_job(job),
        data={**data, "ran_s": None},
        tenant_id=job.tenant_id,
        page=reverse("job", args=[job.pk]),
    )


def gfr_of_clusters(now: datetime) -> dict[str, float]:
    """GFR in percent of each cluster on average over GFR_OVER, by name; without those of which
    there is no sample."""
    samples = MetricSample.objects.filter(gpu_model="", at__gt=now - GFR_OVER, nodes__gt=0)
    shares: dict[str, list[float]] = {}
    for name, fragmented, nodes in samples.order_by().values_list(
        "cluster__name", "fragmented_nodes", "nodes"
    ):
        shares.setdefault(name, []).append(100 * fragmented / nodes)
    return {name: sum(each) / len(each) for name, each in shares.items()}


def fragmented(
    hook: Webhook, gfr: dict[str, float], now: datetime
) -> tuple[list[HookMessage], list[str]]:
    """Clusters that became fragmented, and the names of all that are told to be so."""
    high = {name for name in hook.high if gfr.get(name, 0.0) >= CALM * hook.gfr_percent}
    new = sorted(name for name, value in gfr.items() if value >= hook.gfr_percent)
    told = [_of_gfr(hook, name, gfr[name], now) for name in new if name not in high]
    return told, sorted(high | set(new))


def _of_gfr(hook: Webhook, cluster: str, percent: float, now: datetime) -> HookMessage:
    return HookMessage(
        key=f"gfr-{cluster}-{now.timestamp():.0f}",
        event=HookEvent.GFR,
        at=now,
        subject=cluster,
        data={
            "cluster": cluster,
            "gfr_percent": round(percent, 2),
            "threshold_percent": hook.gfr_percent,
            "over_s": GFR_OVER.total_seconds(),
        },
        tenant_id=None,
        page=reverse("operations"),
    )
