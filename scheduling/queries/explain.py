"""Why a job waits, or why a running one gets no more pods.

This covers the stored verdict, the gate the job is at, the jobs ahead of it, and when it may start
as far as that is known.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import (
    Q,
)

from scheduling.engine.reasons.after import IN_THE_WAY
from scheduling.engine.states import HOLDING, TERMINAL, WAITING
from scheduling.engine.types import Policy, QueueingPolicy
from scheduling.engine.verdict import NEVER, Reason
from scheduling.models import ClusterPolicy, Job, Placement, PodSet
from scheduling.models.jobs import LIVE_PLACEMENTS, RESIZED, PlacementState
from scheduling.policy.document import to_policy
from scheduling.queries.queues.limits import free_again
from scheduling.queries.queues.waiting_order import JobAhead, place_of
from scheduling.queries.standstill import standstill
from tenants.models import User

GATES = ("spec", "quota", "order", "capacity", "placement")
# The gate that stops a job with this reason; PendingEvaluation has not reached any.
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
    Reason.WAITING_FOR_DEVICES: "order",
    Reason.BACKING_OFF: "order",
    Reason.BEHIND_IN_QUEUE: "order",
    Reason.EXCEEDS_CAPACITY: "capacity",
    Reason.INSUFFICIENT_GPUS: "capacity",
    Reason.WAITING_FOR_NODES: "capacity",
    Reason.WAITING_FOR_PREEMPTION: "capacity",
    Reason.RESERVED_FOR_HEAD: "capacity",
    Reason.INSUFFICIENT_CPU_OR_MEMORY: "placement",
    Reason.FRAGMENTED_CAPACITY: "placement",
}


@dataclass(frozen=True, slots=True)
class Gate:
    """One step on the way to a start; `ok` None = not reached yet."""

    gate: str
    ok: bool | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is known about why a job is where it is.

    `position` counts from 1. It and `ahead` cover all waiting jobs of its scheduler, whatever GPU
    type they ask for, in the current order: with fair shares each start changes it. Jobs outside
    any order have neither.
    """

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
    """When and where a blocked head is expected to start, by known run times."""

    starts_at: datetime
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Growth:
    """Why a running job `has` fewer pods than it `asked` for, as last reported.

    `reason` "" and `since` None: the cause is not a reason of a waiting job.
    """

    has: int
    asked: int
    reason: str
    summary: str
    since: datetime | None
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """What is known of the start of a waiting job.

    `at` depends on `basis`. `reservation`: the job is expected then. `earliest`: not before.
    `forecast`: there is room then for the first job. None if nobody can know (`held`, `promised`,
    `never`, `unknown`).
    """

    at: datetime | None
    basis: str
    text: str


def explain_job(viewer: User, job: Job) -> Explanation:
    """Return what the last cycles said of a job. The caller has checked that it may be seen."""
    waits = job.state in WAITING
    evidence = dict(job.evidence)
    place = place_of(viewer, job)
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
        position=place.position,
        ahead=place.ahead,
        reservation=_reserved(job) if waits else None,
        start=start_of(job) if waits else None,
        growth=growth_of(job),
        standstill=standstill_of(job),
    )


def standstill_of(job: Job) -> str:
    """Return why nothing is decided about the job now.

    "" = a scheduler is at work, or the job is over.
    """
    return "" if job.state in TERMINAL else standstill(job.cluster)


def growth_of(job: Job) -> Growth | None:
    """Return why the job gets no more pods.

    None for jobs that do not run, have all their pods, or cannot do without some.
    """
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
        text = "Some of its pods are done: the job is about to end and no longer grows."
        return Growth(has, asked, "", text, None, {})
    if job.growth is None:
        text = "The scheduler has not looked for more places yet."
        return Growth(has, asked, "", text, None, {})
    told = job.growth
    at = datetime.fromisoformat(told["at"])
    return Growth(has, asked, told["reason"], told["summary"], at, told["evidence"])


def pods_here(sets: Iterable[PodSet], places: Iterable[Placement]) -> int:
    """Return how many of the pods that a job asks for keep a place or are done.

    `places`: those since the whole job was last placed.
    """
    counts, here = {s.index: s.count for s in sets}, Counter[int]()
    for place in places:
        stays = place.state in LIVE_PLACEMENTS and place.reason != RESIZED
        done = place.state == PlacementState.SUCCEEDED
        here[place.pod_set] += stays or (done and place.ordinal < counts.get(place.pod_set, 0))
    return sum(min(here[index], count) for index, count in counts.items())


