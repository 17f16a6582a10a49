"""The counters of `/metrics`: what is folded into one row, and what came since.

A counter must not fall when old jobs are deleted, nor cost more the longer Kant runs. What cannot
change any more is therefore counted once and kept as a sum (docs/decisions/0016).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.fields.json import KT
from numpy.typing import NDArray

from metrics import definitions
from metrics.models import CounterTotals
from metrics.selectors import FIRST_MILLI
from metrics.timestamps import Timestamp, microseconds_between
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
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
AT_ONCE = 100_000  # rows of jobs
_BOUNDS_US = [s * 1_000_000 for s in WAIT_BUCKETS_S]


# Cluster id, the GPU type that a job would take first ("" = any), size class.
Key = tuple[str, str, str]


@dataclass(slots=True)
class Waits:
    """Waits of one size class of a pool: how many, their sum in microseconds, and how many were at
    most as long as each of WAIT_BUCKETS_S."""

    count: int = 0
    sum_us: int = 0
    within: list[int] = field(default_factory=lambda: [0] * len(WAIT_BUCKETS_S))

    @classmethod
    def of(cls, waits_us: NDArray[np.int64]) -> "Waits":
        """Waits in microseconds."""
        within = np.searchsorted(np.sort(waits_us), _BOUNDS_US, side="right")
        return cls(len(waits_us), int(waits_us.sum()), within.tolist())

    def plus(self, other: "Waits") -> "Waits":
        within = [a + b for a, b in zip(self.within, other.within, strict=True)]
        return Waits(self.count + other.count, self.sum_us + other.sum_us, within)


@dataclass(frozen=True, slots=True)
class Totals:
    """`events`: {cluster id: {event: number}}. `waits`: by pool and size class; what was counted
    before pools were told apart has "" for both of its cluster and GPU type."""

    events: Mapping[str, Mapping[str, int]]
    waits: Mapping[Key, Waits]

    def plus(self, other: "Totals") -> "Totals":
        events = {
            cluster: {
                event: self.events.get(cluster, {}).get(event, 0)
                + other.events.get(cluster, {}).get(event, 0)
                for event in {**self.events.get(cluster, {}), **other.events.get(cluster, {})}
            }
            for cluster in {**self.events, **other.events}
        }
        nothing = Waits()
        waits = {
            key: self.waits.get(key, nothing).plus(other.waits.get(key, nothing))
            for key in {**self.waits, **other.waits}
        }
        return Totals(events, waits)


def totals() -> Totals:
    """Everything that was ever counted."""
    while True:
        row = _row()
        # A job that runs will still change: it is counted as it is now.
        open_or_since = Q(ended_at__isnull=True) | Q(ended_at__gte=row.until)
        since = _counted(
            JobEvent.objects.filter(at__gte=row.until), Job.objects.filter(open_or_since)
        )
        # What was folded meanwhile may be deleted already, and is in neither number.
        if _row().until == row.until:
            return _folded(row).plus(since)


def fold(now: datetime) -> datetime:
    """Count what is older than LAG into the row; returns up to when everything is in it."""
    row, _ = CounterTotals.objects.get_or_create(pk=1, defaults={"until": BEGINNING})
    until = now - LAG
    if until <= row.until:
        return row.until
    span = (row.until, until)
    new = _counted(
        JobEvent.objects.filter(at__gte=span[0], at__lt=span[1]),
        Job.objects.filter(ended_at__gte=span[0], ended_at__lt=span[1]),
    )
    sums = _folded(row).plus(new)
    waits: dict[str, dict[str, dict[str, Any]]] = {}
    for (cluster, model, size), w in sums.waits.items():
        kept = {"count": w.count, "sum_us": w.sum_us, "within": w.within}
        waits.setdefault(cluster, {}).setdefault(model, {})[size] = kept
    # Read outside of the transaction, which therefore is short; whoever was faster has folded it.
    with transaction.atomic():
        CounterTotals.objects.filter(pk=row.pk, until=row.until).update(
            until=until, events=sums.events, waits=waits
        )
    return _row().until


def _row() -> CounterTotals:
    return CounterTotals.objects.first() or CounterTotals(until=BEGINNING)


def _folded(row: CounterTotals) -> Totals:
    waits = {
        (cluster, model, size): Waits(**kept)
        for cluster, models in row.waits.items()
        for model, sizes in models.items()
        for size, kept in sizes.items()
    }
    return Totals(row.events, waits)


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
    waits: dict[Key, Waits] = {}
    # As text, binned here: SQLite asks Python for every difference of two times.
    bound = jobs.filter(bound_at__isnull=False).order_by()
    sets = PodSet.objects.filter(job=OuterRef("pk"), gpus__gt=0).order_by("index")
    model = Subquery(sets.values(first=KT("gpu_models__0"))[:1])
    columns = (Timestamp("submitted_at"), Timestamp("bound_at"))
    found = bound.values_list("cluster_id", model, FIRST_MILLI, *columns)
    rest = found.iterator(chunk_size=2000)
    while part := list(islice(rest, AT_ONCE)):
        for key, waits_us in _waits_by_key(part).items():
            waits[key] = waits.get(key, Waits()).plus(Waits.of(waits_us))
    return Totals(counts, waits)


def _waits_by_key(
    rows: list[tuple[int, str | None, int, str, str]],
) -> dict[Key, NDArray[np.int64]]:
    """Microseconds that jobs waited, of rows of cluster, GPU type, milli-GPU, and from when to
    when."""
    clusters, models, millis, begins, ends = zip(*rows, strict=True)
    waits_us = microseconds_between(begins, ends)
    alike: defaultdict[tuple[int, str | None, int], list[int]] = defaultdict(list)
    for row, pool in enumerate(zip(clusters, models, millis, strict=True)):
        alike[pool].append(row)
    found: defaultdict[Key, list[NDArray[np.int64]]] = defaultdict(list)
    for (cluster, model, milli), own in alike.items():
        found[str(cluster), model or "", definitions.size_class(milli)].append(waits_us[own])
    return {key: np.concatenate(parts) for key, parts in found.items()}
