"""What another setting or state of a queue would do to jobs."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from django.db.models import Sum
from django.utils import timezone

from scheduling.engine.deltas import Delta, JobRestored, QueuesChanged
from scheduling.engine.states import HOLDING, OPEN
from scheduling.engine.types import QueueSpec
from scheduling.models import Cluster, Job, Placement
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries.effects import change_effects
from scheduling.session.memory.queues import specs_of
from tenants.effects import Effects
from tenants.models import Queue, User


def queue_effects(viewer: User, queue: Queue) -> Effects:
    """Return the effects of a queue being as this row says.

    If existing jobs would not notice the difference, nothing is worked out.
    """
    tenant = queue.tenant.name
    now = list(Queue.objects.filter(tenant=queue.tenant_id).order_by("name"))
    then = specs_of(tenant, [queue if row.pk == queue.pk else row for row in now])
    if then == specs_of(tenant, now):
        return Effects(timezone.now())
    jobs = Job.objects.filter(tenant=queue.tenant_id, state__in=list(OPEN))
    clusters = Cluster.objects.filter(is_active=True, pk__in=jobs.values("cluster"))
    change = QueuesChange(tenant, tuple(then), tuple(_holding_jobs(queue.tenant_id)))
    return change_effects(viewer, clusters.order_by("name"), change)


@dataclass(frozen=True, slots=True)
class HoldingJob:
    """A running job of the tenant on any cluster, with milli-GPU by model."""

    job: str
    queue: str
    held: Mapping[str, float]


def _holding_jobs(tenant_id: int) -> list[HoldingJob]:
    jobs = Job.objects.filter(tenant=tenant_id, state__in=list(HOLDING)).order_by("pk")
    rows = Placement.objects.filter(state__in=LIVE_PLACEMENTS, job__tenant=tenant_id).order_by()
    held: dict[str, dict[str, float]] = {}
    sums = rows.values_list("job", "gpu_model").annotate(held=Sum(HELD))
    for job, model, milli in sums:
        held.setdefault(str(job), {})[model] = milli
    return [
        HoldingJob(str(pk), name, held.get(str(pk), {}))
        for pk, name in jobs.values_list("pk", "queue")
    ]


@dataclass(frozen=True, slots=True)
class QueuesChange:
    """The tenant's queues are these; `holders`: its running jobs, on all clusters."""

    tenant: str
    then: tuple[QueueSpec, ...]
    holders: tuple[HoldingJob, ...]

    def __call__(self, facts: Sequence[Delta]) -> list[QueuesChanged]:
        told = next(fact for fact in facts if isinstance(fact, QueuesChanged))
        here = {fact.job.id for fact in facts if isinstance(fact, JobRestored)}
        limited = {q.name for q in self.then if q.max_running is not None or q.max_milli}
        elsewhere = [h for h in self.holders if h.job not in here and h.queue in limited]
        jobs = Counter(holder.queue for holder in elsewhere)
        held: defaultdict[tuple[str, str], float] = defaultdict(float)
        for holder in elsewhere:
            for model, milli in holder.held.items():
                held[holder.queue, model] += milli
        mine = self.tenant
        return [
            replace(
                told,
                queues=(*(q for q in told.queues if q.tenant != mine), *self.then),
                jobs_elsewhere=(
                    *(row for row in told.jobs_elsewhere if row[0] != mine),
                    *((mine, queue, count) for queue, count in sorted(jobs.items())),
                ),
                held_elsewhere=(
                    *(row for row in told.held_elsewhere if row[0] != mine),
                    *((mine, *of, milli) for of, milli in sorted(held.items())),
                ),
            )
        ]
