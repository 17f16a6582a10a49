"""Reads behind dashboards, REST and Prometheus: rows in, `metrics.definitions` values out."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Sum

from metrics import definitions
from metrics.models import MetricSample
from scheduling.engine.states import WAITING, JobState
from scheduling.models import Cluster, Job, NodeRecord, Placement, PodSet

# Waits and placement quality are of jobs submitted in the window; older ones say little of today.
DEFAULT_WINDOW = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a number speaks of: a cluster (None = all), a GPU model ("" = all), a time window."""

    cluster: Cluster | None
    gpu_model: str
    since: datetime
    until: datetime


def node_records(cluster: Cluster | None, gpu_model: str = "") -> QuerySet[NodeRecord]:
    """Nodes with GPUs, of one cluster and one GPU model where given."""
    rows = NodeRecord.objects.filter(gpus__gt=0)
    if cluster is not None:
        rows = rows.filter(cluster=cluster)
    if gpu_model:
        rows = rows.filter(gpu_model=gpu_model)
    return rows


def node_uses(rows: QuerySet[NodeRecord]) -> list[definitions.NodeUse]:
    """The facts of each node that GAR, GFR and the gang curve need."""
    return [
        definitions.NodeUse(*values)
        for values in rows.order_by("name").values_list(
            "gpu_model",
            "gpus",
            "healthy_gpus",
            "free_gpus",
            "allocated_milli",
            "schedulable",
            "leaf",
        )
    ]


def waiting_jobs(cluster: Cluster | None, gpu_model: str = "") -> QuerySet[Job]:
    # By cluster also where all are meant: the index of states begins with it, and of all jobs few
    # wait.
    wanted = Cluster.objects.all() if cluster is None else Cluster.objects.filter(pk=cluster.pk)
    rows = Job.objects.filter(cluster__in=wanted, state__in=[s.value for s in WAITING])
    return _of_model(rows, gpu_model) if gpu_model else rows


def _of_model(rows: QuerySet[Job], gpu_model: str) -> QuerySet[Job]:
    """Those of the jobs that would take this GPU model first."""
    taken = PodSet.objects.filter(job=OuterRef("pk"), gpu_models__0=gpu_model)
    return rows.filter(Exists(taken))


def latest_samples(cluster: Cluster) -> dict[str, MetricSample]:
    """The newest sample of each pool of a cluster, by GPU model ("" = the whole cluster)."""
    # That of the whole cluster is there whenever there is any, and an index leads to its last.
    last = MetricSample.objects.filter(cluster=cluster, gpu_model="").order_by("-at").first()
    if last is None:
        return {}
    return {s.gpu_model: s for s in MetricSample.objects.filter(cluster=cluster, at=last.at)}


