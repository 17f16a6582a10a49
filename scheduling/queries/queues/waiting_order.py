"""The order in which a scheduler gets to the jobs that wait their turn, by what it last wrote."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.db.models import (
    Case,
    DateTimeField,
    F,
    FloatField,
    IntegerField,
    Q,
    QuerySet,
    Value,
    When,
)

from scheduling.engine.queue.fair_share import of_its_own
from scheduling.engine.states import WAITING
from scheduling.engine.verdict import KEPT_NODES, NEVER, Reason
from scheduling.models import Job, SchedulerLease, StandingOrder
from tenants.models import Tenant, User
from tenants.permissions import access_of

SHOWN_AHEAD = 5
# Waiting jobs with these reasons block nobody.
OUT_OF_ORDER = NEVER | {
    Reason.ON_HOLD,
    Reason.QUEUE_HELD,
    Reason.WAITING_FOR_VOLUME,
    Reason.WAITING_FOR_DEVICES,
    Reason.WAITING_FOR_NODES,
    Reason.BACKING_OFF,
}
FRONT = datetime(1970, 1, 1, tzinfo=UTC)  # before any submission

# Since when a job stands in the order among its equals, like `order_key`.
STANDS_AT = Case(
    When(front=True, then=Value(FRONT)),
    When(stands_at__isnull=False, declared_s__isnull=True, then=F("stands_at")),
    default=F("submitted_at"),
    output_field=DateTimeField(),
)

ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class JobAhead:
    """A waiting job that comes first; only its size if the viewer may not see its tenant."""

    job: str | None
    name: str | None
    tenant: str | None
    gpu_milli: int


def stands_in_order(job: Job) -> bool:
    """Whether the job waits its turn: not if it is held, say, or will never run."""
    return job.state in WAITING and not job.held and job.reason not in OUT_OF_ORDER


def stands_at(job: Job) -> datetime:
    """Return since when the job stands in the order, ignoring that a fault put it to the front."""
    return job.submitted_at if job.declared_s is not None else job.stands_at or job.submitted_at


@dataclass(frozen=True, slots=True)
class WaitingOrder:
    """The waiting jobs of a scope by their own places, and what its scheduler wrote of its order.

    - `ranks`: by tenant id.
    - `user_shares`: {tenant: {user id: share}}.
    - `told`: the order itself, if tenants' queues affect it; of the `whole` queue, or of its first
      jobs.
    """

    cluster: int
    scope: str
    jobs: QuerySet[Job]
    ranks: dict[int, int]
    user_shares: dict[str, dict[str, float]]
    told: tuple[UUID, ...] = ()
    whole: bool = True

    def ids(self) -> list[UUID]:
        """Return all jobs in the order of the scheduler.

        A job that came after the order was written stands behind the job that it follows by its own
        place.
        """
        by_places = list(self.jobs.values_list("id", flat=True))
        told = dict.fromkeys(self.told)
        if not told:
            return by_places
        waits = set(by_places)
        behind: dict[UUID | None, list[UUID]] = {}
        last: UUID | None = None
        for job in by_places:
            if job in told:
                last = job
            else:
                behind.setdefault(last, []).append(job)
        found = behind.pop(None, [])
        for job in told:
            found += [job] * (job in waits) + (behind.pop(job, []) if self.whole else [])
        return found + [job for jobs in behind.values() for job in jobs]


def standing_in(cluster_id: int, scope: str) -> WaitingOrder:
    """Return the jobs that wait their turn at a scheduler, by their own places.

    These are by priority; turn (nodes are kept for the job); the shares of the tenants from the
    root down, and of the user, if these count; whether a fault stopped the job; `STANDS_AT`; and
    size.
    """
    leases = SchedulerLease.objects.select_related("order")
    lease = leases.filter(cluster=cluster_id, scope=scope).first()
    told: StandingOrder | None = getattr(lease, "order", None)
    shares: dict[str, float] = lease.shares if lease else {}
    user_shares: dict[str, dict[str, float]] = lease.user_shares if lease else {}
    waiting = Job.objects.filter(
        cluster=cluster_id, scope=scope, state__in=list(WAITING), held=False
    ).exclude(reason__in=list(OUT_OF_ORDER))
    ranks = _ranks_of_tenants({*waiting.order_by().values_list("tenant", flat=True)}, shares)
    # Shares do not count among jobs for which nodes are kept.
    kept = When(evidence__has_key=KEPT_NODES, then=Value(0))
    of_rank: dict[int, list[int]] = {}
    for tenant, rank in ranks.items():
        of_rank.setdefault(rank, []).append(tenant)
    tenants = [When(tenant__in=ids, then=Value(rank)) for rank, ids in of_rank.items() if rank]
    users = [
        When(tenant__name=name, user=user, then=Value(share))
        for name, user, share in _users_who_wait(waiting, user_shares)
    ]
    ordered = waiting.annotate(
        turn=Case(kept, default=Value(1), output_field=IntegerField()),
        rank=Case(kept, *tenants, default=Value(0), output_field=IntegerField()),
        user_share=Case(kept, *users, default=Value(0.0), output_field=FloatField()),
        at=STANDS_AT,
    ).order_by("-priority", "turn", "rank", "user_share", "at", "gpu_milli", "id")
    seen = tuple(ids_of(bytes(told.jobs))) if told else ()
    whole = told is None or told.whole
    return WaitingOrder(cluster_id, scope, ordered, ranks, user_shares, seen, whole=whole)


def _before(job: Job) -> tuple[int, list[UUID]]:
    """Return how many waiting jobs of its scheduler are ahead, and the first SHOWN_AHEAD."""
    standing = standing_in(job.cluster_id, job.scope)
    by_places = _by_places(standing, job)
    if not standing.told:
        return by_places.count(), list(by_places.values_list("id", flat=True)[:SHOWN_AHEAD])
    ids = standing.ids()
    if job.pk in ids:
        count = ids.index(job.pk)
    else:  # a rehearsal: no scheduler has seen it
        last = by_places.values_list("id", flat=True).last()
        count = 0 if last is None else ids.index(last) + 1
    return count, ids[:count][:SHOWN_AHEAD]


def _by_places(standing: WaitingOrder, job: Job) -> QuerySet[Job]:
    """Return the jobs before this one by their own places."""
    turn, mine, own = 0, 0, 0.0
    if KEPT_NODES not in job.evidence:
        turn, mine = 1, standing.ranks.get(job.tenant_id, 0)
        own = standing.user_shares.get(job.tenant.name, {}).get(str(job.user_id or ""), 0.0)
    at = FRONT if job.front else stands_at(job)
    same_priority = Q(priority=job.priority)
    same_turn = same_priority & Q(turn=turn)
    same_rank = same_turn & Q(rank=mine)
    same_share = same_rank & Q(user_share=own)
    same_time = same_share & Q(at=at)
    return standing.jobs.exclude(id=job.pk).filter(
        Q(priority__gt=job.priority)
        | (same_priority & Q(turn__lt=turn))
        | (same_turn & Q(rank__lt=mine))
        | (same_rank & Q(user_share__lt=own))
        | (same_share & Q(at__lt=at))
        | (same_time & Q(gpu_milli__lt=job.gpu_milli))
        | (same_time & Q(gpu_milli=job.gpu_milli, id__lt=job.pk))
    )


def _ranks_of_tenants(waiting: set[int], shares: dict[str, float]) -> dict[int, int]:
    """Return the rank of each waiting tenant, by id: by its shares from the root down.

    Missing levels count as 0. Equal shares have equal ranks.
    """
    if not shares:
        return {}
    tree = {
        pk: (name, above) for pk, name, above in Tenant.objects.values_list("id", "name", "parent")
    }
    members = {above for _, above in tree.values()}
    found: dict[int, list[float]] = {}
    for tenant in waiting:
        path = [shares.get(of_its_own(tree[tenant][0]), 0.0)] if tenant in members else []
        at: int | None = tenant
        while at is not None:
            name, at = tree[at]
            path.append(shares.get(name, 0.0))
        found[tenant] = path[::-1]
    depth = max(map(len, found.values()), default=0)
    keys = {tenant: (*path, *[0.0] * (depth - len(path))) for tenant, path in found.items()}
    order = {key: rank for rank, key in enumerate(sorted(set(keys.values())))}
    return {tenant: order[key] for tenant, key in keys.items()}


def _users_who_wait(
    waiting: QuerySet[Job], shares: dict[str, dict[str, float]]
) -> Iterator[tuple[str, int | None, float]]:
    """Yield (tenant, user id, share) of users with waiting jobs.

    Everyone who ever ran a job may have a share, which is too many for one query.
    """
    if not shares:
        return
    for tenant, user in waiting.order_by().values_list("tenant__name", "user").distinct():
        share = shares.get(tenant, {}).get(str(user or ""))
        if share:
            yield tenant, user, share


@dataclass(frozen=True, slots=True)
class PlaceInOrder:
    """Where a job is: `position` from 1, and the first SHOWN_AHEAD of the jobs before it.

    The very first job comes first. None and empty if it is in no order.
    """

    position: int | None = None
    ahead: tuple[JobAhead, ...] = ()


def place_of(viewer: User, job: Job) -> PlaceInOrder:
    """Return the place of a job, as the viewer may see it."""
    if not stands_in_order(job):
        return PlaceInOrder()
    count, ids = _before(job)
    access = access_of(viewer)
    rows = Job.objects.select_related("tenant").in_bulk(ids)
    ahead = tuple(
        JobAhead(str(j.pk), j.name, j.tenant.name, j.gpu_milli)
        if access.may_view(j.tenant_id)
        else JobAhead(None, None, None, j.gpu_milli)
        for j in (rows[pk] for pk in ids if pk in rows)
    )
    return PlaceInOrder(count + 1, ahead)


def positions(jobs: Iterable[Job]) -> dict[UUID, int]:
    """Return the places, from 1, of jobs that are in an order; each order is read once."""
    standing: dict[tuple[int, str], list[UUID]] = {}
    for job in jobs:
        if stands_in_order(job):
            standing.setdefault((job.cluster_id, job.scope), []).append(job.pk)
    found: dict[UUID, int] = {}
    for (cluster_id, scope), asked in standing.items():
        places = {pk: at for at, pk in enumerate(standing_in(cluster_id, scope).ids(), 1)}
        found |= {pk: places[pk] for pk in asked if pk in places}
    return found


def packed(jobs: Iterable[str]) -> bytes:
    """Pack ids of jobs as StandingOrder keeps them."""
    return bytes.fromhex("".join(jobs).replace("-", ""))


def ids_of(order: bytes) -> Iterator[UUID]:
    """Yield the ids that `packed` packed."""
    for at in range(0, len(order), ID_BYTES):
        yield UUID(bytes=order[at : at + ID_BYTES])
