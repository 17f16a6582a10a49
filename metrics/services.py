"""Writes of the recorder: take samples, thin old ones, and delete what has passed the retention
time."""

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

# How far back Kant corrects samples by what it learned since: far longer than a scheduler's pass
# takes from reading the clock to its commit.
REVISED = timedelta(minutes=10)
REVISED_COLUMNS = [
    "allocated_milli", "available_milli", "fragmented_nodes", "allocated_milli_s", "told_milli_s",
]  # fmt: skip
ROUNDING_MILLI_S = 0.5  # tolerates floating-point sums in another order
FULL_RESOLUTION = timedelta(days=2)
THINNED_TO = timedelta(minutes=10)
PRUNE_BUDGET_S = 20.0  # per run, once a minute: other background work shares the worker


def record_sample(cluster: Cluster, now: datetime) -> list[MetricSample]:
    """Sample every pool of a cluster, and the whole cluster (gpu_model ""), at `now`.

    Allocated GPU time follows from the times of the placements and is integrated exactly. For
    samples of the last REVISED it is computed again, so a start or end that was written late counts
    from its real time. Availability changes only with nodes and is taken as constant between
    samples. A second recorder at the same instant, or one whose clock is behind, records nothing.
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
    """Return the samples since REVISED, by instant and GPU model; always at least the last ones."""
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
    """Recompute the samples and return those that changed."""
    changed = []
    before: dict[str, tuple[int, float]] = {}  # GPU model: instant and integral
    for i, samples in enumerate(earlier.values()):
        for model, row in samples.items():
            was = (row.allocated_milli, row.fragmented_nodes, row.allocated_milli_s)
            row.allocated_milli, in_service, partly = held.counts(model, i)
            row.available_milli = max(row.available_milli, row.allocated_milli)
            # When the set of nodes differs from today's, nobody knows how many were partly
            # allocated.
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
    # A pool whose last node has left still needs its integrals closed.
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
    """Thin samples older than two days to one in ten minutes, and delete those older than
    KANT_KEEP_DAYS.

    Returns the number of rows deleted. Reads only samples that have passed the two days since the
    last call.
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
    """Keep the first sample per pool and ten minutes, delete the others; return how many."""
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
    """Return the beginning of the ten-minute slot that contains this instant."""
    return at - (at - BEGINNING) % THINNED_TO


def prune(now: datetime) -> int:
    """Delete jobs that ended more than KANT_KEEP_DAYS ago, a batch at a time; return how many.

    Before that, the counters of `/metrics` count them and the usage of their days is written.
    Replays requested before then are deleted at once.
    """
    counted_until = min(totals.fold(now), account(now))
    kept_from = now - timedelta(days=settings.KANT_KEEP_DAYS)
    Replay.objects.filter(created_at__lt=kept_from).delete()
    return prune_jobs(min(kept_from, counted_until), budget_s=PRUNE_BUDGET_S)
