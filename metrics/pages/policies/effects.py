"""Whom a change of a policy affects now, as far as the database says for certain. Only a replay can
say what would follow from it."""

from collections import Counter
from collections.abc import Collection, Iterator
from datetime import timedelta

from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone

from scheduling.engine.shards.division import home_of
from scheduling.engine.states import HOLDING, WAITING
from scheduling.engine.types import JobKind, Policy, PreemptionKind, QueueingPolicy
from scheduling.models import Cluster, Job, NodeRecord
from scheduling.policy.settings import field_of
from scheduling.queries.history import nodes_of
from scheduling.queries.quota_use import quota_uses
from tenants.models import Tenant
from tenants.templatetags.ui import duration, gpu_count, gpus, short_model

NAMED = 5  # most tenants that a sentence names


def effects(
    cluster: Cluster, before: Policy, after: Policy, changed: Collection[str]
) -> Iterator[str]:
    """Yield sentences about current jobs, tenants and nodes. `changed`: the settings that
    differ."""
    fields = {field_of(key) for key in changed}
    jobs = Job.objects.filter(cluster=cluster)
    waiting, held = jobs.filter(state__in=list(WAITING)), jobs.filter(state__in=list(HOLDING))
    yield (
        f"Waiting: {_counted(waiting)}. Holding places: {_counted(held)}. The next decision about "
        "them follows the new policy."
    )
    if fields & {"queueing", "backfill_after_s"}:
        yield from _overdue(waiting, after)
    losing = {"preemption", "preempt_after_s", "min_runtime_s", "max_preemptions"}
    if fields & losing and after.preemption:
        yield from _preemptible(held, before, after)
    if "min_runtime_s" in fields:
        yield from _own_min_runtimes()
    if "strategies" in fields:
        yield from _placements(waiting, before, after)
    if after.consolidation and not before.consolidation:
        movable = held.filter(kind=JobKind.INFERENCE, gang=False, preemptible=True)
        yield f"Inference jobs whose replicas may be moved: {_counted(movable)}."
    if after.defragments and not before.defragments:
        alone = held.filter(gang=True, preemptible=True, pod_sets__count=1)
        alone = alone.annotate(sets=Count("pod_sets")).filter(sets=1)
        yield f"Jobs of one pod that may be moved: {_counted(_anew(alone))}."
    for model in sorted(after.spare_nodes):
        if f"spare_nodes.{model}" in changed:
            yield _spares(cluster, model, after.spare_nodes[model])
    if "shards" in fields:
        yield _homes(cluster, after)


def _counted(jobs: QuerySet[Job]) -> str:
    """Return the number of jobs and their GPUs, in words."""
    found = jobs.aggregate(jobs=Count("id"), milli=Sum("gpu_milli"))
    if not found["jobs"]:
        return "no job"
    return f"{found['jobs']:,} job{'s'[: found['jobs'] > 1]} ({gpu_count(found['milli'])})"


def _anew(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Return the same jobs without joins, which would count rows twice in sums."""
    return Job.objects.filter(pk__in=jobs.order_by().values("pk"))


def _overdue(waiting: QuerySet[Job], after: Policy) -> Iterator[str]:
    if after.queueing is not QueueingPolicy.BACKFILL:
        return
    since = timezone.now() - timedelta(seconds=after.backfill_after_s)
    late = waiting.filter(blocked_since__lte=since)
    if late.exists():
        longer = duration(after.backfill_after_s)
        yield f"Blocked for longer than {longer}, so overdue immediately: {_counted(late)}."


def _preemptible(held: QuerySet[Job], before: Policy, after: Policy) -> Iterator[str]:
    able, others = held.filter(preemptible=True), held.filter(preemptible=False)
    yield (
        f"Preemptible jobs that hold places: {_counted(able)}. Not preemptible: {_counted(others)}."
    )
    if PreemptionKind.RECLAIM in {*after.preemption} - {*before.preemption}:
        borrowed = [
            f"{use.tenant} {gpus(use.borrowed)} {short_model(use.gpu_model)}"
            for use in sorted(quota_uses(), key=lambda use: -use.borrowed)
            if use.borrowed
        ]
        told = f"Tenants that borrow GPUs now, on all clusters: {_named(borrowed)}."
        yield told if borrowed else "No tenant borrows now."


def _own_min_runtimes() -> Iterator[str]:
    own = Tenant.objects.filter(min_runtime_s__isnull=False)
    times = [f"{t.name} {duration(t.min_runtime_s)}" for t in own]
    if times:
        yield (
            "These tenants, and those below them, have their own minimum run time: "
            f"{_named(times)}."
        )


def _placements(waiting: QuerySet[Job], before: Policy, after: Policy) -> Iterator[str]:
    for kind in JobKind:
        if before.strategies[kind] != after.strategies[kind]:
            by_policy = waiting.filter(kind=kind, strategy="")
            yield (
                f"Waiting {kind} jobs, to be placed by {after.strategies[kind]}: "
                f"{_counted(by_policy)}. Running jobs stay where they are."
            )


def _spares(cluster: Cluster, model: str, wanted: int) -> str:
    nodes = NodeRecord.objects.filter(cluster=cluster, gpu_model=model, gpus__gt=0)
    counts = nodes.aggregate(
        all=Count("id"), free=Count("id", filter=Q(allocated_milli=0, schedulable=True))
    )
    return (
        f"Nodes with {short_model(model)}: {counts['all']:,}, of which {counts['free']:,} are idle "
        f"now; {wanted:,} would be kept free."
    )


def _homes(cluster: Cluster, after: Policy) -> str:
    homes = Counter(home_of(node, after.shards) for node in nodes_of(cluster))
    if not after.shards:
        return f"One scheduler would lead all {homes.total():,} nodes; their jobs stay."
    told = ", ".join(f"{shard.name} {homes[shard.name]:,}" for shard in after.shards)
    return f"Nodes of each shard: {told}. Nodes change shards together with the jobs on them."


def _named(texts: list[str]) -> str:
    more = len(texts) - NAMED
    return ", ".join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")
