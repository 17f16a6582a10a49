"""`/metrics` for Prometheus: the recorder's numbers in the exposition format.

Base units, bounded labels: never a job or node name. The page is read from the database, so all web
processes report the same, and it is cached until something changes
(docs/decisions/0076-answers-are-named-by-what-they-are-made-of.md).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from django.conf import settings
from django.db.models import Count, Sum
from django.http import HttpResponse
from django.utils import timezone
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from rest_framework.request import Request
from rest_framework.views import APIView

from metrics import definitions, selectors
from metrics.gpu_time.totals import WAIT_BUCKETS_S, totals
from metrics.prometheus.queues import queue_families
from metrics.prometheus.starts import start_families
from scheduling.models import Cluster
from scheduling.queries.kept import kept_while
from scheduling.queries.marks import marks
from scheduling.queries.quota_use import quota_uses
from scheduling.queries.selectors import leaders_of
from scheduling.queries.standstill import standstill
from scheduling.session.pace import BUCKETS_S
from tenants.api.base import OperatorsOnly, check_scope
from tenants.models import Scope
from tenants.outage import redis_trouble, uses_redis
from tenants.web.conditional import words_of_now

# What engine cycles did: field of CycleStats → the metric's name and its text.
CYCLE_WORK = {
    "walks": ("walks", "Walks over the queue"),
    "asked": ("classes_asked", "Equivalence classes of waiting jobs that a walk asked"),
    "remembered": ("classes_remembered", "Classes of which an earlier answer still stood"),
    "attempts": ("attempts", "Attempts to admit and place a job"),
    "plans": ("preemption_plans", "Plans of a preemption that were tried"),
    "starts": ("starts", "Starts that were decided"),
    "checked": ("answers_checked", "Remembered answers that were worked out anew"),
    "wrong": ("answers_wrong", "Remembered answers that were not true: errors of Kant"),
}


def told() -> bytes:
    """Return the whole page in Prometheus' text format. Each part is cached until its inputs
    change."""
    seen = marks()
    samples = selectors.newest_samples()
    texts = []
    for part in _parts():
        if part.is_kept:
            mark = seen, samples, words_of_now() if part.is_timed else None
            text = kept_while(f"exposition:{part.name}", mark, partial(generate_latest, part))
        else:
            text = generate_latest(part)
        texts.append(text)
    return b"".join(texts)


class MayScrape(OperatorsOnly):
    """Anybody if `KANT_METRICS_OPEN` is set, otherwise operators."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if settings.KANT_METRICS_OPEN:
            return True
        allowed = super().has_permission(request, view)
        check_scope(request, Scope.READ)
        return allowed


class PrometheusView(APIView):
    """`GET /metrics`, with an operator's token as in REST, or in a browser."""

    schema = None
    permission_classes = [MayScrape]

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:  # noqa: ARG002
        """Ignore `Accept`: there is one format, and scrapers ask for formats that REST does not
        have."""
        return super().perform_content_negotiation(request, force=True)

    def get(self, _request: Request) -> HttpResponse:
        return HttpResponse(told(), content_type=CONTENT_TYPE_LATEST)


class _Part(Collector):
    """Families that are computed together. `is_kept`: they change only with marks and samples, and
    also with time if `is_timed`."""

    def __init__(
        self,
        name: str,
        *families: Callable[[], Iterator[Metric]],
        is_kept: bool = True,
        is_timed: bool = False,
    ) -> None:
        self.name, self._families = name, families
        self.is_kept, self.is_timed = is_kept, is_timed

    def collect(self) -> Iterator[Metric]:
        for families in self._families:
            yield from families()


def _parts() -> tuple[_Part, ...]:
    return (
        _Part("schedulers", _schedulers, _redis, is_kept=False),
        _Part("pools", _pools),
        _Part("placement", _placement),
        _Part("quotas", _quotas),
        _Part("queue", _queue),
        _Part("queues", queue_families, is_timed=True),
        _Part("starts", start_families),
        _Part("counters", _counters),
    )


def _schedulers() -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "kant_scheduler_up", "1 while a scheduler decides on the cluster", labels=["cluster"]
    )
    passes = HistogramMetricFamily(
        "kant_scheduler_pass_seconds",
        "From the news to the commit, of passes that decided or changed something",
        labels=["cluster", "scope"],
    )
    effects = CounterMetricFamily(
        "kant_kubernetes_effects",
        "What was asked of the Kubernetes API, by how it ended",
        labels=["cluster", "scope", "effect", "result"],
    )
    phases = CounterMetricFamily(
        "kant_scheduler_phase_seconds",
        "Time that passes spent in the engine (decide) and in the database (write)",
        labels=["cluster", "scope", "phase"],
    )
    work = {
        name: CounterMetricFamily(f"kant_scheduler_{metric}", text, labels=["cluster", "scope"])
        for name, (metric, text) in CYCLE_WORK.items()
    }
    now = timezone.now()
    for cluster in Cluster.objects.filter(is_active=True):
        up.add_metric([cluster.name], int(not standstill(cluster)))
        for leader in leaders_of(cluster, now):
            key, pace = [cluster.name, leader.scope], leader.pace
            buckets = _buckets(BUCKETS_S, pace.within, pace.passes)
            passes.add_metric(key, buckets, pace.seconds)
            for asked, number in sorted(pace.effects.items()):
                effects.add_metric([*key, *asked], number)
            for phase, seconds in sorted(pace.phases.items()):
                phases.add_metric([*key, phase], seconds)
            for name, family in work.items():
                family.add_metric(key, pace.work[name])
    yield from (up, passes, effects, phases, *work.values())


