"""Reads behind dashboards, REST and Prometheus: rows in, `metrics.definitions` values out."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple

import numpy as np
from django.db.models import CharField, Count, F, Max, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce

from metrics import definitions
from metrics.models import MetricSample
from metrics.timestamps import Timestamp, seconds_between, timestamp
from scheduling.engine.states import WAITING, JobState
from scheduling.models import NODES_WITHOUT_GPUS, Cluster, Job, NodeRecord, Placement, PodSet
from scheduling.models.jobs import RESIZED, PlacementState

# Waits and placement quality count jobs submitted in the window; older jobs say little about today.
DEFAULT_WINDOW = timedelta(hours=24)
# What a job asked for when it started. It waited for these GPUs, whatever it got later.
FIRST_MILLI = Coalesce("first_gpu_milli", "gpu_milli")
RELEASED, FAILED = PlacementState.RELEASED, PlacementState.FAILED


@dataclass(frozen=True, slots=True)
class MetricScope:
    """What a number covers: a cluster (None = all), a GPU model ("" = all), a time window."""

    cluster: Cluster | None
    gpu_model: str
    since: datetime
    until: datetime
    past: bool = False  # whether the reader looks back at `until`, which is then not now


def node_records(cluster: Cluster | None, gpu_model: str = "") -> QuerySet[NodeRecord]:
    """Return the nodes with GPUs, of one cluster and one GPU model where given."""
    return all_nodes(cluster, gpu_model).filter(gpus__gt=0)


def all_nodes(cluster: Cluster | None, gpu_model: str = "") -> QuerySet[NodeRecord]:
    """Return all nodes, also those without GPUs, of one cluster and one GPU model where given."""
    rows = NodeRecord.objects.all()
    if cluster is not None:
        rows = rows.filter(cluster=cluster)
    if gpu_model:
        rows = rows.filter(gpu_model=gpu_model)
    return rows


def without_gpus(cluster: Cluster | None) -> dict[str, int]:
    """Return the number of nodes for jobs without GPUs, their CPU and memory, and how much of both
    is allocated."""
    rows = all_nodes(cluster).filter(NODES_WITHOUT_GPUS)
    amounts = ("cpu_milli", "memory_mib", "allocated_cpu_milli", "allocated_memory_mib")
    sums = {name: Sum(name, default=0) for name in amounts}
    return rows.aggregate(nodes=Count("id"), **sums)


def waiting_jobs(cluster: Cluster | None, gpu_model: str = "") -> QuerySet[Job]:
    # Filter by cluster even when all are meant: the index on states begins with the cluster, and
    # few of all jobs wait.
    wanted = Cluster.objects.all() if cluster is None else Cluster.objects.filter(pk=cluster.pk)
    rows = Job.objects.filter(cluster__in=wanted, state__in=[s.value for s in WAITING])
    return of_model(rows, gpu_model) if gpu_model else rows


def of_model(rows: QuerySet[Job], gpu_model: str) -> QuerySet[Job]:
    """Keep the jobs that would take this GPU model first."""
    taken = PodSet.objects.filter(job=OuterRef("pk"), gpu_models__0=gpu_model)
    # Not EXISTS: PostgreSQL turns it into a join and reads the pod sets of all jobs first.
    return rows.alias(taken=Subquery(taken.values("index")[:1])).filter(taken__isnull=False)


@dataclass(slots=True)
class WaitingNow:
    """How many jobs wait, for how many milli-GPU, and since when the oldest one has waited."""

    jobs: int = 0
    milli: int = 0
    since: datetime | None = None

    def add(self, milli: int, since: datetime) -> None:
        self.jobs += 1
        self.milli += milli
        self.since = since if self.since is None else min(self.since, since)


def waiting_by_model(cluster: Cluster | None) -> defaultdict[str, WaitingNow]:
    """Return what waits, by the GPU model that it would take first. A job whose pod sets start with
    several models counts for each; "" = all jobs."""
    first = KeyTextTransform(0, "pod_sets__gpu_models")
    rows = waiting_jobs(cluster).order_by()
    models: defaultdict[tuple[str, int, datetime], set[str]] = defaultdict(lambda: {""})
    for *job, model in rows.values_list(_text("pk"), "gpu_milli", "submitted_at", first):
        models[tuple(job)].add(model or "")
    found: defaultdict[str, WaitingNow] = defaultdict(WaitingNow)
    for (_, milli, since), named in models.items():
        for name in named:
            found[name].add(milli, since)
    return found


def latest_samples(cluster: Cluster) -> dict[str, MetricSample]:
    """Return the newest sample of each pool of a cluster, by GPU model ("" = the whole cluster)."""
    # The whole cluster has a sample whenever any pool has, and an index finds its last one.
    last = MetricSample.objects.filter(cluster=cluster, gpu_model="").order_by("-at").first()
    if last is None:
        return {}
    return {s.gpu_model: s for s in MetricSample.objects.filter(cluster=cluster, at=last.at)}


def newest_samples() -> int | None:
    """Return the largest sample id, which changes with every sampling."""
    return MetricSample.objects.aggregate(newest=Max("id"))["newest"]


def samples(scope: MetricScope, *, most: int = 600) -> list[MetricSample]:
    """Return the samples of one pool in the window, oldest first, thinned evenly to at most
    `most`."""
    rows = MetricSample.objects.filter(
        gpu_model=scope.gpu_model, at__gte=scope.since, at__lte=scope.until
    )
    if scope.cluster is not None:
        rows = rows.filter(cluster=scope.cluster)
    # A day has thousands of samples; their keys suffice to choose from.
    keys = list(rows.order_by("-at").values_list("pk", flat=True))
    stride = max(1, -(-len(keys) // most))
    # Count from the newest, so that the last point drawn is the present.
    chosen = MetricSample.objects.filter(pk__in=keys[::stride])
    return list(chosen.select_related("cluster").order_by("at"))


def sor(scope: MetricScope) -> tuple[float | None, timedelta]:
    """Return SOR over the window, and how much of the window was recorded (paper 4.2).

    Samples carry running integrals, so a window is the difference between its two ends.
    """
    rows = MetricSample.objects.filter(
        gpu_model=scope.gpu_model, at__gte=scope.since, at__lte=scope.until
    ).order_by("at")
    held = available = 0.0
    recorded = timedelta(0)
    # Loop over all clusters there are: finding those of the samples would read every sample of the
    # window.
    for cluster in [scope.cluster] if scope.cluster else Cluster.objects.order_by("pk"):
        own = rows.filter(cluster=cluster)
        first, last = own.first(), own.last()
        if first is None or last is None:
            continue
        held += last.allocated_milli_s - first.allocated_milli_s
        available += last.available_milli_s - first.available_milli_s
        recorded = max(recorded, last.at - first.at)
    return definitions.ratio(held, available), recorded


class UnitWait(NamedTuple):
    """The wait of a gang, or of one pod of another job. `milli`: the GPUs that the whole job asked
    for when it started."""

    job: str
    milli: int
    wait: definitions.Wait


def waits(scope: MetricScope) -> dict[str, definitions.JobWaits]:
    """Return JWTD by size class that occurs, plus "all", of the jobs submitted in the window, as
    known at its end."""
    jobs = Job.objects.filter(submitted_at__gte=scope.since, submitted_at__lte=scope.until)
    if scope.cluster is not None:
        jobs = jobs.filter(cluster=scope.cluster)
    if scope.gpu_model:
        jobs = of_model(jobs, scope.gpu_model)
    return by_size((unit.milli, unit.wait) for unit in unit_waits(jobs, scope.until))


def by_size(rows: Iterable[tuple[int, definitions.Wait]]) -> dict[str, definitions.JobWaits]:
    """Return the curves of these waits by size class, and "all"; each row starts with its job's
    milli-GPU."""
    of_milli: dict[int, list[definitions.Wait]] = defaultdict(list)
    for milli, wait in rows:
        of_milli[milli].append(wait)
    classes: dict[str, list[definitions.Wait]] = {label: [] for label in definitions.SIZE_LABELS}
    for milli, found in of_milli.items():
        classes[definitions.size_class(milli)] += found
    curves = {label: definitions.job_waits(found) for label, found in classes.items() if found}
    if curves:
        everyone = [wait for found in classes.values() for wait in found]
        curves["all"] = definitions.job_waits(everyone)
    return curves


def unit_waits(jobs: QuerySet[Job], until: datetime) -> list[UnitWait]:
    """Compute from the placements how long jobs waited up to `until`.

    A gang counts once, from submission to the binding of the last pod that it needs. Other jobs
    count pod by pod, for the pods that they asked for when they started. A job that lost its places
    waits again once its pods are gone. A job that was over before it was placed is censored at its
    end.
    """
    now = timestamp(until)
    end = Coalesce(Timestamp("ended_at"), Value(now))
    columns = (_text("pk"), FIRST_MILLI, Timestamp("submitted_at"), end, "state")
    # Most gangs were placed once: the job's own row then says all that its placements could.
    gangs = jobs.filter(gang=True).order_by()
    once = Q(attempt__lte=1, bound_at__isnull=False) & Q(bound_at__lte=until)
    never = Q(attempt=0)
    starts, found = Timestamp("bound_at"), []
    rows = list(gangs.filter(once | never).values_list(*columns[:4], starts))
    if rows:
        ids, milli, begins, ends, bound = zip(*rows, strict=True)
        placed = [at is not None for at in bound]
        until_then = [at or min(over, now) for at, over in zip(bound, ends, strict=True)]
        lengths = np.maximum(seconds_between(begins, until_then), 0.0).tolist()
        found = [
            UnitWait(job, size, definitions.Wait(wait, seen, wait, seen))
            for job, size, wait, seen in zip(ids, milli, lengths, placed, strict=True)
        ]
    again = gangs.exclude(once | never)
    held = _spans(again)
    retried: list[tuple[str, int, str, str, str]] = list(again.values_list(*columns))
    for job, size, begin, over, state in retried:
        spans = sorted(span for of_pod in held.get(job, {}).values() for span in of_pod)
        done = state == JobState.SUCCEEDED and over <= now
        wait = _wait(spans, begin, min(over, now), done=done)
        found.append(UnitWait(job, size, wait))

    alone = jobs.filter(gang=False).order_by()
    held = _spans(alone)
    pods: Counter[tuple[str, int, str, str, str, int | None]] = Counter()
    for *row, count in alone.values_list(*columns, "first_pods", "pod_sets__count"):
        pods[*row] += count or 0
    for (job, size, begin, over, state, first), asked in pods.items():
        count = first or asked
        units: list[list[Span]] = sorted(held.get(job, {}).values())[:count]
        units += [[] for _ in range(count - len(units))]
        done = state == JobState.SUCCEEDED and over <= now
        for spans in units:
            found.append(UnitWait(job, size, _wait(spans, begin, min(over, now), done=done)))
    return found


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


# When a pod's hold of its place began and ended, as text, and whether the pod waited again
# afterwards.
Span = tuple[str, str, bool]
STILL = "9999-12-31 23:59:59.999999"


def _spans(jobs: QuerySet[Job]) -> dict[str, dict[tuple[int, int], list[Span]]]:
    """Return {job: {pod: its spans in order}} for pods that ever held a place."""
    held = jobs.filter(placements__held_from__isnull=False).values_list(
        _text("pk"),
        "placements__pod_set",
        "placements__ordinal",
        Timestamp("placements__held_from"),
        Timestamp("placements__ended_at"),
        "placements__state",
        "placements__reason",
    )
    found: dict[str, dict[tuple[int, int], list[Span]]] = defaultdict(dict)
    for job, pod_set, ordinal, begin, end, state, reason in held:
        waits_again = state in (RELEASED, FAILED) and reason != RESIZED
        span = (begin, end or STILL, waits_again)
        found[job].setdefault((pod_set, ordinal), []).append(span)
    for pods in found.values():
        for spans in pods.values():
            spans.sort()
    return found


def _wait(spans: Sequence[Span], begin: str, until: str, *, done: bool) -> definitions.Wait:
    """Return the wait of one unit; for a gang, `spans` are those of all its pods."""
    spans = [span for span in spans if span[0] <= until]
    if spans:
        last = max(spans, key=itemgetter(1))
        done = done or not last[2]
    if len(spans) == 1 and (done or spans[0][1] >= until):
        length = max(0.0, _seconds(begin, spans[0][0]))
        return definitions.Wait(length, True, length, True)
    at = [_seconds(begin, text) for span in spans for text in span[:2]]
    pairs = zip(at[::2], at[1::2], strict=True)
    return definitions.wait_of(0.0, pairs, _seconds(begin, until), done=done)


def _text(key: str) -> Cast:
    """Read a key as the database writes it: creating a UUID object per row would take longer than
    the rest."""
    return Cast(key, CharField())


# Cluster, name, GPU model, GPUs and leaf of a node.
NodeRow = tuple[int, str, str, int, str]
# Job, attempt, GPU model, cluster, node and milli-GPU of a pod.
PodRow = tuple[str, int, str, int, str, int]


def jtted(scope: MetricScope) -> list[definitions.PlacementQuality]:
    """Return JTTED by size class over the gangs placed in the window, without pods that elastic
    gangs got while running."""
    return _jtted(_node_rows(scope), _pod_rows(scope))


def jtted_by_pool(
    since: datetime, until: datetime
) -> dict[tuple[int, str], list[definitions.PlacementQuality]]:
    """Return `jtted` by (primary key of the cluster, GPU model), with one read for all pools."""
    everywhere = MetricScope(None, "", since, until)
    nodes: defaultdict[tuple[int, str], list[NodeRow]] = defaultdict(list)
    for node in _node_rows(everywhere):
        nodes[node[0], node[2]].append(node)
    pods: defaultdict[tuple[int, str], list[PodRow]] = defaultdict(list)
    for pod in _pod_rows(everywhere):
        pods[pod[3], pod[2]].append(pod)
    return {pool: _jtted(nodes[pool], rows) for pool, rows in pods.items()}


def _node_rows(scope: MetricScope) -> Iterable[NodeRow]:
    nodes = node_records(scope.cluster, scope.gpu_model).order_by()
    return nodes.values_list("cluster_id", "name", "gpu_model", "gpus", "leaf")


def _pod_rows(scope: MetricScope) -> Iterable[PodRow]:
    begun = Q(job__admitted_at=None) | Q(intended_at__lte=F("job__admitted_at"))
    # Filter by end, because there is an index on it.
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
    # Filtered here: with one cluster in the query, SQLite would walk through all jobs that it ever
    # had.
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

    # Most gangs are alike, so count how many share (model, milli-GPU, nodes, groups).
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
        if model not in per_node or not milli:  # without GPUs there is no fewest
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
    """Return the number of jobs submitted since then, by state; every state has an entry."""
    rows = Job.objects.filter(submitted_at__gte=since)
    if cluster is not None:
        rows = rows.filter(cluster=cluster)
    counts = dict(rows.order_by().values_list("state").annotate(Count("id")))
    return {state.value: counts.get(state.value, 0) for state in JobState}
