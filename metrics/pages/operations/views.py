"""The operators' dashboard and its charts."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone

from metrics import definitions, selectors
from metrics.models import MetricSample
from metrics.pages import charts
from metrics.pages.figures import Figure, linked
from metrics.pages.nodes import charts as node_charts
from metrics.pages.operations.quota_tree import quota_tree
from metrics.samples import past
from metrics.samples.held import by_gpu_model, uses_at
from metrics.samples.past import NotKept
from metrics.selectors import MetricScope
from scheduling.models import Cluster, ClusterPolicy, Forecasting
from scheduling.policy.document import effective
from scheduling.queries.kept import kept_while
from scheduling.queries.marks import marks
from scheduling.queries.nodes.effects import MOST_NODES
from scheduling.queries.selectors import Leader, complete_from, leaders_of
from scheduling.queries.standing.pending import pending
from scheduling.queries.starts import hit_rates
from scheduling.queries.wording import policy_words
from scheduling.services.policies.changes import policy_of
from tenants.api.filters import MomentField
from tenants.names import but
from tenants.outage import redis_trouble
from tenants.web.conditional import tagged, words_of_now
from tenants.web.pages import UnknownFilter, live_or_whole, page_login_required, unknown_names

WINDOWS = {
    "1h": ("last hour", timedelta(hours=1)),
    "24h": ("last 24 hours", timedelta(hours=24)),
    "7d": ("last 7 days", timedelta(days=7)),
}

STEPS = (
    ("1 d back", timedelta(days=-1)),
    ("1 h back", timedelta(hours=-1)),
    ("5 min back", timedelta(minutes=-5)),
    ("5 min on", timedelta(minutes=5)),
    ("1 h on", timedelta(hours=1)),
    ("1 d on", timedelta(days=1)),
)

View = Callable[..., HttpResponse]


def operator_required(view: View) -> View:
    """Limit a view to operators: cluster-wide numbers reveal what all tenants do."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_operator:  # type: ignore[union-attr]
            raise PermissionDenied("This page shows all tenants together; only operators see it.")
        return view(request, *args, **kwargs)

    return page_login_required(checked)


@dataclass(frozen=True, slots=True)
class Selection:
    """What the operator looks at, from the query string, and the available choices."""

    scope: MetricScope
    window: str
    clusters: list[Cluster]
    gpu_models: list[str]
    unknown: dict[str, UnknownFilter]

    @property
    def at(self) -> datetime | None:
        """The past instant that is shown; None = now."""
        return self.scope.until if self.scope.past else None

    def steps(self) -> list[tuple[str, str]]:
        """Return (title, instant) of each time step from the shown instant to one with data."""
        now, here = timezone.now(), self.scope.until
        kept_from = past.kept_from(self.scope.cluster)
        if kept_from is None:
            return []
        return [
            (title, (here + length).isoformat(timespec="seconds").replace("+00:00", "Z"))
            for title, length in STEPS
            if kept_from + timedelta(seconds=1) <= here + length < now
        ]

    @property
    def cluster_title(self) -> str:
        cluster = self.scope.cluster or (self.clusters[0] if len(self.clusters) == 1 else None)
        return (cluster.title or cluster.name) if cluster else "All clusters"

    @property
    def window_title(self) -> str:
        return WINDOWS[self.window][0]


def selection(request: HttpRequest, filters: Sequence[str], *places: str) -> Selection:
    """Return what the query string asks for.

    Unknown clusters and GPU models are left out and reported as unknown, as are parameters other
    than `filters` and `places`. Raises Http404 for an unknown window.
    """
    clusters = list(Cluster.objects.filter(is_active=True))
    name, model = request.GET.get("cluster", ""), request.GET.get("gpu", "")
    window = request.GET.get("window", "24h")
    unknown = unknown_names(request, filters, *places)
    cluster = next((c for c in clusters if c.name == name), None)
    if name and cluster is None:
        text = f"There is no cluster “{name}”{but(name, (c.name for c in clusters))}"
        unknown["cluster"] = UnknownFilter("cluster", name, text)
    if window not in WINDOWS:
        raise Http404(f"There is no window “{window}”; choose one of {', '.join(WINDOWS)}.")
    models = selectors.node_records(cluster).values_list("gpu_model", flat=True)
    known = sorted(models.order_by().distinct())
    if model and model not in known:
        text = f"No node has GPUs of model “{model}”{but(model, known)}"
        unknown["gpu"], model = UnknownFilter("gpu", model, text), ""
    now = timezone.now()
    scope = MetricScope(cluster, model, now - WINDOWS[window][1], now)
    return Selection(scope, window, clusters, known, unknown)


