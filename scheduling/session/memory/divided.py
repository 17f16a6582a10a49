"""What a scheduler of a divided cluster reads about other scopes (docs/decisions/0003)."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import F, Q, Sum

from scheduling.engine.deltas import OtherScopesChanged
from scheduling.engine.shards.division import WHOLE, WIDE, WITHOUT_GPUS, Demand, scopes_of
from scheduling.engine.states import HOLDING, OPEN, WAITING
from scheduling.engine.types import MILLI, Shard
from scheduling.models import ClusterPolicy, Job, NodeRecord, Placement, PodSet, SchedulerLease
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.policy.document import to_policy
from tenants.database.chunks import chunks


def declared_shards(cluster_id: int) -> tuple[Shard, ...]:
    """Return the declared shards. Raises TypeError or ValueError if they cannot be read."""
    row = ClusterPolicy.objects.filter(cluster_id=cluster_id).values_list("document").first()
    shards = row[0].get("shards", []) if row else []
    return to_policy({"shards": shards}).shards


def retired_scopes(cluster_id: int, declared: Iterable[str]) -> list[str]:
    """Return scopes that are no longer declared and still own nodes or open jobs."""
    names = list(declared)
    nodes = NodeRecord.objects.filter(cluster_id=cluster_id).exclude(scope__in=names)
    jobs = Job.objects.filter(cluster_id=cluster_id, state__in=list(WAITING | HOLDING))
    found = set(nodes.order_by().values_list("scope", flat=True).distinct())
    # A waiting job without a scope is new; the wide scope routes it.
    jobs = jobs.exclude(scope__in=[*names, ""]).order_by()
    found.update(jobs.values_list("scope", flat=True).distinct())
    return sorted(found)


# --- nodes ----------------------------------------------------------------------------------------
def count_nodes(cluster_id: int, scope: str) -> int:
    return NodeRecord.objects.filter(cluster_id=cluster_id, scope=scope).count()


def nodes_of(cluster_id: int, scope: str) -> set[str]:
    """Return the names of a scope's nodes, by the rows."""
    rows = NodeRecord.objects.filter(cluster_id=cluster_id, scope=scope)
    return set(rows.values_list("name", flat=True))


def jobs_on(cluster_id: int, scope: str, nodes: Iterable[str]) -> bool:
    """Whether jobs of the scope hold places on any of these nodes."""
    names = sorted(nodes)
    rows = Placement.objects.filter(
        job__cluster_id=cluster_id, job__scope=scope, state__in=LIVE_PLACEMENTS
    )
    return any(rows.filter(node__in=chunk).exists() for chunk in chunks(names))


def made(pods: Iterable[str]) -> dict[tuple[str, str], bool]:
    """Return {(namespace, name): whether it holds a place} of these pods if Kant made them."""
    names, found = sorted(set(pods)), dict[tuple[str, str], bool]()
    for chunk in chunks(names):
        rows = Placement.objects.filter(pod_name__in=chunk)
        for namespace, name, state in rows.values_list("namespace", "pod_name", "state"):
            pod = namespace, name
            found[pod] = found.get(pod, False) or state in LIVE_PLACEMENTS
    return found


def namespaces_of(jobs: Iterable[str]) -> set[tuple[str, str]]:
    """Return each (job, namespace) in which pods of these jobs ever had places."""
    every, found = sorted(jobs), set[tuple[str, str]]()
    for chunk in chunks(every):
        rows = Placement.objects.filter(job_id__in=chunk).order_by()
        pairs = rows.values_list("job_id", "namespace").distinct()
        found.update((str(job_id), namespace) for job_id, namespace in pairs)
    return found


def busy_nodes(cluster_id: int) -> dict[str, int]:
    """Return the GPU-milli that pods of Kant hold, by node; 0 for pods without GPUs."""
    rows = Placement.objects.filter(job__cluster_id=cluster_id, state__in=LIVE_PLACEMENTS)
    held = rows.order_by().values_list("node").annotate(Sum("held_milli"))
    return dict(held)


