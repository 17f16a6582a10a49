"""The facts about jobs and nodes that `tenants` asks for (`tenants.facts`)."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from django.db.models import Count, Q, QuerySet, Sum

from scheduling.engine.states import OPEN, TERMINAL, WAITING
from scheduling.engine.types import JobKind, whole_milli
from scheduling.kube.door.config import own_namespace
from scheduling.kube.translate.node_groups import groups_of
from scheduling.models import Cluster, Job, NodeRecord, Placement, PodSet
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries.effects import quota_effects
from scheduling.queries.events.aftermath import aftermath
from scheduling.queries.nodes.installed import groups_to_come, pools_of
from scheduling.queries.queues.effects import queue_effects
from scheduling.queries.quota_use import QuotaKey, quota_book, quota_uses
from tenants.effects import Aftermath, Effects, PlannedTenant
from tenants.facts import JobCount, JobHolding, QueueLoad, QuotaUse
from tenants.models import Queue, Quota, User

EXAMPLES = 5


class Facts:
    """Implements `tenants.facts.SchedulingFacts` by queries."""

    def installed_milli(self, gpu_type: str) -> int | None:
        nodes = NodeRecord.objects.filter(cluster__is_active=True)
        growing = Cluster.objects.filter(is_active=True).exclude(node_groups={})
        groups = (g for c in growing for g in groups_of(c.node_groups, c.label_map))
        if not (nodes.exists() or any(group.example.devices for group in groups)):
            return None
        gpus = nodes.filter(gpu_model=gpu_type).aggregate(sum=Sum("gpus"))["sum"] or 0
        return 1000 * gpus + self.may_come_milli(gpu_type)

    def may_come_milli(self, gpu_type: str) -> int:
        gpus = 0
        for cluster in Cluster.objects.filter(is_active=True).exclude(node_groups={}):
            to_come = pools_of(cluster, groups_to_come(cluster, gpu_type), {})
            gpus += sum(pool.gpus for pool in to_come.values())
        return 1000 * gpus

    def holdings(self, tenant_ids: Collection[int], gpu_type: str) -> list[JobHolding]:
        rows = (
            Placement.objects.filter(
                state__in=LIVE_PLACEMENTS, gpu_model=gpu_type, job__tenant__in=tenant_ids
            )
            .order_by("-job__submitted_at", "job_id")
            .values_list("job_id", "job__name")
            .annotate(held=Sum(HELD))
        )
        return [JobHolding(str(job_id), name, whole_milli(held)) for job_id, name, held in rows]

    def quota_uses(self, instead: Quota | None = None) -> dict[tuple[str, str], QuotaUse]:
        stored = {(instead.tenant.name, instead.gpu_type.name): instead} if instead else None
        return {(u.tenant, u.gpu_model): u for u in quota_uses(quota_book(stored))}

    def quota_effects(
        self,
        viewer: User,
        after: Mapping[QuotaKey, Quota | None],
        planned: Mapping[str, PlannedTenant],
    ) -> Effects:
        return quota_effects(viewer, after, planned)

    def queue_effects(self, viewer: User, queue: Queue) -> Effects:
        return queue_effects(viewer, queue)

    def aftermath(
        self,
        since: datetime,
        until: datetime,
        *,
        gpu_types: Sequence[str],
        cluster: str,
        told: Sequence[str],
    ) -> Aftermath:
        return aftermath(since, until, gpu_types, cluster, told)

    def job_count(self, tenant_id: int) -> JobCount:
        jobs = Job.objects.filter(tenant=tenant_id)
        ended = jobs.filter(state__in=list(TERMINAL))
        open_jobs = jobs.filter(state__in=list(OPEN))
        examples = tuple(open_jobs.values_list("name", flat=True)[:EXAMPLES])
        return JobCount(open_jobs.count(), ended.count(), examples)

    def job_kinds(self) -> tuple[str, ...]:
        return tuple(kind.value for kind in JobKind)

    def queue_load(self, tenant_id: int, queue: str) -> QueueLoad:
        jobs = Job.objects.filter(tenant=tenant_id, queue=queue, state__in=list(OPEN))
        places = Placement.objects.filter(job__tenant=tenant_id, job__queue=queue)
        found = _loads(jobs, places).get((tenant_id, queue), QueueLoad(0, 0, (), {}))
        return replace(found, examples=tuple(jobs.values_list("name", flat=True)[:EXAMPLES]))

    def queue_named_by(self, tenant: str, queue: str) -> list[str]:
        target = f"{tenant}/{queue}"
        maps = Cluster.objects.order_by("name").values_list("name", "queue_map")
        return [name for name, queue_map in maps if target in queue_map.values()]

    def queue_loads(self) -> dict[tuple[int, str], QueueLoad]:
        return _loads(Job.objects.filter(state__in=list(OPEN)), Placement.objects.all())

    def reserved_namespaces(self) -> dict[str, str]:
        found = {
            c.namespace: f"In {c.namespace} of cluster “{c.name}” are the pods of all tenants "
            "without a namespace of their own."
            for c in Cluster.objects.all()
        }
        if own := own_namespace():
            found[own] = f"Kant itself runs in {own}: jobs could use its service account."
        return found

    def gpu_type_in_use(self, gpu_type: str) -> bool:
        if NodeRecord.objects.filter(gpu_model=gpu_type).exists():
            return True
        asking = PodSet.objects.filter(gpu_models__icontains=f'"{gpu_type}"')
        return asking.filter(job__state__in=list(OPEN)).exists()


def _loads(jobs: QuerySet[Job], places: QuerySet[Placement]) -> dict[tuple[int, str], QueueLoad]:
    """Return {(tenant, queue): its load} of open jobs, and of what placements hold."""
    waits = Count("id", filter=Q(state__in=list(WAITING)))
    rows = jobs.order_by().values_list("tenant_id", "queue").annotate(waits=waits, all=Count("id"))
    held: defaultdict[tuple[int, str], dict[str, int]] = defaultdict(dict)
    live = places.filter(state__in=LIVE_PLACEMENTS).order_by()
    sums = live.values_list("job__tenant_id", "job__queue", "gpu_model").annotate(held=Sum(HELD))
    for tenant, queue, model, milli in sums:
        if model:
            held[tenant, queue][model] = whole_milli(milli)
    return {
        (tenant, queue): QueueLoad(waiting, count - waiting, (), held[tenant, queue])
        for tenant, queue, waiting, count in rows
    }
