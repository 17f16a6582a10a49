"""Reads behind dashboards, REST and Prometheus: rows in, `metrics.definitions` values out."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from statistics import fmean

import numpy as np
from django.db.models import CharField, Count, F, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce

from metrics import definitions
from metrics.models import MetricSample
from metrics.timestamps import Timestamp, seconds_between, timestamp
from scheduling.engine.states import WAITING, JobState
from scheduling.models import NODES_WITHOUT_GPUS, Cluster, Job, NodeRecord, Placement, PodSet

# Waits and placement quality are of jobs submitted in the window; older ones say little of today.
DEFAULT_WINDOW = timedelta(hours=24)
# What a job asked for when it started: its wait is that of these GPUs, whatever it got later.
FIRST_MILLI = Coalesce("first_gpu_milli", "gpu_milli")


@dataclass(frozen=True, slots=True)
class Scope:
    """What a number speaks of: a cluster (None = all), a GPU model ("" = all), a time window."""

    cluster: Cluster | None
    gpu_model: str
    since: datetime
    until: datetime


def node_records(cluster: Cluster | None, gpu_model: str = "") -> QuerySet[NodeRecord]:
    """Nodes with GPUs, of one cluster and one GPU model where given."""
    return all_nodes(cluster, gpu_model).filter(gpus__gt=0)


def all_nodes(cluster: Cluster | None, gpu_model: str = "") -> QuerySet[NodeRecord]:
    """Nodes of one cluster and one GPU model where given, also those without GPUs."""
    rows = NodeRecord.objects.all()
    if cluster is not None:
        rows = rows.filter(cluster=cluster)
    if gpu_model:
        rows = rows.filter(gpu_model=gpu_model)
    return rows


def without_gpus(cluster: Cluster | None) -> dict[str, int]:
    """Of the nodes of jobs without GPUs: how many there are, their CPU and memory, and how much of
    both is allocated."""
    rows = all_nodes(cluster).filter(NODES_WITHOUT_GPUS)
    amounts = ("cpu_milli", "memory_mib", "allocated_cpu_milli", "allocated_memory_mib")
    sums = {name: Sum(name, default=0) for name in amounts}
    return rows.aggregate(nodes=Count("id"), **sums)


def uses_by_model(cluster: Cluster | None) -> defaultdict[str, list[definitions.NodeUse]]:
    """`node_uses` of a cluster by GPU model, "" = of all; read once."""
    found: defaultdict[str, list[definitions.NodeUse]] = defaultdict(list)
    for node in node_uses(node_records(cluster)):
        found[node.gpu_model].append(node)
        found[""].append(node)
    return found


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
    # Not EXISTS: PostgreSQL makes a join of it and reads the pod sets of all jobs first.
    return rows.alias(taken=Subquery(taken.values("index")[:1])).filter(taken__isnull=False)


@dataclass(slots=True)
class Waiting:
    """How many jobs wait, for how many milli-GPU, and since when the oldest of them does."""

    jobs: int = 0
    milli: int = 0
    since: datetime | None = None

    def add(self, milli: int, since: datetime) -> None:
        self.jobs += 1
        self.milli += milli
        self.since = since if self.since is None else min(self.since, since)


def waiting_by_model(cluster: Cluster | None) -> defaultdict[str, Waiting]:
    """What waits by the GPU model that it would take first, of several by each; "" = all."""
    first = KeyTextTransform(0, "pod_sets__gpu_models")
    rows = waiting_jobs(cluster).order_by()
    models: defaultdict[tuple[str, int, datetime], set[str]] = defaultdict(lambda: {""})
    for *job, model in rows.values_list(_text("pk"), "gpu_milli", "submitted_at", first):
        models[tuple(job)].add(model or "")
    found: defaultdict[str, Waiting] = defaultdict(Waiting)
    for (_, milli, since), named in models.items():
        for name in named:
            found[name].add(milli, since)
    return found


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
    held = available = 0.0
    recorded = timedelta(0)
    # Each cluster there is: to ask the samples for theirs would read every one of the window.
    for cluster in [scope.cluster] if scope.cluster else Cluster.objects.order_by("pk"):
        own = rows.filter(cluster=cluster)
        first, last = own.first(), own.last()
        if first is None or last is None:
            continue
        held += last.allocated_milli_s - first.allocated_milli_s
        available += last.available_milli_s - first.available_milli_s
        recorded = max(recorded, last.at - first.at)
    return definitions.ratio(held, available), recorded


def wait_curves(scope: Scope) -> dict[str, definitions.WaitCurve]:
    """JWTD: one Kaplan–Meier curve per size class that occurs, plus "all", over the window.

    A gang counts once, from submission to the last pod bound that it needs; other jobs count pod by
    pod, those that they had asked for when they started. Jobs cancelled or failed before they were
    placed are censored at their end.
    """
    jobs = Job.objects.filter(submitted_at__gte=scope.since, submitted_at__lte=scope.until)
    if scope.cluster is not None:
        jobs = jobs.filter(cluster=scope.cluster)
    if scope.gpu_model:
        jobs = _of_model(jobs, scope.gpu_model)
    # Rows of milli-GPU, begin and end of a wait.
    begin = Timestamp("submitted_at")
    end = Coalesce(Timestamp("ended_at"), Value(timestamp(scope.until)))
    gangs = jobs.filter(gang=True).order_by()
    bound_at = Timestamp("bound_at")
    rows = list(gangs.values_list(FIRST_MILLI, begin, bound_at, end))
    started = [(milli, since, at) for milli, since, at, _ in rows if at is not None]
    waiting = [(milli, since, until) for milli, since, at, until in rows if at is None]

    alone = jobs.filter(gang=False).order_by()
    bound: dict[str, list[str]] = defaultdict(list)
    held = alone.filter(placements__held_from__isnull=False)
    for job, at in held.values_list(_text("pk"), Timestamp("placements__held_from")):
        bound[job].append(at)
    pods: Counter[tuple[str, int, str, str, int | None]] = Counter()
    columns = (_text("pk"), FIRST_MILLI, begin, end, "first_pods", "pod_sets__count")
    for *job, count in alone.values_list(*columns):
        pods[*job] += count or 0
    for (job, milli, since, until, first), asked in pods.items():
        count = first or asked
        placed = sorted(bound.get(job, ()))[:count]
        started += [(milli, since, at) for at in placed]
        waiting += [(milli, since, until)] * (count - len(placed))
    return _curves(started, waiting)


def _text(key: str) -> Cast:
    """A key as the database writes it: a UUID object of each row takes longer than the rest."""
    return Cast(key, CharField())


def _curves(
    started: list[tuple[int, str, str]], waiting: list[tuple[int, str, str]]
) -> dict[str, definitions.WaitCurve]:
    """A curve per size class and "all", of waits that ended and of those that did not."""
    rows = [*started, *waiting]
    if not rows:
        return {}
    milli, begins, ends = zip(*rows, strict=True)
    waits = np.maximum(seconds_between(begins, ends), 0.0)
    seen = np.arange(len(rows)) < len(started)
    sizes, of_row = np.unique(np.array(milli), return_inverse=True)
    labels = np.array(
        [definitions.SIZE_LABELS.index(definitions.size_class(int(m))) for m in sizes]
    )
    of_row = labels[of_row]
    curves = {}
    for i, label in enumerate(definitions.SIZE_LABELS):
        own = of_row == i
        if own.any():
            curves[label] = definitions.wait_curve(waits[own], seen[own])
    return curves | {"all": definitions.wait_curve(waits, seen)}


# Cluster, name, GPU model, GPUs and leaf of a node.
NodeRow = tuple[int, str, str, int, str]
# Job, attempt, GPU model, cluster, node and milli-GPU of a pod.
PodRow = tuple[str, int, str, int, str, int]


def jtted(scope: Scope) -> list[definitions.PlacementQuality]:
    """JTTED by size class over the placements that began to hold inside the window, without what
    elastic gangs got while they ran."""
    return _jtted(_node_rows(scope), _pod_rows(scope))


def jtted_by_pool(
    since: datetime, until: datetime
) -> dict[tuple[int, str], list[definitions.PlacementQuality]]:
    """`jtted` of each primary key of a cluster and GPU model, read once for all of them."""
    everywhere = Scope(None, "", since, until)
    nodes: defaultdict[tuple[int, str], list[NodeRow]] = defaultdict(list)
    for node in _node_rows(everywhere):
        nodes[node[0], node[2]].append(node)
    pods: defaultdict[tuple[int, str], list[PodRow]] = defaultdict(list)
    for pod in _pod_rows(everywhere):
        pods[pod[3], pod[2]].append(pod)
    return {pool: _jtted(nodes[pool], rows) for pool, rows in pods.items()}


def _node_rows(scope: Scope) -> Iterable[NodeRow]:
    nodes = node_records(scope.cluster, scope.gpu_model).order_by()
    return nodes.values_list("cluster_id", "name", "gpu_model", "gpus", "leaf")


def _pod_rows(scope: Scope) -> Iterable[PodRow]:
    begun = Q(job__admitted_at=None) | Q(intended_at__lte=F("job__admitted_at"))
    # By when they ended, since of that there is an index.
    lasted = Q(ended_at=None) | Q(ended_at__gte=scope.since)
    placements = Placement.objects.filter(
        begun, lasted, held_from__gte=scope.since, held_from__lte=scope.until, job__gang=True
    )
    if scope.gpu_model:
        placements = placements.filter(gpu_model=scope.gpu_model)
    rows = placements.order_by().values_list(
        _text("job_id"), "attempt", "gpu_model", "job__cluster_id", "node", "held_milli"
    )
    if scope.cluster is None:
        return rows
    # Asked for one cluster, SQLite walks through all jobs that it ever had.
    return (row for row in rows if row[3] == scope.cluster.pk)


def _jtted(nodes: Iterable[NodeRow], pods: Iterable[PodRow]) -> list[definitions.PlacementQuality]:
    leaf_of: dict[tuple[int, str], str] = {}
    per_node: dict[str, int] = {}
    per_leaf: dict[tuple[str, str], int] = defaultdict(int)
    for cluster_id, name, model, gpus, leaf in nodes:
        leaf_of[cluster_id, name] = leaf
        per_node[model] = max(per_node.get(model, 0), gpus)
        per_leaf[model, f"{cluster_id}/{leaf}"] += 1
    largest_group: dict[str, int] = {}
    for (model, _), count in per_leaf.items():
        largest_group[model] = max(largest_group.get(model, 0), count)

    # Most gangs are alike: (model, milli-GPU, nodes, groups) of so many.
    alike: Counter[tuple[str, int, int, int]] = Counter()
    for (_, _, model), gang in groupby(sorted(pods), key=itemgetter(0, 1, 2)):
        names, milli = set(), 0
        for *_, cluster_id, node, held in gang:
            names.add((cluster_id, node))
            milli += held
        groups = {leaf_of.get(name, "") for name in names}
        alike[model, milli, len(names), len(groups)] += 1
    by_size: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for (model, milli, nodes_used, groups_used), count in alike.items():
        if model not in per_node or not milli:  # no number of GPUs says what would be the fewest
            continue
        fewest = definitions.fewest_nodes(-(-milli // definitions.MILLI), per_node[model])
        fewest_groups = definitions.fewest_groups(fewest, largest_group[model])
        by_size[definitions.size_class(milli)].append(
            (
                definitions.deviation(nodes_used, fewest),
                definitions.deviation(groups_used, fewest_groups),
                count,
            )
        )
    found = []
    for label in definitions.SIZE_LABELS:
        if label in by_size:
            by_nodes, by_groups, counts = zip(*by_size[label], strict=True)
            found.append(
                definitions.PlacementQuality(
                    size=label,
                    jobs=sum(counts),
                    node_deviation=fmean(by_nodes, counts),
                    group_deviation=fmean(by_groups, counts),
                )
            )
    return found


def jobs_by_state(cluster: Cluster | None, since: datetime) -> dict[str, int]:
    """Number of jobs submitted since, by state; every state is named."""
    rows = Job.objects.filter(submitted_at__gte=since)
    if cluster is not None:
        rows = rows.filter(cluster=cluster)
    counts = dict(rows.order_by().values_list("state").annotate(Count("id")))
    return {state.value: counts.get(state.value, 0) for state in JobState}
