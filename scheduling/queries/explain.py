"""Why a job waits, or one that runs has no more pods: the stored verdict, the gate it stands
at, who is before it, and when it may start as far as that is known."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

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
from scheduling.engine.states import HOLDING, TERMINAL, WAITING
from scheduling.engine.types import Policy, QueueingPolicy
from scheduling.engine.verdict import KEPT_NODES, NEVER, Reason
from scheduling.models import ClusterPolicy, Job, Placement, PodSet, SchedulerLease
from scheduling.models.jobs import LIVE_PLACEMENTS, RESIZED, PlacementState
from scheduling.policy.document import to_policy
from scheduling.queries.standstill import standstill
from tenants.models import Tenant, User
from tenants.permissions import access_of

GATES = ("spec", "quota", "order", "capacity", "placement")
# The gate at which a job with this reason stands; PendingEvaluation has not come to any.
GATE_OF: dict[str, str] = {
    Reason.MISCONFIGURED: "spec",
    Reason.NO_MATCHING_GPU_TYPE: "spec",
    Reason.EXCEEDS_MAX_QUOTA: "quota",
    Reason.WAITING_FOR_QUOTA: "quota",
    Reason.BORROW_LIMIT_REACHED: "quota",
    Reason.QUEUE_LIMIT_REACHED: "quota",
    Reason.ON_HOLD: "order",
    Reason.QUEUE_HELD: "order",
    Reason.WAITING_FOR_VOLUME: "order",
    Reason.BACKING_OFF: "order",
    Reason.BEHIND_IN_QUEUE: "order",
    Reason.EXCEEDS_CAPACITY: "capacity",
    Reason.INSUFFICIENT_GPUS: "capacity",
    Reason.WAITING_FOR_PREEMPTION: "capacity",
    Reason.RESERVED_FOR_HEAD: "capacity",
    Reason.INSUFFICIENT_CPU_OR_MEMORY: "placement",
    Reason.FRAGMENTED_CAPACITY: "placement",
}
SHOWN_AHEAD = 5
# Waiting jobs with these reasons stand in nobody's way.
OUT_OF_ORDER = NEVER | {
    Reason.ON_HOLD,
    Reason.QUEUE_HELD,
    Reason.WAITING_FOR_VOLUME,
    Reason.BACKING_OFF,
}
FRONT = datetime(1970, 1, 1, tzinfo=UTC)  # before any submission


@dataclass(frozen=True, slots=True)
class Gate:
    """One step on the way to a start; `ok` None = not reached yet."""

    gate: str
    ok: bool | None


@dataclass(frozen=True, slots=True)
class JobAhead:
    """A waiting job that comes first; of tenants the viewer may not see only its size."""

    job: str | None
    name: str | None
    tenant: str | None
    gpu_milli: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is known about why a job is where it is. `position` counts from 1; it and `ahead`
    are of all waiting jobs of its scheduler, whichever GPU type they ask for, in its order of now:
    with fair shares each start changes it. Jobs that stand in no order have neither."""

    job: str
    state: str
    reason: str
    summary: str
    since: datetime | None
    will_never_run: bool
    evidence: dict[str, Any]
    remedies: tuple[str, ...]
    gates: tuple[Gate, ...]
    position: int | None
    ahead: tuple[JobAhead, ...]
    reservation: "Reserved | None"
    start: "Start | None"
    growth: "Growth | None"
    standstill: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """When and where a blocked head is expected to start, as declared run times promise."""

    starts_at: datetime
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Growth:
    """Why a job that runs `has` fewer pods than it `asked` for, as it was told last; `reason` ""
    and `since` None where no reason of a waiting job is the cause."""

    has: int
    asked: int
    reason: str
    summary: str
    since: datetime | None
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """What is known of the start of a waiting job. `at` by `basis`: `reservation`: expected then;
    `earliest`: not before; `forecast`: there is room then for whoever is first; None where nobody
    can know (`held`, `promised`, `never`, `unknown`)."""

    at: datetime | None
    basis: str
    text: str


def explain_job(viewer: User, job: Job) -> Explanation:
    """Read what the last cycles said of a job. The caller has checked that it may be seen."""
    waits = job.state in WAITING
    evidence = dict(job.evidence)
    return Explanation(
        job=str(job.pk),
        state=job.state,
        reason=job.reason,
        summary=job.message,
        since=job.reason_at,
        will_never_run=waits and job.reason in NEVER,
        evidence=evidence,
        remedies=tuple(evidence.pop("remedies", ())),
        gates=gates_of(job),
        position=position_of(job),
        ahead=ahead_of(viewer, job),
        reservation=_reserved(job) if waits else None,
        start=start_of(job) if waits else None,
        growth=growth_of(job),
        standstill=standstill_of(job),
    )