def _redis() -> Iterator[Metric]:
    if uses_redis():
        up = GaugeMetricFamily("kant_redis_up", "1 while Redis takes what Kant writes")
        up.add_metric([], int(not redis_trouble()))
        yield up


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
                continue  # Prometheus can sum over the models itself
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
            held.add_metric(key, sample.told_milli_s / definitions.MILLI)
            offered.add_metric(key, sample.available_milli_s / definitions.MILLI)
    yield from (gpus, gar, gfr, free, gang, held, offered)


def _placement() -> Iterator[Metric]:
    labels = ["cluster", "gpu_type", "size_class"]
    of = "the fewest possible, mean of the gangs placed in the last 24 hours"
    nodes = GaugeMetricFamily(
        "kant_job_node_deviation_ratio", f"JTTED: nodes used / {of}", labels=labels
    )
    groups = GaugeMetricFamily(
        "kant_job_group_deviation_ratio", f"JTTED: node net groups used / {of}", labels=labels
    )
    now = timezone.now()
    found = selectors.jtted_by_pool(now - selectors.DEFAULT_WINDOW, now)
    for cluster in Cluster.objects.filter(is_active=True):
        for model in filter(None, selectors.latest_samples(cluster)):
            for quality in found.get((cluster.pk, model), ()):
                key = [cluster.name, model, quality.size]
                nodes.add_metric(key, quality.node_deviation)
                groups.add_metric(key, quality.group_deviation)
    yield from (nodes, groups)


def _quotas() -> Iterator[Metric]:
    quotas = GaugeMetricFamily(
        "kant_quota_gpus",
        "Quota of a tenant and what it and the tenants below it use of it",
        labels=["tenant", "gpu_type", "kind"],
    )
    loans = GaugeMetricFamily(
        "kant_quota_loan_gpus",
        "GPUs that one tenant uses of the quota of another",
        labels=["borrower", "lender", "gpu_type"],
    )
    lent: dict[tuple[str, str, str], int] = {}
    for use in quota_uses():
        for kind in ("guaranteed", "used", "borrowed", "lent"):
            milli = getattr(use, kind)
            quotas.add_metric([use.tenant, use.gpu_model, kind], milli / definitions.MILLI)
        # Most loans appear at both ends; those within a tenant's subtree at one only.
        for lender, milli in use.borrowed_from.items():
            lent[use.tenant, lender, use.gpu_model] = milli
        for borrower, milli in use.lent_to.items():
            lent[borrower, use.tenant, use.gpu_model] = milli
    for labels, milli in sorted(lent.items()):
        loans.add_metric(labels, milli / definitions.MILLI)
    yield from (quotas, loans)


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
    # What was counted before pools were distinguished belongs to no cluster.
    names = {"": ""} | {
        str(pk): name for pk, name in Cluster.objects.order_by("name").values_list("id", "name")
    }
    events = CounterMetricFamily("kant_job_events", "Job events", labels=["cluster", "event"])
    for cluster, name in names.items():
        for event, count in sorted(counted.events.get(cluster, {}).items()):
            events.add_metric([name, event], count)
    yield events
    for name, meaning, found in (
        ("kant_job_wait_seconds", "JWTD: waiting in all, of who has or had a place", counted.waits),
        (
            "kant_job_first_start_seconds",
            "JWTD: submission to the first start, of who started",
            counted.first_starts,
        ),
    ):
        labels = ["cluster", "gpu_type", "size_class"]
        family = HistogramMetricFamily(name, meaning, labels=labels)
        for cluster, model, size in sorted(found):
            if cluster in names:
                waits = found[cluster, model, size]
                buckets = _buckets(WAIT_BUCKETS_S, waits.within, waits.count)
                family.add_metric([names[cluster], model, size], buckets, waits.sum_us / 1_000_000)
        yield family


def _buckets(
    bounds_s: Sequence[float], within: Sequence[int], count: int
) -> list[tuple[str, float]]:
    """Return the counts `within` each bound, as a histogram has them."""
    finite = [(str(float(s)), number) for s, number in zip(bounds_s, within, strict=True)]
    return [*finite, ("+Inf", count)]
