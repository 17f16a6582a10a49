"""Adds GPU activity to the GPU time of tenants and jobs, five minutes at a time."""

import logging
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from metrics.gpu_time.days import BEGINNING
from metrics.gpu_use.prometheus import GpuActivity, PrometheusError, activities
from metrics.models import GpuUseDay, GpuUseLedger
from scheduling.models import Cluster, NodeRecord, Placement
from scheduling.services.gpu_use import add_gpu_use
from tenants.database.chunks import CHUNK
from tenants.models import Tenant
from tenants.outage import Outage

log = logging.getLogger(__name__)

SLOT = timedelta(minutes=5)
# Scrapes and the ends of pods arrive late.
LATE = timedelta(minutes=1)
# After an outage, anything older is skipped and counts as not measured.
FURTHEST = timedelta(hours=6)
BUDGET_S = 20.0  # per run, once a minute: other background work shares the worker
MILLISECOND = timedelta(milliseconds=1)

# By GPU: (name of the cluster, "" = unknown; node; index). None = conflicting values.
Activity = Mapping[tuple[str, str, int], float | None]
_outage = Outage(log, "Prometheus", "nobody knows meanwhile how busy GPUs are")


class DayKey(NamedTuple):
    """Whose GPU time it is."""

    cluster_id: int
    tenant_id: int
    gpu_model: str


def read_gpu_use(now: datetime) -> None:
    """Read the finished five-minute slots until BUDGET_S have passed.

    A failure is recorded in the ledger and logged once; the next run asks for the same slot again.
    """
    if not settings.KANT_PROMETHEUS:
        return
    deadline, last = time.monotonic() + BUDGET_S, _slot(now - LATE)
    ledger, _ = GpuUseLedger.objects.get_or_create(
        pk=1, defaults={"since": last, "until": last, "asked_at": now}
    )
    begin = ledger.until
    if begin < now - FURTHEST:
        begin = last
        GpuUseLedger.objects.filter(until=ledger.until).update(until=begin)
    try:
        while begin < last and time.monotonic() < deadline:
            end = begin + SLOT
            told = activities(settings.KANT_PROMETHEUS, end, int(SLOT.total_seconds()))
            if not _write(begin, end, told):
                return  # another worker has stored it
            begin = end
    except PrometheusError as error:
        _outage.began(error)
        GpuUseLedger.objects.update(asked_at=now, trouble=str(error))
    else:
        _outage.over()
        GpuUseLedger.objects.update(asked_at=now, trouble="")


def _slot(at: datetime) -> datetime:
    """Return the beginning of the slot that contains this instant."""
    return at - (at - BEGINNING) % SLOT


def _write(begin: datetime, end: datetime, told: list[GpuActivity]) -> bool:
    """Add a slot to the stored activity unless another worker did; return whether it was added
    here."""
    days, jobs = used(begin, end, told)
    with transaction.atomic():
        if not GpuUseLedger.objects.filter(until=begin).update(until=end):
            return False
        day = begin.date()
        rows = {
            DayKey(row.cluster_id, row.tenant_id, row.gpu_model): row
            for row in GpuUseDay.objects.filter(day=day)
        }
        clusters = dict(Cluster.objects.order_by().values_list("pk", "name"))
        tenants = dict(Tenant.objects.order_by().values_list("pk", "name"))
        changed = []
        for key, (measured, idle) in days.items():
            row = rows.get(key) or GpuUseDay(day=day, **key._asdict())
            row.cluster_name = clusters.get(key.cluster_id, row.cluster_name)
            row.tenant_name = tenants.get(key.tenant_id, row.tenant_name)
            row.measured, row.idle = row.measured + measured, row.idle + idle
            changed.append(row)
        GpuUseDay.objects.bulk_create(
            changed,
            batch_size=CHUNK,
            update_conflicts=True,
            unique_fields=["day", "cluster_id", "tenant_id", "gpu_model"],
            update_fields=["cluster_name", "tenant_name", "measured", "idle"],
        )
        add_gpu_use(jobs, end)
    return True


def used(
    begin: datetime, end: datetime, told: list[GpuActivity]
) -> tuple[dict[DayKey, tuple[int, int]], dict[uuid.UUID, tuple[int, int]]]:
    """Return the measured GPU time in [begin, end) and the idle part of it, in milli-GPU x
    milliseconds, by cluster, tenant and GPU model, and by job. GPUs without data are not
    measured."""
    active = by_gpu(told)
    measured: defaultdict[DayKey, Counter[str]] = defaultdict(Counter)
    jobs: defaultdict[uuid.UUID, Counter[str]] = defaultdict(Counter)
    rows = (
        Placement.objects.filter(Q(ended_at=None) | Q(ended_at__gt=begin))
        .filter(held_from__lt=end, held_milli__gt=0)
        .order_by()
        .values_list(
            "job_id", "job__cluster", "job__cluster__name", "job__tenant", "gpu_model",
            "node", "devices", "milli", "held_from", "ended_at",
        )
    )  # fmt: skip
    for job, cluster, name, tenant, model, node, devices, milli, begun, ended in rows.iterator(
        chunk_size=2000
    ):
        assert begun is not None  # because held_from < end
        length = (min(ended or end, end) - max(begun, begin)) // MILLISECOND
        for index in devices:
            key = (name, node, index)
            share = active[key] if key in active else active.get(("", node, index))
            if share is None or length <= 0:
                continue
            held = milli * length
            counted = {"measured": held, "idle": round(held * (1 - share))}
            measured[DayKey(cluster, tenant, model)].update(counted)
            jobs[job].update(counted)
    return (
        {key: (sums["measured"], sums["idle"]) for key, sums in measured.items()},
        {key: (sums["measured"], sums["idle"]) for key, sums in jobs.items()},
    )


def by_gpu(told: list[GpuActivity]) -> Activity:
    """Return activity by cluster, node and index of the GPU. Without a label that names one of
    Kant's clusters, the node name decides, if only one cluster has it."""
    clusters: defaultdict[str, set[str]] = defaultdict(set)
    for node, cluster in NodeRecord.objects.order_by().values_list("name", "cluster__name"):
        clusters[node].add(cluster)
    known = set(Cluster.objects.order_by().values_list("name", flat=True))
    found: dict[tuple[str, str, int], float | None] = {}
    for one in told:
        node = next((name for name in one.nodes if name in clusters), "")
        named = one.cluster if one.cluster in known else ""
        if not node or (not named and len(clusters[node]) > 1):
            continue
        key = (named, node, one.gpu)
        found[key] = one.active if found.get(key, one.active) == one.active else None
    return found
