"""The facts about jobs and nodes that `tenants` asks for (`tenants.facts`)."""

from collections.abc import Collection

from django.db.models import Sum

from scheduling.engine.states import OPEN, TERMINAL
from scheduling.engine.types import whole_milli
from scheduling.kube.door.config import own_namespace
from scheduling.models import Cluster, Job, NodeRecord, Placement, PodSet
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries.quota_use import quota_book, quota_uses
from tenants.facts import JobCount, JobHolding, QuotaUse
from tenants.models import Quota

EXAMPLES = 5


class Facts:
    """Implements `tenants.facts.SchedulingFacts` by queries."""

    def installed_milli(self, gpu_type: str) -> int | None:
        nodes = NodeRecord.objects.filter(cluster__is_active=True)
        if not nodes.exists():
            return None
        gpus = nodes.filter(gpu_model=gpu_type).aggregate(sum=Sum("gpus"))["sum"]
        return (gpus or 0) * 1000

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
        return {(u.tenant, u.gpu_model): u for u in quota_uses(quota_book(instead))}

    def job_count(self, tenant_id: int) -> JobCount:
        jobs = Job.objects.filter(tenant=tenant_id)
        ended = jobs.filter(state__in=list(TERMINAL))
        open_jobs = jobs.filter(state__in=list(OPEN))
        examples = tuple(open_jobs.values_list("name", flat=True)[:EXAMPLES])
        return JobCount(open_jobs.count(), ended.count(), examples)

    def reserved_namespaces(self) -> dict[str, str]:
        found = {
            c.namespace: f"In {c.namespace} of cluster “{c.name}” are the pods of all tenants that "
            "have none."
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
