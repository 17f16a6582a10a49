"""`/metrics` for Prometheus: the recorder's numbers in the exposition format.

Base units, bounded labels: never a job or node name. Read from the database at every scrape, so
that any number of web processes says the same.
"""

from collections.abc import Iterator

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Sum
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from metrics import definitions, selectors
from metrics.totals import WAIT_BUCKETS_S, totals
from scheduling.models import Cluster
from scheduling.quota_use import quota_uses


def exposition() -> bytes:
    """The whole page in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Kant())
    return generate_latest(registry)


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Scraped without sign-in where `KANT_METRICS_OPEN` says so, by operators otherwise."""
    if not settings.KANT_METRICS_OPEN and not getattr(request.user, "is_operator", False):
        raise PermissionDenied("Only operators may read /metrics here; see KANT_METRICS_OPEN.")
    return HttpResponse(exposition(), content_type=CONTENT_TYPE_LATEST)


class _Kant(Collector):
    def collect(self) -> Iterator[Metric]:
        yield from _pools()
        yield from _quotas()
        yield from _queue()
        yield from _counters()

    def describe(self) -> list[Metric]:
        """Nothing: registering must not query the database."""
        return []


def _pools() -> Iterator[Metric]:
    labels = ["cluster", "gpu_type"]
    gpus = GaugeMetricFamily("kant_gpus", "GPUs by state", labels=[*labels, "state"])
    gar = GaugeMetricFamily(
        "kant_gpu_allocation_ratio", "GAR: allocated / available GPUs", labels=labels
    )
    gfr = GaugeMetricFamily(
        "kant_gpu_node_fragmentation_ratio", "GFR: partly allocated / all nodes", labels=labels
    )
    free = GaugeMetricFamily(
        "kant_nodes_by_free_gpus", "Nodes by their free GPUs", labels=[*labels, "free"]
    )
    gang = GaugeMetricFamily(
        "kant_largest_gang_gpus", "Largest gang that fits now", labels=[*labels, "scope"]
    )
    held = CounterMetricFamily(
        "kant_allocated_gpu_seconds", "GPU-seconds allocated; SOR's numerator", labels=labels
    )
    offered = CounterMetricFamily(
        "kant_available_gpu_seconds", "GPU-seconds available; SOR's denominator", labels=labels
    )
    for cluster in Cluster.objects.filter(is_active=True):
        for model, sample in selectors.latest_samples(cluster).items():
            if not model:
                continue  # the sum over models is Prometheus' to make
            key = [cluster.name, model]
            for state, milli in (
                ("allocated", sample.allocated_milli),
                ("available", sample.available_milli),
                ("excluded", sample.excluded_milli),
            ):
                gpus.add_metric([*key, state], milli / definitions.MILLI)
            for family, value in (
                (gar, definitions.ratio(sample.allocated_milli, sample.available_milli)),
                (gfr, definitions.ratio(sample.fragmented_nodes, sample.nodes)),
            ):
                if value is not None:
                    family.add_metric(key, value)
            for count, nodes in sample.free_by_node.items():
                free.add_metric([*key, count], nodes)
            gang.add_metric([*key, "leaf"], sample.largest_gang_leaf)
            gang.add_metric([*key, "any"], sample.largest_gang_any)
            held.add_metric(key, sample.allocated_milli_s / definitions.MILLI)
            offered.add_metric(key, sample.available_milli_s / definitions.MILLI)
    yield from (gpus, gar, gfr, free, gang, held, offered)


def _quotas() -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "kant_quota_gpus",
        "Quota of a tenant and what it and the tenants below it use of it",
        labels=["tenant", "gpu_type", "kind"],
    )
    for use in quota_uses():
        family.add_metric(
            [use.tenant, use.gpu_model, "guaranteed"], use.guaranteed / definitions.MILLI
        )
        family.add_metric([use.tenant, use.gpu_model, "used"], use.used / definitions.MILLI)
    yield family


def _queue() -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "kant_pending_jobs", "Waiting jobs", labels=["cluster", "tenant", "reason"]
    )
    gpus = GaugeMetricFamily(
        "kant_pending_gpus", "GPUs waiting jobs ask for", labels=["cluster", "tenant", "reason"]
    )
    rows = (
        selectors.waiting_jobs(None)
        .order_by()
        .values_list("cluster__name", "tenant__name", "reason")
        .annotate(count=Count("id"), milli=Sum("gpu_milli"))
    )
    for cluster, tenant, reason, count, milli in rows:
        jobs.add_metric([cluster, tenant, reason], count)
        gpus.add_metric([cluster, tenant, reason], milli / definitions.MILLI)
    yield from (jobs, gpus)


def _counters() -> Iterator[Metric]:
    counted = totals()
    events = CounterMetricFamily("kant_job_events", "Job events", labels=["cluster", "event"])
    for cluster, name in Cluster.objects.order_by("name").values_list("id", "name"):
        for event, count in sorted(counted.events.get(str(cluster), {}).items()):
            events.add_metric([name, event], count)
    waits = HistogramMetricFamily(
        "kant_job_wait_seconds",
        "JWTD: submission to all pods bound, of jobs that started",
        labels=["size_class"],
    )
    for size in definitions.SIZE_LABELS:
        if found := counted.waits.get(size):
            within = zip(WAIT_BUCKETS_S, found.within, strict=True)
            buckets = [(str(float(s)), number) for s, number in within]
            waits.add_metric([size], [*buckets, ("+Inf", found.count)], found.sum_us / 1_000_000)
    yield from (events, waits)
