"""Writes of the recorder: one sample per pool and tick, thinning of old samples, and the deletion
of what is older than Kant keeps it."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from metrics import definitions, selectors
from metrics.gpu_time import totals
from metrics.gpu_time.accounting import account
from metrics.gpu_time.days import BEGINNING, day_by_day
from metrics.models import MetricSample, Replay, ThinnedSamples
from metrics.samples.held import HeldOverTime, nodes_of
from scheduling.models import Cluster
from scheduling.services.retention import prune_jobs
from tenants.database.chunks import CHUNK, chunks

# How far back samples are corrected by what became known since: far more than a pass of the
# scheduler takes from reading the clock to its commit.
REVISED = timedelta(minutes=10)
REVISED_COLUMNS = [
    "allocated_milli", "available_milli", "fragmented_nodes", "allocated_milli_s", "told_milli_s",
]  # fmt: skip
ROUNDING_MILLI_S = 0.5  # sums of floating point numbers in another order
FULL_RESOLUTION = timedelta(days=2)
THINNED_TO = timedelta(minutes=10)
PRUNE_BUDGET_S = 20.0  # of each minute at most: other background work shares the worker


def record_sample(cluster: Cluster, now: datetime) -> list[MetricSample]:
    """Sample every pool of a cluster, and the whole of it (gpu_model ""), at `now`.

    What is allocated follows from the placements' own times, integrated exactly. Of the samples of
    the last REVISED it is computed anew: an end or a start that was written late counts from when
    it was. Availability changes only with nodes and is taken as constant in between. A second
    recorder in the same instant, or one whose clock is behind, records nothing.
    """
    previous = selectors.latest_samples(cluster)
    if previous and now <= previous[""].at:
        return []
    nodes = nodes_of(cluster)
    if not nodes:
        return []
    earlier = _to_revise(cluster, previous, now)
    held = HeldOverTime(cluster, nodes, [*earlier, now])
    revised = _revise(held, earlier)
    for row in revised:
        if row.at == max(earlier):
            previous[row.gpu_model] = row
    rows = _sampled(cluster, held, previous, now)
    with transaction.atomic():
        MetricSample.objects.bulk_update(revised, REVISED_COLUMNS, batch_size=CHUNK)
        return MetricSample.objects.bulk_create(rows, ignore_conflicts=True)


def _to_revise(
    cluster: Cluster, previous: Mapping[str, MetricSample], now: datetime
) -> dict[datetime, dict[str, MetricSample]]:
    """The samples since REVISED by instant and GPU model, at least the last ones."""
    if not previous:
        return {}
    since = min(previous[""].at, now - REVISED)
    found: dict[datetime, dict[str, MetricSample]] = defaultdict(dict)
    for row in MetricSample.objects.filter(cluster=cluster, at__gte=since).order_by("at"):
        found[row.at][row.gpu_model] = row
    return found


def _revise(
    held: HeldOverTime, earlier: Mapping[datetime, Mapping[str, MetricSample]]
) -> list[MetricSample]:
    """Those of the samples that what is known now changes, as it makes them."""
    changed = []
    before: dict[str, tuple[int, float]] = {}  # GPU model: instant and integral
    for i, samples in enumerate(earlier.values()):
        for model, row in samples.items():
            was = (row.allocated_milli, row.fragmented_nodes, row.allocated_milli_s)
            row.allocated_milli, in_service, partly = held.counts(model, i)
            row.available_milli = max(row.available_milli, row.allocated_milli)
            # Of other nodes than those of now nobody knows what was partly allocated.
            if row.nodes == in_service:
                row.fragmented_nodes = partly
            if model in before:
                since, integral = before[model]
                exact = integral + held.milli_s(model, since, i)
                if abs(exact - row.allocated_milli_s) > ROUNDING_MILLI_S:
                    row.allocated_milli_s = exact
            before[model] = i, row.allocated_milli_s
            if was != (row.allocated_milli, row.fragmented_nodes, row.allocated_milli_s):
                row.told_milli_s = max(row.told_milli_s, row.allocated_milli_s)
                changed.append(row)
    return changed


def _sampled(
    cluster: Cluster, held: HeldOverTime, previous: Mapping[str, MetricSample], now: datetime
) -> list[MetricSample]:
    waiting = selectors.waiting_by_model(cluster)
    last, uses = len(held.instants) - 1, held.uses()
    nothing = definitions.pool_use(())
    rows = []
    # A pool whose last node left still closes its integrals.
    for model in sorted({*held.models, *previous}):
        use, before = uses.get(model, nothing), previous.get(model)
        allocated = available = told = 0.0
        if before is not None:
            allocated = before.allocated_milli_s + held.milli_s(model, last - 1, last)
            elapsed = (now - before.at).total_seconds()
            available = before.available_milli_s + before.available_milli * elapsed
            told = before.told_milli_s
        rows.append(
            MetricSample(
                cluster=cluster,
                gpu_model=model,
                at=now,
                available_milli=use.available_milli,
                allocated_milli=use.allocated_milli,
                excluded_milli=use.excluded_milli,
                nodes=use.nodes,
                fragmented_nodes=use.fragmented,
                free_by_node={str(k): v for k, v in use.free_by_node.items()},
                largest_gang_leaf=use.largest_gang_leaf,
                largest_gang_any=use.largest_gang_any,
                pending_jobs=waiting[model].jobs,
                pending_milli=waiting[model].milli,
                allocated_milli_s=allocated,
                available_milli_s=available,
                told_milli_s=max(told, allocated),
            )
        )
    return rows


def thin_samples(now: datetime) -> int:
    """Keep one sample in ten minutes of what is older than two days, and none of what is older
    than KANT_KEEP_DAYS; returns rows deleted. Read is what has become so old since the last time.
    """
    kept_from, until = now - timedelta(days=settings.KANT_KEEP_DAYS), now - FULL_RESOLUTION
    thinned, _ = ThinnedSamples.objects.get_or_create(pk=1, defaults={"until": BEGINNING})
    deleted = 0
    for cluster in Cluster.objects.all():
        own = MetricSample.objects.filter(cluster=cluster)
        deleted += own.filter(at__lt=kept_from).delete()[0]
        oldest = own.order_by("at").values_list("at", flat=True).first()
        if oldest is not None:
            for begin, end in day_by_day(max(oldest, _ten_minutes(thinned.until)), until):
                deleted += _thin(own.filter(at__gte=begin, at__lt=end))
    ThinnedSamples.objects.filter(until__lt=until).update(until=until)
    return deleted


def _thin(samples: QuerySet[MetricSample]) -> int:
    """Delete all but the first of each pool in ten minutes; returns how many."""
    kept: set[tuple[str, datetime]] = set()
    doomed = []
    for pk, model, at in samples.order_by("at").values_list("pk", "gpu_model", "at"):
        slot = (model, _ten_minutes(at))
        if slot in kept:
            doomed.append(pk)
        kept.add(slot)
    for some in chunks(doomed):
        MetricSample.objects.filter(pk__in=some).delete()
    return len(doomed)


def _ten_minutes(at: datetime) -> datetime:
    """The beginning of those that an instant lies in."""
    return at - (at - BEGINNING) % THINNED_TO


def prune(now: datetime) -> int:
    """Delete jobs that ended more than KANT_KEEP_DAYS ago, a part of them at a time; returns how
    many. The counters of `/metrics` count them first, and the usage of their days is written.
    Replays that were asked for so long ago go at once."""
    counted_until = min(totals.fold(now), account(now))
    kept_from = now - timedelta(days=settings.KANT_KEEP_DAYS)
    Replay.objects.filter(created_at__lt=kept_from).delete()
    return prune_jobs(min(kept_from, counted_until), budget_s=PRUNE_BUDGET_S)