def start_of(job: Job) -> Start:
    """Return when a waiting job may start, as far as the scheduler knows; no further guess."""
    if job.reserved_start is not None:
        nodes = len(job.reserved_nodes)
        on = "one node" if nodes == 1 else f"{nodes} nodes"
        text = f"It is expected to start on {on}, if running jobs end as expected."
        return Start(job.reserved_start, "reservation", text)
    if job.reason in NEVER:
        return Start(None, "never", "It will not start unless it is changed.")
    match job.reason:
        case Reason.WAITING_FOR_PREEMPTION:
            text = "Its places are reserved; it starts when the preempted pods are gone."
            return Start(None, "promised", text)
        case Reason.BACKING_OFF if "not_before" in job.evidence:
            at = datetime.fromtimestamp(job.evidence["not_before"], UTC)
            return Start(at, "earliest", "Kant does not try it earlier.")
        case Reason.RESERVED_FOR_HEAD if "starts_at" in job.evidence:
            at = datetime.fromtimestamp(job.evidence["starts_at"], UTC)
            text = "The free GPUs are kept for a job ahead, which is expected to start then."
            return Start(at, "earliest", text)
        case Reason.ON_HOLD:
            return Start(None, "held", _why_held(job))
        case Reason.QUEUE_HELD:
            return Start(None, "held", "Not until its queue is released.")
        case Reason.WAITING_FOR_VOLUME:
            return Start(None, "held", "Not until its volumes can be mounted.")
        case Reason.WAITING_FOR_DEVICES:
            return Start(None, "held", "Not until its claims can get their devices.")
        case Reason.WAITING_FOR_NODES:
            return Start(None, "unknown", "Not until the cluster gets new nodes.")
        case Reason.WAITING_FOR_QUOTA | Reason.BORROW_LIMIT_REACHED:
            text = (
                "It waits for quota, and Kant cannot tell when there will be enough: only under "
                "backfill, and only for the first job that waits for the quota, Kant works out "
                "a start from declared or learned run times."
            )
            return Start(None, "unknown", text)
        case Reason.QUEUE_LIMIT_REACHED:
            return _start_in_queue(job)
    return Start(None, "unknown", _why_unknown(job))


def _start_in_queue(job: Job) -> Start:
    """Return when the job's queue, which is at a limit, has room for it."""
    if job.evidence.get("asked", 0) > job.evidence.get("max_gpus", math.inf):
        return Start(None, "unknown", "It needs more than its queue may ever hold.")
    at = free_again(job)
    if at is None:
        text = "When jobs of its queue have ended; too few of them declare a run time to tell when."
        return Start(None, "unknown", text)
    return Start(at, "earliest", "Its queue will have room then, if its jobs end as declared.")


def _why_held(job: Job) -> str:
    if job.pod_hold and not job.held:
        return "Not until its pod is changed."
    if not job.held:
        return f"When the jobs before it have ended{_but_never(job)}."
    others = " and what it waits for is over" if job.after or job.after_ok else ""
    return f"Not until it is released{others}."


def _but_never(job: Job) -> str:
    """Return what to add if jobs that it waits for do not end by themselves."""
    names = [*job.after, *job.after_ok]
    before = Job.objects.filter(Q(pk__in=names) | Q(array_id__in=names), state__in=WAITING)
    stuck = before.filter(reason__in=[reason.value for reason in NEVER]).count()
    if not stuck:
        waits = IN_THE_WAY in job.evidence
        return "; a job that it waits for has to be released or changed first" if waits else ""
    which = "one of them" if stuck == 1 else f"{stuck} of them"
    return f"; {which} can never run and has to be changed or cancelled"


def policy_in_use(cluster_id: int) -> Policy:
    """Return the policy that the schedulers of a cluster use."""
    row = ClusterPolicy.objects.filter(cluster=cluster_id).first()
    try:
        return to_policy(row.document if row else {})
    except (TypeError, ValueError):
        return Policy()  # what they use while the document cannot be read


def _why_unknown(job: Job) -> str:
    policy = policy_in_use(job.cluster_id)
    if policy.queueing is not QueueingPolicy.BACKFILL:
        return f"The policy {policy.queueing} makes no forecast; backfill makes one for heads."
    which = "of a GPU type" if job.gpu_milli else "without GPUs"
    return (
        f"Only the first blocked job {which} gets a forecast, and only if the declared run times "
        "of running jobs allow one."
    )


def _reserved(job: Job) -> Reserved | None:
    if job.reserved_start is None:
        return None
    return Reserved(job.reserved_start, tuple(job.reserved_nodes))


def gates_of(job: Job) -> tuple[Gate, ...]:
    """Return the gates in order: passed, stopped by the job's reason, or not reached."""
    if job.state not in WAITING:
        passed = True if job.admitted_at else None
        return tuple(Gate(gate, passed) for gate in GATES)
    if job.reason not in GATE_OF:
        return tuple(Gate(gate, None) for gate in GATES)
    at = GATES.index(GATE_OF[job.reason])
    return tuple(
        Gate(g, True if i < at else False if i == at else None) for i, g in enumerate(GATES)
    )