def standstill_of(job: Job) -> str:
    """Why nothing is decided about the job now; "" while a scheduler is at work, or it is over."""
    return "" if job.state in TERMINAL else standstill(job.cluster)


def growth_of(job: Job) -> Growth | None:
    """Why the job has no more pods; None of all but jobs that run and miss some, and can do without
    them."""
    if job.state not in HOLDING:
        return None
    sets = list(job.pod_sets.all())
    if job.gang and all(s.min_count is None or s.min_count >= s.count for s in sets):
        return None
    asked = sum(s.count for s in sets)
    places = list(job.placements.filter(attempt__gte=job.attempt))
    has = pods_here(sets, places)
    if has >= asked:
        return None
    if job.gang and any(place.state == PlacementState.SUCCEEDED for place in places):
        text = "Pods of it have done their work: it is coming to its end and grows no more."
        return Growth(has, asked, "", text, None, {})
    if job.growth is None:
        text = "The scheduler has not looked for more places yet."
        return Growth(has, asked, "", text, None, {})
    told = job.growth
    at = datetime.fromisoformat(told["at"])
    return Growth(has, asked, told["reason"], told["summary"], at, told["evidence"])


def pods_here(sets: Iterable[PodSet], places: Iterable[Placement]) -> int:
    """How many of the pods that a job asks for keep a place, or have done their work; `places` are
    those since all of it was placed last."""
    counts, here = {s.index: s.count for s in sets}, Counter[int]()
    for place in places:
        stays = place.state in LIVE_PLACEMENTS and place.reason != RESIZED
        done = place.state == PlacementState.SUCCEEDED
        here[place.pod_set] += stays or (done and place.ordinal < counts.get(place.pod_set, 0))
    return sum(min(here[index], count) for index, count in counts.items())


def start_of(job: Job) -> Start:
    """When a waiting job may start, as far as the scheduler knows; no guess beyond that."""
    if job.reserved_start is not None:
        nodes = len(job.reserved_nodes)
        on = "one node" if nodes == 1 else f"{nodes} nodes"
        text = f"It is expected to start on {on}, if running jobs end as they declared."
        return Start(job.reserved_start, "reservation", text)
    if job.reason in NEVER:
        return Start(None, "never", "It will not start as it is.")
    match job.reason:
        case Reason.WAITING_FOR_PREEMPTION:
            text = "Its places are held; it starts when the pods that make room are gone."
            return Start(None, "promised", text)
        case Reason.BACKING_OFF if "not_before" in job.evidence:
            at = datetime.fromtimestamp(job.evidence["not_before"], UTC)
            return Start(at, "earliest", "It is not tried earlier.")
        case Reason.RESERVED_FOR_HEAD if "starts_at" in job.evidence:
            at = datetime.fromtimestamp(job.evidence["starts_at"], UTC)
            text = "The free GPUs are kept for a job ahead, which is expected to start then."
            return Start(at, "earliest", text)
        case Reason.ON_HOLD:
            return Start(None, "held", _why_held(job))
        case Reason.QUEUE_HELD:
            return Start(None, "held", "Not before its queue is released.")
        case Reason.WAITING_FOR_VOLUME:
            return Start(None, "held", "Not before its volumes can be mounted.")
        case Reason.WAITING_FOR_QUOTA | Reason.BORROW_LIMIT_REACHED:
            text = (
                "It waits for quota, and nobody knows when that is there: a start is worked out, "
                "by the run times declared, under backfill for the first job that waits for it."
            )
            return Start(None, "unknown", text)
        case Reason.QUEUE_LIMIT_REACHED:
            text = "When jobs of its queue have ended; nobody forecasts that."
            return Start(None, "unknown", text)
    return Start(None, "unknown", _why_unknown(job))


def _why_held(job: Job) -> str:
    if job.pod_hold and not job.held:
        return "Not before its pod has changed."
    if not job.held:
        return f"When the jobs before it have ended{_but_never(job)}."
    others = " and what it waits for is over" if job.after or job.after_ok else ""
    return f"Not before it is released{others}."


def _but_never(job: Job) -> str:
    """What is to be said where jobs that it waits for do not end by themselves."""
    names = [*job.after, *job.after_ok]
    before = Job.objects.filter(Q(pk__in=names) | Q(array_id__in=names), state__in=WAITING)
    stuck = before.filter(reason__in=[reason.value for reason in NEVER]).count()
    if not stuck:
        return ""
    which = "one of them" if stuck == 1 else f"{stuck} of them"
    return f"; {which} will never run as it is and has to be changed or cancelled"


def policy_in_use(cluster_id: int) -> Policy:
    """The policy that the schedulers of a cluster go by."""
    row = ClusterPolicy.objects.filter(cluster=cluster_id).first()
    try:
        return to_policy(row.document if row else {})
    except (TypeError, ValueError):
        return Policy()  # what they go by while the document cannot be read


