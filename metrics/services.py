"""Writes of the recorder: one sample per pool and tick, thinning of old samples, and the deletion
of what is older than Kant keeps it."""

from collections import defaultdict
from datetime import datetime, timedelta

import numpy as np
from django.conf import settings
from django.db import transaction
from django.db.models import Q, Sum

from metrics import definitions, selectors, totals
from metrics.accounting import account
from metrics.models import MetricSample, Replay
from scheduling.models import Cluster, Placement
from scheduling.services.retention import prune_jobs

FULL_RESOLUTION = timedelta(days=2)
THINNED_TO = timedelta(minutes=10)
PRUNE_BUDGET_S = 20.0  # of each minute at most: other background work shares the worker


def record_sample(cluster: Cluster, now: datetime) -> list[MetricSample]:
    """Sample every pool of a cluster, and the whole of it (gpu_model ""), at `now`.

    Allocation is integrated exactly from the placements since the previous sample; availability
    changes only with nodes and is taken as constant in between. A second recorder in the same
    instant, or one whose clock is behind, records nothing.
    """
    previous = selectors.latest_samples(cluster)
    last_at = previous[""].at if previous else now
    if previous and now <= last_at:
        return []
    uses = selectors.uses_by_model(cluster)
    if not uses:
        return []
    # A pool whose last node left still closes its integrals.
    models = sorted(set(uses) | set(previous))
    held = _held_since(cluster, last_at, now)
    waiting = selectors.waiting_by_model(cluster)
    elapsed = (now - last_at).total_seconds()
    rows = []
    for model in models:
        use, before = definitions.pool_use(uses[model]), previous.get(model)
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
                allocated_milli_s=(before.allocated_milli_s if before else 0.0)
                + held.get(model, 0.0),
                available_milli_s=(before.available_milli_s if before else 0.0)
                + (before.available_milli * elapsed if before else 0.0),
            )
        )
    with transaction.atomic():
        return MetricSample.objects.bulk_create(rows, ignore_conflicts=True)


def _held_since(cluster: Cluster, start: datetime, end: datetime) -> dict[str, float]:
    """GPU-milli-seconds held in [start, end) by GPU model, "" = all.

    What held throughout is summed by the database; only what began or ended inside is read.
    """
    # Of all clusters: asked for one of them, SQLite walks through all jobs that it ever had.
    placements = Placement.objects.filter(held_from__lt=end)
    throughout = Q(held_from__lte=start) & (Q(ended_at__isnull=True) | Q(ended_at__gte=end))
    length = (end - start).total_seconds()
    total: dict[str, float] = defaultdict(float)
    for cluster_id, model, milli in (
        placements.filter(throughout)
        .order_by()
        .values_list("job__cluster", "gpu_model")
        .annotate(total=Sum("held_milli"))
    ):
        if cluster_id == cluster.pk:
            total[model] += milli * length
    partly: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for cluster_id, model, milli, begun, ended in (
        placements.exclude(throughout)
        .filter(Q(ended_at__isnull=True) | Q(ended_at__gt=start))
        .values_list("job__cluster", "gpu_model", "held_milli", "held_from", "ended_at")
    ):
        assert begun is not None  # held_from < end
        if cluster_id == cluster.pk:
            finish = ended.timestamp() if ended else float("inf")
            partly[model].append((milli, begun.timestamp(), finish))
    for model, rows in partly.items():
        held, begin, finishes = zip(*rows, strict=True)
        total[model] += definitions.held_milli_seconds(
            np.array(held, dtype=np.int64),
            np.array(begin),
            np.array(finishes),
            (start.timestamp(), end.timestamp()),
        )
    total[""] = sum(total.values())
    return total


def thin_samples(now: datetime) -> int:
    """Keep one sample in ten minutes of what is older than two days, and none of what is older
    than KANT_KEEP_DAYS; returns rows deleted."""
    kept_from = now - timedelta(days=settings.KANT_KEEP_DAYS)
    old = MetricSample.objects.filter(at__lt=now - FULL_RESOLUTION)
    kept: set[tuple[int, str, int]] = set()
    doomed = []
    for pk, cluster_id, model, at in old.order_by("at").values_list(
        "pk", "cluster_id", "gpu_model", "at"
    ):
        slot = (cluster_id, model, int(at.timestamp() // THINNED_TO.total_seconds()))
        if slot in kept or at < kept_from:
            doomed.append(pk)
        kept.add(slot)
    for first in range(0, len(doomed), 500):
        MetricSample.objects.filter(pk__in=doomed[first : first + 500]).delete()
    return len(doomed)


def prune(now: datetime) -> int:
    """Delete jobs that ended more than KANT_KEEP_DAYS ago, a part of them at a time; returns how
    many. The counters of `/metrics` count them first, and the usage of their days is written.
    Replays that were asked for so long ago go at once."""
    counted_until = min(totals.fold(now), account(now))
    kept_from = now - timedelta(days=settings.KANT_KEEP_DAYS)
    Replay.objects.filter(created_at__lt=kept_from).delete()
    return prune_jobs(min(kept_from, counted_until), budget_s=PRUNE_BUDGET_S)
