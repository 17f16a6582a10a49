"""The counters of `/metrics`: one row of folded sums, plus what came since.

A counter must not fall when old jobs are deleted, nor cost more the longer Kant runs. So what can
no longer change is counted once and kept as a sum (docs/decisions/0016).
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import CharField, Count, Min, OuterRef, Q, QuerySet, Subquery
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from numpy.typing import NDArray

from metrics import definitions
from metrics.gpu_time.days import BEGINNING
from metrics.models import CounterTotals
from metrics.selectors import unit_waits
from scheduling.engine.states import JobEventKind
from scheduling.models import Job, JobEvent, PodSet
from scheduling.models.jobs import MOVED

WAIT_BUCKETS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600)
EVENTS = (
    JobEventKind.SUBMITTED,
    JobEventKind.ADMITTED,
    JobEventKind.SUCCEEDED,
    JobEventKind.FAILED,
    JobEventKind.CANCELLED,
    JobEventKind.REQUEUED,
    JobEventKind.PREEMPTED,
)
# An event is dated before its transaction commits, by the clock of the host that writes it.
LAG = timedelta(minutes=5)
PART = timedelta(days=7)  # per step: shorter ones cost more in total, since each reads all jobs
BUDGET_S = 5.0  # per run, once a minute: other background work shares the worker
MICROSECOND = timedelta(microseconds=1)
ENDLESS = datetime.max.replace(tzinfo=UTC)
_BOUNDS_US = [s * 1_000_000 for s in WAIT_BUCKETS_S]


# Cluster id, the GPU type that a job would take first ("" = any), size class.
Key = tuple[str, str, str]


@dataclass(slots=True)
class Waits:
    """Waiting times of one size class of a pool: their number, their sum in microseconds, and how
    many are within each bound of WAIT_BUCKETS_S."""

    count: int = 0
    sum_us: int = 0
    within: list[int] = field(default_factory=lambda: [0] * len(WAIT_BUCKETS_S))

    @classmethod
    def of(cls, waits_us: NDArray[np.int64]) -> "Waits":
        """Build from waiting times in microseconds."""
        within = np.searchsorted(np.sort(waits_us), _BOUNDS_US, side="right")
        return cls(len(waits_us), int(waits_us.sum()), within.tolist())

    def plus(self, other: "Waits") -> "Waits":
        within = [a + b for a, b in zip(self.within, other.within, strict=True)]
        return Waits(self.count + other.count, self.sum_us + other.sum_us, within)


@dataclass(frozen=True, slots=True)
class Totals:
    """`events`: {cluster id: {event: number}}. `waits`: total waits, by pool and size class; what
    was counted before pools were distinguished has "" for cluster and GPU type. `first_starts`: the
    same for waits until the first start."""

    events: Mapping[str, Mapping[str, int]]
    waits: Mapping[Key, Waits]
    first_starts: Mapping[Key, Waits]

    def plus(self, other: "Totals") -> "Totals":
        events = {
            cluster: {
                event: self.events.get(cluster, {}).get(event, 0)
                + other.events.get(cluster, {}).get(event, 0)
                for event in {**self.events.get(cluster, {}), **other.events.get(cluster, {})}
            }
            for cluster in {**self.events, **other.events}
        }
        return Totals(
            events,
            _sum(self.waits, other.waits),
            _sum(self.first_starts, other.first_starts),
        )


def _sum(one: Mapping[Key, Waits], other: Mapping[Key, Waits]) -> dict[Key, Waits]:
    nothing = Waits()
    return {key: one.get(key, nothing).plus(other.get(key, nothing)) for key in {**one, **other}}


def totals() -> Totals:
    """Return everything ever counted."""
    while True:
        row = _row()
        # A running job will still change; it counts as it is now.
        open_or_since = Q(ended_at__isnull=True) | Q(ended_at__gte=row.until)
        since = _counted(
            JobEvent.objects.filter(at__gte=row.until), Job.objects.filter(open_or_since)
        )
        # If a fold came in between, its jobs may have been deleted and be in neither number: read
        # again.
        if _row().until == row.until:
            return _folded(row).plus(since)


def fold(now: datetime) -> datetime:
    """Fold what is older than LAG into the row, a week at a time, until BUDGET_S have passed.

    Returns up to when everything is folded.
    """
    deadline = time.monotonic() + BUDGET_S
    row, _ = CounterTotals.objects.get_or_create(pk=1, defaults={"until": BEGINNING})
    until = now - LAG
    while row.until < until:
        begin = _oldest(until) if row.until == BEGINNING else row.until
        row = _folded_until(row, min(begin + PART, until))
        if time.monotonic() > deadline:
            break
    return row.until


def _oldest(until: datetime) -> datetime:
    """Return when the first counted thing happened; `until` if nothing did before."""
    firsts = (
        JobEvent.objects.aggregate(first=Min("at"))["first"],
        Job.objects.aggregate(first=Min("ended_at"))["first"],
    )
    return min([until, *(first for first in firsts if first is not None)])


def _folded_until(row: CounterTotals, until: datetime) -> CounterTotals:
    """Return the row with everything before `until`, or as another process wrote it first."""
    new = _counted(
        JobEvent.objects.filter(at__gte=row.until, at__lt=until),
        Job.objects.filter(ended_at__gte=row.until, ended_at__lt=until),
    )
    sums = _folded(row).plus(new)
    # The reading is outside the transaction to keep that short.
    with transaction.atomic():
        CounterTotals.objects.filter(pk=row.pk, until=row.until).update(
            until=until,
            events=sums.events,
            waits=_document(sums.waits),
            first_starts=_document(sums.first_starts),
        )
    return _row()


def _row() -> CounterTotals:
    return CounterTotals.objects.first() or CounterTotals(until=BEGINNING)


def _document(waits: Mapping[Key, Waits]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for (cluster, model, size), w in waits.items():
        kept = {"count": w.count, "sum_us": w.sum_us, "within": w.within}
        found.setdefault(cluster, {}).setdefault(model, {})[size] = kept
    return found


def _read(document: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[Key, Waits]:
    return {
        (cluster, model, size): Waits(**kept)
        for cluster, models in document.items()
        for model, sizes in models.items()
        for size, kept in sizes.items()
    }


def _folded(row: CounterTotals) -> Totals:
    return Totals(row.events, _read(row.waits), _read(row.first_starts))


def _counted(events: QuerySet[JobEvent], jobs: QuerySet[Job]) -> Totals:
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    named = Q(kind__in=[k.value for k in EVENTS])
    rows = events.filter(named | Q(reason=MOVED)).order_by().values_list("job__cluster", "kind")
    told = rows.annotate(count=Count("id", filter=named), moved=Count("id", filter=Q(reason=MOVED)))
    for cluster, kind, count, moved in told:
        of_cluster = counts[str(cluster)]
        if count:
            of_cluster[kind.lower()] = count
        if moved:
            of_cluster["moved"] = of_cluster.get("moved", 0) + moved
    return Totals(counts, *_waits_by_key(jobs))


def _waits_by_key(jobs: QuerySet[Job]) -> tuple[dict[Key, Waits], dict[Key, Waits]]:
    """Return two sets of waits: the total waits of jobs that have their places, or had them to
    their end; and the waits until the first start of jobs that ever started. Gangs count once,
    other jobs pod by pod."""
    sets = PodSet.objects.filter(job=OuterRef("pk"), gpus__gt=0).order_by("index")
    model = Subquery(sets.values(first=KT("gpu_models__0"))[:1])
    placed = jobs.filter(attempt__gt=0).order_by()
    rows = placed.values_list(Cast("pk", CharField()), "cluster_id", model)
    pools = {job: (str(cluster), name or "") for job, cluster, name in rows}
    lengths: tuple[defaultdict[Key, list[float]], ...] = (defaultdict(list), defaultdict(list))
    for job, milli, wait in unit_waits(placed, ENDLESS):
        if job in pools:
            key = (*pools[job], definitions.size_class(milli))
            if wait.placed:
                lengths[0][key].append(wait.waited)
            if wait.started:
                lengths[1][key].append(wait.first_start)
    in_all, first = (
        {
            key: Waits.of(np.rint(np.array(found) * 1e6).astype(np.int64))
            for key, found in kind.items()
        }
        for kind in lengths
    )
    return in_all, first