def samples(scope: Scope, *, most: int = 600) -> list[MetricSample]:
    """Samples of one pool in the window, thinned evenly to at most `most`, oldest first."""
    rows = MetricSample.objects.filter(
        gpu_model=scope.gpu_model, at__gte=scope.since, at__lte=scope.until
    )
    if scope.cluster is not None:
        rows = rows.filter(cluster=scope.cluster)
    # A day has thousands, of which the keys suffice to choose from.
    keys = list(rows.order_by("-at").values_list("pk", flat=True))
    stride = max(1, -(-len(keys) // most))
    # Counted from the newest, so that the last point drawn is the present.
    chosen = MetricSample.objects.filter(pk__in=keys[::stride])
    return list(chosen.select_related("cluster").order_by("at"))


def sor(scope: Scope) -> tuple[float | None, timedelta]:
    """SOR over the window, and how much of the window has been recorded (paper 4.2).

    Samples carry running integrals, so a window is the difference of its two ends.
    """
    rows = MetricSample.objects.filter(
        gpu_model=scope.gpu_model, at__gte=scope.since, at__lte=scope.until
    ).order_by("at")
    if scope.cluster is not None:
        rows = rows.filter(cluster=scope.cluster)
    held = available = 0.0
    recorded = timedelta(0)
    clusters = rows.order_by().values_list("cluster_id", flat=True).distinct()
    for cluster_id in clusters:
        own = rows.filter(cluster_id=cluster_id)
        first, last = own.first(), own.last()
        if first is None or last is None:
            continue
        held += last.allocated_milli_s - first.allocated_milli_s
        available += last.available_milli_s - first.available_milli_s
        recorded = max(recorded, last.at - first.at)
    return definitions.ratio(held, available), recorded


def wait_curves(scope: Scope) -> dict[str, definitions.WaitCurve]:
    """JWTD: one Kaplan–Meier curve per size class that occurs, plus "all", over the window.

    A gang counts once, from submission to its last pod bound; other jobs count pod by pod. Jobs
    cancelled or failed before they were placed are censored at their end.
    """
    waits: dict[str, list[float]] = defaultdict(list)
    seen: dict[str, list[bool]] = defaultdict(list)

    def add(label: str, wait: timedelta, observed: bool) -> None:
        for key in (label, "all"):
            waits[key].append(max(0.0, wait.total_seconds()))
            seen[key].append(observed)

    jobs = Job.objects.filter(submitted_at__gte=scope.since, submitted_at__lte=scope.until)
    if scope.cluster is not None:
        jobs = jobs.filter(cluster=scope.cluster)
    if scope.gpu_model:
        jobs = _of_model(jobs, scope.gpu_model)
    alone = jobs.filter(gang=False)
    bound_pods: dict[Any, list[datetime]] = defaultdict(list)
    placed = Placement.objects.filter(job__in=alone, held_from__isnull=False).order_by()
    for job_id, held_from in placed.values_list("job_id", "held_from"):
        if held_from is not None:
            bound_pods[job_id].append(held_from)
    sets = PodSet.objects.filter(job__in=alone).order_by().values_list("job_id")
    pods_of = dict(sets.annotate(Sum("count")))
    # Columns, not objects: a day may have tens of thousands of jobs.
    for job_id, gang, milli, submitted_at, bound_at, ended_at in jobs.order_by(
        "submitted_at"
    ).values_list("id", "gang", "gpu_milli", "submitted_at", "bound_at", "ended_at"):
        label = definitions.size_class(milli)
        limit = ended_at or scope.until
        if gang:
            add(label, (bound_at or limit) - submitted_at, bound_at is not None)
            continue
        pods = pods_of.get(job_id, 0)
        bound = sorted(bound_pods[job_id])[:pods]
        for at in bound:
            add(label, at - submitted_at, True)
        for _ in range(pods - len(bound)):
            add(label, limit - submitted_at, False)
    order = [*definitions.SIZE_LABELS, "all"]
    return {k: definitions.wait_curve(waits[k], seen[k]) for k in order if k in waits}


@dataclass(frozen=True, slots=True)
class PlacementQuality:
    """JTTED of one size class: mean nodes and groups used over the fewest possible."""

    size: str
    jobs: int
    node_deviation: float
    group_deviation: float


def jtted(scope: Scope) -> list[PlacementQuality]:
    """JTTED by size class over the placements that began to hold inside the window, without what
    elastic gangs got while they ran."""
    nodes = node_records(scope.cluster, scope.gpu_model)
    leaf_of: dict[tuple[int, str], str] = {}
    per_node: dict[str, int] = {}
    per_leaf: dict[tuple[str, str], int] = defaultdict(int)
    for cluster_id, name, model, gpus, leaf in nodes.values_list(
        "cluster_id", "name", "gpu_model", "gpus", "leaf"
    ):
        leaf_of[cluster_id, name] = leaf
        per_node[model] = max(per_node.get(model, 0), gpus)
        per_leaf[model, f"{cluster_id}/{leaf}"] += 1
    largest_group: dict[str, int] = {}
    for (model, _), count in per_leaf.items():
        largest_group[model] = max(largest_group.get(model, 0), count)

    begun = Q(job__admitted_at=None) | Q(intended_at__lte=F("job__admitted_at"))
    placements = Placement.objects.filter(
        begun, held_from__gte=scope.since, held_from__lte=scope.until, job__gang=True
    )
    if scope.cluster is not None:
        placements = placements.filter(job__cluster=scope.cluster)
    if scope.gpu_model:
        placements = placements.filter(gpu_model=scope.gpu_model)
    used: dict[tuple[Any, int, str], list[tuple[int, str, int]]] = defaultdict(list)
    for job_id, attempt, model, cluster_id, node, held in placements.order_by().values_list(
        "job_id", "attempt", "gpu_model", "job__cluster_id", "node", "held_milli"
    ):
        used[job_id, attempt, model].append((cluster_id, node, held))
    by_size: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (_, _, model), pods in used.items():
        if model not in per_node:
            continue
        names = {(c, n) for c, n, _ in pods}
        groups = {leaf_of.get(key, "") for key in names}
        milli = sum(held for _, _, held in pods)
        fewest = definitions.fewest_nodes(-(-milli // definitions.MILLI), per_node[model])
        by_size[definitions.size_class(milli)].append(
            (
                definitions.deviation(len(names), fewest),
                definitions.deviation(
                    len(groups), definitions.fewest_groups(fewest, largest_group[model])
                ),
            )
        )
    return [
        PlacementQuality(
            size=label,
            jobs=len(rows),
            node_deviation=sum(n for n, _ in rows) / len(rows),
            group_deviation=sum(g for _, g in rows) / len(rows),
        )
        for label in definitions.SIZE_LABELS
        if (rows := by_size.get(label))
    ]


def jobs_by_state(cluster: Cluster | None, since: datetime) -> dict[str, int]:
    """Number of jobs submitted since, by state; every state is named."""
    rows = Job.objects.filter(submitted_at__gte=since)
    if cluster is not None:
        rows = rows.filter(cluster=cluster)
    counts = dict(rows.order_by().values_list("state").annotate(Count("id")))
    return {state.value: counts.get(state.value, 0) for state in JobState}