def known_selection(request: HttpRequest) -> Selection:
    """Return the selection; raise Http404 for an unknown cluster, GPU model, window or parameter,
    and for an instant without data."""
    chosen = selection(request, ("cluster", "gpu", "window", "at"))
    for unknown in chosen.unknown.values():
        raise Http404(f"{unknown.text}.")
    text = request.GET.get("at", "")
    try:
        at: datetime | None = MomentField(required=False).clean(text)
        if at is None:
            return chosen
        at = past.checked(at, timezone.now(), chosen.scope.cluster)
    except ValidationError as error:
        raise Http404(f"“{text[:64]}” is no time: {error.messages[0]}") from None
    except NotKept as error:
        raise Http404(str(error)) from None
    since = at - WINDOWS[chosen.window][1]
    return replace(chosen, scope=replace(chosen.scope, since=since, until=at, past=True))


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One row of the table of GPU models."""

    gpu_model: str
    use: definitions.PoolUse
    waiting: selectors.WaitingNow


def summary(chosen: Selection) -> dict[str, Any]:
    """Return the numbers of the KPI strip and of the table of pools."""
    scope = chosen.scope
    nodes = by_gpu_model(uses_at(scope.cluster, scope.until))
    queue = past.queue_then(scope.cluster, scope.until, scope.gpu_model) if scope.past else None
    waiting = defaultdict(
        selectors.WaitingNow,
        queue.by_model if queue else selectors.waiting_by_model(scope.cluster),
    )
    rows = [
        PoolRow(model, definitions.pool_use(nodes[model]), waiting[model])
        for model in chosen.gpu_models
    ]
    occupation, recorded = selectors.sor(scope)
    trend = selectors.samples(scope, most=60)
    # A gang runs on one GPU model: of several pools the largest value counts, not the sum.
    shown = [p for p in rows if scope.gpu_model in ("", p.gpu_model)]
    return {
        "use": definitions.pool_use(nodes[scope.gpu_model]),
        "gang_leaf": max(shown, key=lambda p: p.use.largest_gang_leaf, default=None),
        "gang_any": max(shown, key=lambda p: p.use.largest_gang_any, default=None),
        "sor": occupation,
        "sor_recorded": recorded,
        "sor_partial": recorded < (scope.until - scope.since) * 0.95,
        # There is no history of what nodes without GPUs held.
        "without_gpus": None
        if scope.gpu_model or scope.past
        else selectors.without_gpus(scope.cluster),
        # There is no history of quotas.
        "quotas": [] if scope.past else quota_tree(scope.gpu_model),
        "queue_then": queue.jobs if queue else None,
        "waiting": waiting[scope.gpu_model],
        "pools": rows,
        "reasons": queue.reasons
        if queue
        else pending(tenants=None, cluster=scope.cluster, gpu_type=scope.gpu_model or None),
        "hit_rates": [] if scope.past else hit_rates(),
        "forecasting": None
        if scope.past
        else Forecasting.objects.filter(as_of__isnull=False).select_related("cluster"),
        "complete_from": since if (since := complete_from()) and since > scope.since else None,
        "trends": {
            "gar": [definitions.ratio(s.allocated_milli, s.available_milli) for s in trend],
            "gfr": [definitions.ratio(s.fragmented_nodes, s.nodes) for s in trend],
            "pending": [s.pending_jobs for s in trend],
        },
    }


CHARTS = (
    ("leaf-map", "Where GPUs are free", "c8", "tall"),
    ("stranded", "Free GPUs, by how free their nodes are", "c4", "tall"),
    ("allocation", "Allocation and fragmentation over time", "c8", ""),
    ("gang-curve", "How many gangs of a size fit", "c4", ""),
    ("waits", "Total waits, until jobs have their places", "c6", "tall"),
    (
        "placement",
        "Placement: nodes and groups used, relative to the fewest possible",
        "c6",
        "tall",
    ),
)


Led = list[tuple[Cluster, list[Leader]]]


def led_clusters(chosen: Selection) -> Led:
    """Return the selected clusters, with the schedulers that lead them or their shards."""
    clusters = [chosen.scope.cluster] if chosen.scope.cluster else chosen.clusters
    return [(cluster, leaders_of(cluster, timezone.now())) for cluster in clusters]


@dataclass(frozen=True, slots=True)
class ShownPolicy:
    """The policy in force on a cluster, as (label, value); no values if a newer version of Kant
    stored it and this one cannot read it."""

    row: ClusterPolicy
    fields: list[tuple[str, str]]


def shown_policies(led: Led) -> list[ShownPolicy]:
    shown = []
    for cluster, _ in led:
        row = policy_of(cluster)
        try:
            fields = policy_words(effective(row.document))
        except (TypeError, ValueError):
            fields = []
        shown.append(ShownPolicy(row, fields))
    return shown


@operator_required
def operations(request: HttpRequest) -> HttpResponse:
    """Show the dashboard; its live part is rendered once for everybody with the same selection."""
    chosen = known_selection(request)
    template = live_or_whole(request, "metrics/operations/operations.html")
    if not request.htmx:  # type: ignore[attr-defined]
        return render(request, template, shown(chosen))
    of = chosen.scope.cluster.pk if chosen.scope.cluster else "all"
    seen = marks(), selectors.newest_samples(), redis_trouble(), words_of_now()
    text = kept_while(
        f"operations:{of}:{chosen.window}:{chosen.scope.gpu_model}",
        seen,
        lambda: render_to_string(template, shown(chosen), request),
    )
    return tagged(request, text, lambda: HttpResponse(text))


def shown(chosen: Selection) -> dict[str, Any]:
    """Return what the page shows."""
    led = [] if chosen.at else led_clusters(chosen)
    return {
        "nav": "operations",
        "chosen": chosen,
        "windows": [(key, title) for key, (title, _) in WINDOWS.items()],
        "charts": CHARTS,
        "divided": [
            (cluster, leaders) for cluster, leaders in led if any(x.scope for x in leaders)
        ],
        "unknown": chosen.unknown,
        "redis_trouble": None if chosen.at else redis_trouble(),
        "own_clock": [cluster for cluster, leaders in led if any(x.own_clock for x in leaders)],
        # Only the whole page calls and shows these.
        "kept_from": partial(past.kept_from, chosen.scope.cluster),
        "steps": chosen.steps,
        "policies": partial(shown_policies, led),
        **summary(chosen),
    }


def _leaf_map(scope: MetricScope) -> Figure:
    drawn = node_charts.leaf_map(uses_at(scope.cluster, scope.until, scope.gpu_model))
    cluster = _only_cluster(scope)

    def address(leaf: str) -> str:
        if cluster is None or leaf == node_charts.NO_LEAF:
            return _nodes(scope, q="" if leaf == node_charts.NO_LEAF else leaf)
        return reverse("leaf", args=[cluster.name, leaf])

    return linked(drawn, address)


def _only_cluster(scope: MetricScope) -> Cluster | None:
    """Return the selected cluster, or the only one; None if there are several."""
    if scope.cluster is not None:
        return scope.cluster
    active = list(Cluster.objects.filter(is_active=True)[:2])
    return active[0] if len(active) == 1 else None


def _nodes(scope: MetricScope, **filters: str) -> str:
    """Return the address of the list of nodes, filtered like the page."""
    own = {"cluster": scope.cluster.name if scope.cluster else "", "gpu": scope.gpu_model}
    said = {name: value for name, value in {**own, **filters}.items() if value}
    return reverse("nodes") + (f"?{urlencode(said)}" if said else "")


def _stranded(scope: MetricScope) -> Figure:
    drawn = node_charts.stranded(uses_at(scope.cluster, scope.until, scope.gpu_model))

    def address(band: str) -> str:
        if band == node_charts.IDLE_NODES:
            return _nodes(scope, show="free")
        return _nodes(scope, show="part", free=band.replace("–", "-"))

    return linked(drawn, address)


def _gang_curve(scope: MetricScope) -> Figure:
    nodes = uses_at(scope.cluster, scope.until, scope.gpu_model)
    waiting = (
        past.waiting_then(scope.cluster, scope.until, scope.gpu_model)
        if scope.past
        else selectors.waiting_jobs(scope.cluster, scope.gpu_model)
    )
    sizes = [-(-m // definitions.MILLI) for m in waiting.values_list("gpu_milli", flat=True) if m]
    drawn = node_charts.gang_curve(definitions.gang_curve(nodes), sizes)
    cluster = _only_cluster(scope)
    per_node = max((node.gpus for node in nodes), default=1)

    def address(size: int) -> str:
        """Return the plan that frees this many more nodes, if the cluster and GPU model are
        known."""
        if cluster is None or not scope.gpu_model:
            return _nodes(scope, show="free")
        count = min(MOST_NODES, -(-size // per_node))
        asked = urlencode({"gpu": scope.gpu_model, "count": count})
        return f"{reverse('node-plan', args=[cluster.name])}?{asked}"

    return linked(drawn, address)


def _allocation(scope: MetricScope) -> Figure:
    return charts.allocation([_use_point(s) for s in selectors.samples(scope)])


def _use_point(sample: MetricSample) -> charts.UsePoint:
    return charts.UsePoint(
        at=sample.at,
        allocated=sample.allocated_milli / definitions.MILLI,
        available=sample.available_milli / definitions.MILLI,
        gfr=definitions.ratio(sample.fragmented_nodes, sample.nodes),
    )


def _waits(scope: MetricScope) -> Figure:
    return charts.waits(selectors.waits(scope))


def _placement(scope: MetricScope) -> Figure:
    return charts.placement(selectors.jtted(scope))


FIGURES: dict[str, Callable[[MetricScope], Figure]] = {
    "leaf-map": _leaf_map,
    "stranded": _stranded,
    "gang-curve": _gang_curve,
    "allocation": _allocation,
    "waits": _waits,
    "placement": _placement,
}


@operator_required
def chart(request: HttpRequest, name: str) -> HttpResponse:
    """Return one figure as JSON, or 304 if the reader already has it."""
    if name not in FIGURES:
        raise Http404(f"There is no chart “{name}”.")
    scope = known_selection(request).scope
    return figure_answer(request, FIGURES[name](scope))


def figure_answer(request: HttpRequest, figure: Figure) -> HttpResponse:
    """Return a figure as JSON, or 304 if the reader already has it."""
    body = json.dumps(figure, separators=(",", ":"))
    return tagged(request, body, lambda: HttpResponse(body, content_type="application/json"))