def _why_unknown(job: Job) -> str:
    policy = policy_in_use(job.cluster_id)
    if policy.queueing is not QueueingPolicy.BACKFILL:
        return f"The policy {policy.queueing} makes no forecast; backfill makes one for heads."
    which = "of a GPU type" if job.gpu_milli else "without GPUs"
    return (
        f"Only the first blocked job {which} gets a forecast, and only where the run times that "
        "running jobs declare promise it a start."
    )


def _reserved(job: Job) -> Reserved | None:
    if job.reserved_start is None:
        return None
    return Reserved(job.reserved_start, tuple(job.reserved_nodes))


def gates_of(job: Job) -> tuple[Gate, ...]:
    """The gates in their order: passed, where its reason stops the job, not reached."""
    if job.state not in WAITING:
        passed = True if job.admitted_at else None
        return tuple(Gate(gate, passed) for gate in GATES)
    if job.reason not in GATE_OF:
        return tuple(Gate(gate, None) for gate in GATES)
    at = GATES.index(GATE_OF[job.reason])
    return tuple(
        Gate(g, True if i < at else False if i == at else None) for i, g in enumerate(GATES)
    )


def stands_in_order(job: Job) -> bool:
    """Whether it waits its turn: not while it is held, say, nor as one that will never run."""
    return job.state in WAITING and not job.held and job.reason not in OUT_OF_ORDER


def position_of(job: Job) -> int | None:
    """Its place in the queue, from 1; None where it stands in no order."""
    return before_in_queue(job).count() + 1 if stands_in_order(job) else None


@dataclass(frozen=True, slots=True)
class WaitingOrder:
    """The waiting jobs of a scheduler in its order, and the shares that it wrote of it. `ranks`: by
    id of a tenant; `user_shares`: {tenant: {id of a user: share}}."""

    jobs: QuerySet[Job]
    ranks: dict[int, int]
    user_shares: dict[str, dict[str, float]]


def standing_in(cluster_id: int, scope: str) -> WaitingOrder:
    """Who waits their turn at a scheduler, the first first: by priority, for whom places are kept
    as it is their turn, the shares of the tenants from the root down and of the user where those
    count, who was stopped by a fault, then time, then size."""
    lease = SchedulerLease.objects.filter(cluster=cluster_id, scope=scope).first()
    shares: dict[str, float] = lease.shares if lease else {}
    user_shares: dict[str, dict[str, float]] = lease.user_shares if lease else {}
    waiting = Job.objects.filter(
        cluster=cluster_id, scope=scope, state__in=list(WAITING), held=False
    ).exclude(reason__in=list(OUT_OF_ORDER))
    ranks = _ranks_of_tenants({*waiting.order_by().values_list("tenant", flat=True)}, shares)
    # Between those for whom places are kept, shares do not count.
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
        at=Case(
            When(front=True, then=Value(FRONT)),
            default=F("submitted_at"),
            output_field=DateTimeField(),
        ),
    ).order_by("-priority", "turn", "rank", "user_share", "at", "gpu_milli", "id")
    return WaitingOrder(ordered, ranks, user_shares)


def before_in_queue(job: Job) -> QuerySet[Job]:
    """Waiting jobs of its scheduler that stand before it. The first comes first."""
    standing = standing_in(job.cluster_id, job.scope)
    turn, mine, own = 0, 0, 0.0
    if KEPT_NODES not in job.evidence:
        turn, mine = 1, standing.ranks.get(job.tenant_id, 0)
        own = standing.user_shares.get(job.tenant.name, {}).get(str(job.user_id or ""), 0.0)
    at = FRONT if job.front else job.submitted_at
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
    """By id of a tenant its place among those that wait: by its shares from the root down, 0 for
    levels that it does not have. Equal shares are of equal rank."""
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
    """(tenant, id of a user of it, share) of those whose jobs wait: all who ever ran a job may have
    a share, too many for one query."""
    if not shares:
        return
    for tenant, user in waiting.order_by().values_list("tenant__name", "user").distinct():
        share = shares.get(tenant, {}).get(str(user or ""))
        if share:
            yield tenant, user, share


def ahead_of(viewer: User, job: Job) -> tuple[JobAhead, ...]:
    """The first SHOWN_AHEAD of the jobs before it, the very first of all at the beginning; none
    where it stands in no order."""
    if not stands_in_order(job):
        return ()
    access = access_of(viewer)
    first = before_in_queue(job).select_related("tenant")
    return tuple(
        JobAhead(str(j.pk), j.name, j.tenant.name, j.gpu_milli)
        if access.may_view(j.tenant_id)
        else JobAhead(None, None, None, j.gpu_milli)
        for j in first[:SHOWN_AHEAD]
    )
