"""The state at an earlier instant, from the rows that are kept: which jobs waited, and why.

What pods held follows from their placements (`samples.held`). There is no history of nodes: they
are today's nodes, with what pods of other schedulers hold today.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.fields.json import KeyTextTransform

from metrics import selectors
from metrics.models import MetricSample
from metrics.selectors import WaitingNow
from scheduling.engine.states import WAITING, JobState
from scheduling.engine.verdict import NEVER
from scheduling.models import Cluster, Job, JobEvent
from scheduling.queries.selectors import complete_from
from scheduling.queries.standing.pending import PendingReason

MOST_SHOWN = 50  # of the waiting jobs
ASKS_FOR = KeyTextTransform(0, "pod_sets__gpu_models")  # the GPU model that it would take first


class NotKept(ValueError):
    """Nothing is known of this instant; says why, and from when on something is."""


def kept_from(cluster: Cluster | None) -> datetime | None:
    """Return from when on the rows are complete; None when there is nothing yet."""
    first = Job.objects.order_by("submitted_at").values_list("submitted_at", flat=True)
    found = list(first[:1])
    # Loop over all clusters: finding those of the samples would read every sample.
    for one in [cluster] if cluster else Cluster.objects.order_by("pk"):
        own = MetricSample.objects.filter(cluster=one).order_by("at")
        found += own.values_list("at", flat=True)[:1]
    if not found:
        return None
    begin, deleted = min(found), complete_from()
    return begin if deleted is None else max(begin, deleted)


def checked(at: datetime, now: datetime, cluster: Cluster | None) -> datetime:
    """Return the instant if something is known of it; raise NotKept otherwise."""
    begin = kept_from(cluster)
    if at > now:
        raise NotKept(f"{at:%Y-%m-%d %H:%M:%S} UTC is not over yet.")
    if begin is None:
        raise NotKept("Nothing has been recorded yet.")
    if at < begin:
        raise NotKept(f"What is kept begins at {begin:%Y-%m-%d %H:%M:%S} UTC.")
    return at


def waiting_then(cluster: Cluster | None, at: datetime, gpu_model: str = "") -> QuerySet[Job]:
    """Return the jobs that waited at an instant, each with `told`, the reason that it had been
    given."""
    events = JobEvent.objects.filter(job=OuterRef("pk"), at__lte=at).order_by("-id")
    reasons = events.filter(to_state__in=list(WAITING)).exclude(reason="")
    open_then = Q(ended_at=None) | Q(ended_at__gt=at)
    rows = Job.objects.filter(open_then, submitted_at__lte=at).annotate(
        then=Subquery(events.values("to_state")[:1]), told=Subquery(reasons.values("reason")[:1])
    )
    # Jobs from before Kant wrote events have none.
    rows = rows.filter(Q(then__in=list(WAITING)) | Q(then=None, state__in=list(WAITING)))
    if cluster is not None:
        rows = rows.filter(cluster=cluster)
    return selectors.of_model(rows, gpu_model) if gpu_model else rows


@dataclass(frozen=True, slots=True)
class QueueThen:
    """The jobs that waited at an instant: amounts by the GPU model that they would take first ("" =
    all), by reason, and the first of them by priority and submission."""

    by_model: dict[str, WaitingNow]
    reasons: list[PendingReason]
    jobs: list[Job]


def queue_then(cluster: Cluster | None, at: datetime, gpu_model: str = "") -> QueueThen:
    """Read it in at most four statements, however many jobs waited."""
    rows = waiting_then(cluster, at)
    columns = ("pk", "gpu_milli", "submitted_at", "told", ASKS_FOR)
    by_model: dict[str, WaitingNow] = {"": WaitingNow()}
    asked: dict[tuple[str, str], WaitingNow] = {}
    seen = set()
    for pk, milli, since, told, model in rows.order_by().values_list(*columns):
        if pk not in seen:
            seen.add(pk)
            by_model[""].add(milli, since)
        if (pk, model) in seen:
            continue
        seen.add((pk, model))
        by_model.setdefault(model or "", WaitingNow())
        if model:
            by_model[model].add(milli, since)
        if gpu_model in ("", model):
            asked.setdefault((told or "", model or ""), WaitingNow()).add(milli, since)
    wanted = waiting_then(cluster, at, gpu_model) if gpu_model else rows
    jobs = wanted.select_related("tenant", "cluster").prefetch_related("pod_sets")
    shown = jobs.order_by("-priority", "submitted_at", "id")[:MOST_SHOWN]
    return QueueThen(by_model, _reasons(asked), list(shown))


def _reasons(asked: dict[tuple[str, str], WaitingNow]) -> list[PendingReason]:
    found: Iterable[PendingReason] = (
        PendingReason(reason, model, one.jobs, one.milli, one.since, reason in NEVER)
        for (reason, model), one in asked.items()
        if one.since is not None
    )
    return sorted(found, key=lambda one: (-one.milli, one.reason, one.gpu_type))


def jobs_by_state_then(cluster: Cluster | None, since: datetime, at: datetime) -> dict[str, int]:
    """Return the number of jobs submitted since then, by their state at an instant."""
    rows = Job.objects.filter(submitted_at__gte=since, submitted_at__lte=at)
    if cluster is not None:
        rows = rows.filter(cluster=cluster)
    events = JobEvent.objects.filter(job=OuterRef("pk"), at__lte=at).order_by("-id")
    then = rows.order_by().annotate(then=Subquery(events.values("to_state")[:1]))
    counts = Counter(dict(then.values_list("then").annotate(Count("id"))))
    return {state.value: counts[state.value] for state in JobState}
