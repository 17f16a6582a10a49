"""What is in queues, with a few queries however many queues there are.

Waiting jobs by stage, the head of each queue and why it waits, what its jobs hold, arrivals and
starts.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import (
    BooleanField,
    Case,
    Count,
    F,
    Min,
    Q,
    QuerySet,
    Sum,
    Value,
    When,
    Window,
)
from django.db.models.functions import RowNumber
from django.utils import timezone

from scheduling.engine.states import HOLDING, WAITING, JobEventKind, JobState
from scheduling.engine.types import whole_milli
from scheduling.engine.verdict import KEPT_NODES, Reason
from scheduling.models import Job, JobEvent, Placement, PodSet, SchedulerLease
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries.explain import GATE_OF
from scheduling.queries.queues.waiting_order import (
    OUT_OF_ORDER,
    STANDS_AT,
    WaitingOrder,
    standing_in,
)
from tenants.models import Queue

# The stages of a job, in order (docs/operating/queues.md).
TENANT_QUEUE, QUOTA_ADMITTED, GLOBAL_QUEUE, BEING_PLACED = STAGES = (
    "tenant-queue",
    "quota-admitted",
    "global-queue",
    "being-placed",
)
PERIOD = timedelta(hours=1)  # of arrivals and starts
Key = tuple[int, str]  # tenant and name of a queue


@dataclass(slots=True)
class QueueNow:
    """A queue and what is in it.

    - `stages`: by stage, the jobs that do not run yet; `starting` of them have their places.
    - `held`: milli-GPU by GPU type.
    - `arrived`, `started`: jobs in the last PERIOD.
    """

    queue: Queue
    stages: Counter[str] = field(default_factory=Counter)
    asked_milli: int = 0
    oldest: datetime | None = None
    head: Job | None = None
    starting: int = 0
    running: int = 0
    held: dict[str, int] = field(default_factory=dict)
    arrived: int = 0
    started: int = 0

    @property
    def waiting(self) -> int:
        """How many jobs have no places yet."""
        return self.stages.total() - self.starting

    @property
    def held_milli(self) -> int:
        return sum(self.held.values())


def stage_of(state: str, reason: str, *, held: bool = False) -> str:
    """Return the stage of an open job that does not run yet."""
    if state == JobState.ADMITTED or reason == Reason.WAITING_FOR_PREEMPTION:
        return BEING_PLACED
    if held or reason in OUT_OF_ORDER:
        return TENANT_QUEUE
    if GATE_OF.get(reason) in ("capacity", "placement"):
        return GLOBAL_QUEUE
    # It has its quota and is behind others, or has not been looked at since.
    passed = reason in (Reason.BEHIND_IN_QUEUE, Reason.PENDING_EVALUATION)
    return QUOTA_ADMITTED if passed and state == JobState.QUOTA_RESERVED else TENANT_QUEUE


def counted(queues: Collection[Queue]) -> list[QueueNow]:
    """Return what is in each of some queues, in their order, without heads and flow."""
    return list(_counted(queues).values())


def queues_now(queues: Collection[Queue]) -> list[QueueNow]:
    """Return what is in each of some queues, in their order."""
    found = _counted(queues)
    tenants = {tenant for tenant, _ in found}
    jobs = Job.objects.filter(tenant__in=tenants).order_by()
    _count_flow(found, jobs)
    for job in heads(jobs.filter(state__in=list(WAITING))):
        if now := found.get((job.tenant_id, job.queue)):
            now.head = job
    return list(found.values())


def heads(waiting: QuerySet[Job]) -> Iterator[Job]:
    """Yield the first job of each queue that stands in order, or else the first one held back."""
    first = Window(RowNumber(), partition_by=[F("tenant_id"), F("queue")], order_by=_ORDER)
    ids = waiting.annotate(aside=_ASIDE, kept=_KEPT, at=STANDS_AT, place=first).filter(place=1)
    found: dict[Key, UUID] = {}
    queues_at: defaultdict[tuple[int, str], set[Key]] = defaultdict(set)
    columns = ("id", "tenant_id", "queue", "cluster_id", "scope", "place")
    for pk, tenant, name, cluster, scope, _ in ids.values_list(*columns):
        found[tenant, name] = pk
        queues_at[cluster, scope].add((tenant, name))
    for standing in _own_orders(queues_at):
        keys = queues_at[standing.cluster, standing.scope]
        rows = standing.jobs.order_by().values_list("id", "tenant_id", "queue")
        key_of = {pk: (tenant, name) for pk, tenant, name in rows}
        for pk in reversed(standing.ids()):
            if (key := key_of.get(pk)) in keys:
                found[key] = pk
    shown = Job.objects.filter(pk__in=found.values()).select_related("tenant", "cluster")
    return iter(shown.prefetch_related("pod_sets"))


def first_of(queue: Queue, most: int) -> Sequence[Job]:
    """Return the first waiting jobs of a queue in its order; those that are held back come last."""
    waiting = (
        Job.objects.filter(tenant=queue.tenant_id, queue=queue.name, state__in=list(WAITING))
        .annotate(aside=_ASIDE, kept=_KEPT, at=STANDS_AT)
        .order_by(*_ORDER)
    )
    where = set(waiting.order_by().values_list("cluster_id", "scope").distinct())
    ids: Sequence[UUID]
    if own := _own_orders(where):
        ids = list(waiting.values_list("id", flat=True))
        for standing in own:
            ids = _in_turn(ids, standing.ids())
        ids = ids[:most]
    else:
        ids = list(waiting.values_list("id", flat=True)[:most])
    rows = Job.objects.select_related("tenant", "cluster", "user").prefetch_related("pod_sets")
    jobs = rows.in_bulk(ids)
    return [jobs[pk] for pk in ids if pk in jobs]


def _own_orders(where: Collection[tuple[int, str]]) -> list[WaitingOrder]:
    """Return the orders of schedulers that do not order a queue's jobs by their own places alone.

    `where`: the clusters and scopes that matter.
    """
    own = SchedulerLease.objects.filter(Q(order__isnull=False) | ~Q(user_shares={}))
    scopes = own.order_by("cluster_id", "scope").values_list("cluster_id", "scope")
    return [standing_in(*at) for at in scopes if at in where]


def _in_turn(ids: Sequence[UUID], order: Sequence[UUID]) -> list[UUID]:
    """Return the ids, with those in `order` rearranged to it among the places that they occupy."""
    there = set(ids)
    turn = [pk for pk in order if pk in there]
    in_order, next_one = set(turn), iter(turn)
    return [next(next_one) if pk in in_order else pk for pk in ids]


def first_by_model(standing: WaitingOrder, ids: Sequence[UUID]) -> dict[str, UUID]:
    """Return {GPU model that jobs name first: the first of them}; `ids`: the jobs in order."""
    jobs = standing.jobs.order_by().values("id")
    named = PodSet.objects.filter(job__in=jobs, index=0).values_list("job_id", "gpu_models")
    models = {job: names[0] for job, names in named if names}
    found: dict[str, UUID] = {}
    for job in ids:
        if model := models.get(job):
            found.setdefault(model, job)
    return found


def _counted(queues: Collection[Queue]) -> dict[Key, QueueNow]:
    found = {(queue.tenant_id, queue.name): QueueNow(queue) for queue in queues}
    tenants = {tenant for tenant, _ in found}
    jobs = Job.objects.filter(tenant__in=tenants).order_by()
    _count_waiting(found, jobs)
    _count_holding(found, jobs, tenants)
    return found


# The order in which `standing_in` has the jobs of one tenant.
_ASIDE = Case(
    When(Q(held=True) | Q(reason__in=[r.value for r in OUT_OF_ORDER]), then=Value(True)),
    default=Value(False),
    output_field=BooleanField(),
)
_KEPT = Case(
    When(evidence__has_key=KEPT_NODES, then=Value(False)),
    default=Value(True),
    output_field=BooleanField(),
)
_ORDER = [
    *(F("aside").asc(), F("priority").desc(), F("kept").asc(), F("at").asc()),
    *(F("gpu_milli").asc(), F("id").asc()),
]


def _count_waiting(found: dict[Key, QueueNow], jobs: QuerySet[Job]) -> None:
    rows = (
        jobs.filter(state__in=list(WAITING))
        .values_list("tenant_id", "queue", "state", "reason", "held")
        .annotate(count=Count("id"), milli=Sum("gpu_milli"), oldest=Min("submitted_at"))
    )
    for tenant, queue, state, reason, is_held, count, milli, oldest in rows:
        now = found.get((tenant, queue))
        if now is not None:
            now.stages[stage_of(state, reason, held=is_held)] += count
            now.asked_milli += milli
            now.oldest = min(now.oldest or oldest, oldest)


def _count_holding(
    found: dict[Key, QueueNow], jobs: QuerySet[Job], tenants: Collection[int]
) -> None:
    """Count the jobs that have their places, and what they hold."""
    rows = jobs.filter(state__in=list(HOLDING)).values_list("tenant_id", "queue", "state")
    for tenant, queue, state, count in rows.annotate(count=Count("id")):
        now = found.get((tenant, queue))
        if now is None:
            continue
        if state == JobState.ADMITTED:
            now.stages[BEING_PLACED] += count
            now.starting += count
        else:
            now.running += count
    held = (
        Placement.objects.filter(state__in=LIVE_PLACEMENTS, job__tenant__in=tenants)
        .order_by()
        .values_list("job__tenant_id", "job__queue", "gpu_model")
        .annotate(milli=Sum(HELD))
    )
    for tenant, queue, model, milli in held:
        now = found.get((tenant, queue))
        if now is not None and model:
            now.held[model] = whole_milli(milli)


def _count_flow(found: dict[Key, QueueNow], jobs: QuerySet[Job]) -> None:
    since = timezone.now() - PERIOD
    came = jobs.filter(submitted_at__gte=since).values_list("tenant_id", "queue")
    # Of all tenants: there is an index by time, while a filter by tenant would read all their jobs.
    events = JobEvent.objects.filter(at__gte=since, kind=JobEventKind.ADMITTED.value)
    began = events.order_by().values_list("job__tenant_id", "job__queue")
    counts: defaultdict[Key, list[int]] = defaultdict(lambda: [0, 0])
    for at, rows in enumerate((came, began)):
        for tenant, queue, count in rows.annotate(count=Count("id")):
            counts[tenant, queue][at] = count
    for key, (arrived, started) in counts.items():
        if now := found.get(key):
            now.arrived, now.started = arrived, started