def wanted(cluster_id: int) -> tuple[frozenset[str], bool]:
    """Return the nodes that the wide scope asks for, and whether to keep them free for it."""
    rows = SchedulerLease.objects.filter(cluster_id=cluster_id, scope=WIDE)
    asked: dict[str, Any] = rows.values_list("wanted", flat=True).first() or {}
    return frozenset(asked.get("nodes", ())), bool(asked.get("empty"))


def others(cluster_id: int, scope: str) -> OtherScopesChanged:
    """Return what jobs of other scopes hold, and how many GPUs those scopes have."""
    placed = Placement.objects.filter(state__in=LIVE_PLACEMENTS, job__cluster_id=cluster_id)
    held = (
        placed.filter(~Q(job__scope=scope), held_milli__gt=0)
        .order_by("job__tenant__name", "job__user_id", "gpu_model")
        .values_list("job__tenant__name", "job__user_id", "gpu_model")
        .annotate(held=Sum(HELD))
    )
    nodes = NodeRecord.objects.filter(~Q(scope=scope), cluster_id=cluster_id, gpus__gt=0)
    gpus = nodes.order_by("gpu_model").values_list("gpu_model").annotate(Sum("gpus"))
    return OtherScopesChanged(
        tuple((tenant, str(user or ""), model, milli) for tenant, user, model, milli in held),
        tuple(gpus),
    )


# --- jobs -----------------------------------------------------------------------------------------
def scopes_of_jobs(ids: Iterable[str]) -> dict[str, str]:
    """Return {job: its scope}, without jobs that do not exist."""
    every, found = sorted(set(ids)), dict[str, str]()
    for chunk in chunks(every):
        rows = Job.objects.filter(id__in=chunk)
        found.update((str(i), scope) for i, scope in rows.values_list("id", "scope"))
    return found


def looked_after(jobs: Iterable[str], scope: str, shards: Sequence[Shard]) -> set[str]:
    """Return those of these jobs that the scope looks after.

    The last scope looks after jobs without a row.
    """
    scopes, last = scopes_of_jobs(jobs), scopes_of(shards)[-1]
    ours = {WIDE, WHOLE} if scope == WIDE else {scope}
    return {job_id for job_id in jobs if scopes.get(job_id, last) in ours}


def waiting_in(cluster_id: int, scope: str, most: int) -> list[str]:
    """Return the oldest waiting jobs of a scope, at most `most`."""
    rows = Job.objects.filter(cluster_id=cluster_id, scope=scope, state__in=list(WAITING))
    rows = rows.order_by("submitted_at", "id")[:most]
    return [str(i) for i in rows.values_list("id", flat=True)]


def waiting_with_volumes(cluster_id: int, most: int) -> list[str]:
    """Return the oldest jobs that wait in a scope and mount volumes, or stand for pods that may."""
    sets = PodSet.objects.filter(job__cluster_id=cluster_id, job__state__in=list(WAITING))
    rows = sets.exclude(job__scope=WHOLE).exclude(volumes=[], job__pod_name="")
    rows = rows.order_by("job__submitted_at", "job_id")
    return [str(i) for i in rows.values_list("job_id", flat=True)[:most]]


def demand(cluster_id: int) -> dict[str, list[Demand]]:
    """Return what the open jobs of each scope ask for."""
    sets = PodSet.objects.filter(job__cluster_id=cluster_id, job__state__in=list(OPEN)).order_by()
    rows = (
        sets.filter(gpus__gt=0)
        .values_list("job__scope", "gpu_models", "gpu_milli")
        .annotate(total=Sum(F("count") * F("gpus")))
    )
    found: dict[str, list[Demand]] = defaultdict(list)
    scope: str
    models: list[Any]
    for scope, models, milli, gpus in rows:
        # A share given as memory has no GPU-milli; it counts as a whole GPU.
        found[scope].append((tuple(models), gpus * (milli or MILLI)))
    without = sets.filter(job__gpu_milli=0).values_list("job__scope")
    for scope, cpu_milli in without.annotate(total=Sum(F("count") * F("cpu_milli"))):
        if cpu_milli:
            found[scope].append((WITHOUT_GPUS, cpu_milli))
    return found
