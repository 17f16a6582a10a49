"""Orders to free whole nodes at a later time, within an approved cost.

An operator places an order and may cancel it. At that time, a new plan carries it out.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q
from django.utils import timezone

from scheduling.models import Cluster, Job, NodeOrder, NodeRecord, PlanOrder, PlanOrderState
from scheduling.queries.nodes.defragment import Defragmentation, defragmentation
from scheduling.queries.nodes.orders import tasks_of
from scheduling.services.clusters.node_orders import LATEST, empty_nodes
from tenants.errors import Conflict, DomainError, FieldError, Invalid, NotAllowed
from tenants.models import User
from tenants.services import audit
from tenants.services.audit import SCHEDULE, Why
from tenants.services.transactions import unit_of_work

# How long an order without an end is tried, and how often a plan is made.
TRIED_FOR = timedelta(minutes=15)
TRIED_EVERY = timedelta(minutes=1)
KEPT = timedelta(days=30)  # after it was over
ROUNDING_S = 1.0  # two plans of the same price may differ by this much


@dataclass(frozen=True, slots=True)
class WholeNodes:
    """The goal: `count` more whole nodes of a GPU model, or what a waiting job lacks."""

    gpu_model: str = ""
    count: int = 0
    job: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Approved:
    """The most that a plan may cost: GPU-seconds of work, and jobs that move."""

    lost_gpu_s: float
    moves: int


def order_plan(
    actor: User,
    cluster: Cluster,
    wish: WholeNodes,
    approved: Approved,
    *,
    starts_at: datetime,
    ends_at: datetime | None = None,
    why: Why,
    dry_run: bool = False,
) -> PlanOrder:
    """Have whole nodes freed at `starts_at`, or once the plan is within what is approved.

    It is tried until `ends_at` (None = for `TRIED_FOR`). Raises NotAllowed, and Invalid naming each
    field.
    """
    _operators_only(actor)
    faults = [
        *why.faults(required=True),
        *_goal_faults(cluster, wish),
        *_time_faults(starts_at, ends_at),
    ]
    if faults:
        raise Invalid.fields(faults)
    with unit_of_work(dry_run):
        order = PlanOrder.objects.create(
            cluster=cluster,
            author=actor,
            author_name=actor.get_username(),
            reason=why.reason.strip(),
            gpu_model=wish.gpu_model,
            count=wish.count,
            job=wish.job,
            most_lost_gpu_s=approved.lost_gpu_s,
            most_moves=approved.moves,
            starts_at=starts_at,
            ends_at=ends_at or starts_at + TRIED_FOR,
        )
        _record(order, actor, "placed", order.reason, why.source)
    return order


def cancel_plan(actor: User, order: PlanOrder, *, why: Why, dry_run: bool = False) -> PlanOrder:
    """Cancel an order that is not carried out yet.

    Raises NotAllowed, Invalid without a reason, Conflict if it is too late.
    """
    _operators_only(actor)
    if faults := list(why.faults(required=True)):
        raise Invalid.fields(faults)
    with unit_of_work(dry_run):
        if not _taken(order, PlanOrderState.SCHEDULED):
            order.refresh_from_db()
            word = PlanOrderState(order.state).label.lower()
            raise Conflict(f"The order is {word} and cannot be called off. Read it again.")
        told = f"{actor.get_username()} called it off: {why.reason.strip()}"
        _close(order, PlanOrderState.CANCELLED, timezone.now(), told)
        _record(order, actor, "cancelled", why.reason.strip(), why.source)
    return order


def carry_out_plans() -> int:
    """Carry out what is due, and update what is under way.

    Returns how many orders were carried out or given up.
    """
    now = timezone.now()
    for order in PlanOrder.objects.filter(state=PlanOrderState.MOVING).select_related("cluster"):
        _follow(order, now)
    not_lately = Q(tried_at=None) | Q(tried_at__lte=now - TRIED_EVERY) | Q(ends_at__lte=now)
    due = PlanOrder.objects.filter(not_lately, state=PlanOrderState.SCHEDULED, starts_at__lte=now)
    return sum(_try(order, now) for order in due.select_related("cluster", "author"))


def forget_old_plans() -> int:
    """Delete orders that have long been over; return how many."""
    _, deleted = PlanOrder.objects.filter(over_at__lt=timezone.now() - KEPT).delete()
    return deleted.get("scheduling.PlanOrder", 0)


def beyond(order: PlanOrder, plan: Defragmentation) -> str:
    """Return why a plan exceeds what was approved; "" = it does not."""
    if not plan.reached:
        if order.job is not None:
            return "No plan makes room for the job."
        return f"Only {plan.gained} of {order.count} whole nodes can be freed."
    if plan.lost_gpu_s > order.most_lost_gpu_s + ROUNDING_S:
        lost, most = _hours(plan.lost_gpu_s), _hours(order.most_lost_gpu_s)
        return f"{lost} GPU-hours of work would be lost; at most {most} were approved."
    if len(plan.moves) > order.most_moves:
        return f"{len(plan.moves)} jobs would move; at most {order.most_moves} were approved."
    return ""


def _try(order: PlanOrder, now: datetime) -> bool:
    """Carry an order out if its plan is within what was approved; give up when time is over."""
    over = now >= order.ends_at
    plan: Defragmentation | None = None
    why = order.outcome or "Kant was not running in its time, so nothing was tried."
    if order.author is None:
        why, over = f"The author, {order.author_name}, was deleted.", True
    elif not over:
        plan, why = _plan_now(order.author, order)
    with unit_of_work(dry_run=False):
        if not _taken(order, PlanOrderState.SCHEDULED):
            return False
        if plan is not None and not why:
            why = _carried_out(order, plan, now)
            if not why:
                return True
        if over:
            _close(order, PlanOrderState.FAILED, now, f"Nothing was moved. {why}")
            _record(order, _actor_of(order), "failed", order.outcome, SCHEDULE)
            return True
        order.tried_at, order.outcome = now, why
        order.save(update_fields=["tried_at", "outcome"])
    return False


def _plan_now(author: User, order: PlanOrder) -> tuple[Defragmentation | None, str]:
    """Return the plan as of now, and why it is not carried out."""
    try:
        plan = defragmentation(
            author, order.cluster, gpu_model=order.gpu_model, nodes=order.count, job=order.job
        )
    except DomainError as error:
        return None, error.detail
    return plan, beyond(order, plan)


def _carried_out(order: PlanOrder, plan: Defragmentation, now: datetime) -> str:
    """Have the nodes of a plan emptied. Return why that was refused, "" = it was not."""
    assert order.author is not None
    if not plan.nodes:
        _close(order, PlanOrderState.DONE, now, "Nothing had to move: the nodes were already free.")
        return ""
    try:
        why = Why(order.reason, SCHEDULE)
        empty_nodes(order.author, order.cluster, plan.nodes, why=why, plan=order.pk)
    except DomainError as error:
        return error.detail
    order.state, order.applied_at, order.tried_at, order.outcome = (
        PlanOrderState.MOVING,
        now,
        now,
        "",
    )
    order.nodes, order.lost_gpu_s, order.moves = list(plan.nodes), plan.lost_gpu_s, len(plan.moves)
    order.save()
    _record(order, order.author, "applied", order.reason, SCHEDULE)
    return ""


def _follow(order: PlanOrder, now: datetime) -> None:
    """Note which jobs a disruption budget keeps on the nodes, until the nodes take jobs again."""
    tasks = tasks_of(NodeOrder.objects.filter(cluster=order.cluster_id, plan=order.pk))
    kept = sorted({there.job.name for task in tasks for there in task.jobs if there.kept_back})
    with unit_of_work(dry_run=False):
        if not _taken(order, PlanOrderState.MOVING):
            return
        if not tasks:
            _close(order, PlanOrderState.DONE, now, order.outcome)
            return
        told = f"A disruption budget keeps {', '.join(kept)} in place." if kept else ""
        if told != order.outcome:
            order.outcome = told
            order.save(update_fields=["outcome"])


# --- shared ---------------------------------------------------------------------------------------
def _operators_only(actor: User) -> None:
    if not actor.is_operator:
        raise NotAllowed("Only operators can plan to move jobs of others.")


def _goal_faults(cluster: Cluster, wish: WholeNodes) -> Iterator[FieldError]:
    if wish.job is not None:
        if not Job.objects.filter(pk=wish.job, cluster=cluster).exists():
            detail = f"There is no job {wish.job} on cluster “{cluster.name}”."
            yield FieldError(("job",), detail)
        return
    nodes = NodeRecord.objects.filter(cluster=cluster, gpu_model=wish.gpu_model)
    if not wish.gpu_model or not nodes.exists():
        detail = f"Cluster “{cluster.name}” has no node of {wish.gpu_model or 'that type'}."
        yield FieldError(("gpu_type",), detail)


def _time_faults(starts_at: datetime, ends_at: datetime | None) -> Iterator[FieldError]:
    now = timezone.now()
    if starts_at <= now:
        yield FieldError(("starts_at",), "That time has passed. Give a later time.")
    elif starts_at > now + LATEST:
        yield FieldError(("starts_at",), "Give a time within a year.")
    if ends_at is not None and ends_at <= starts_at:
        yield FieldError(("ends_at",), "The end must be after the start.")
    elif ends_at is not None and ends_at > now + LATEST:
        yield FieldError(("ends_at",), "Give a time within a year.")


def _taken(order: PlanOrder, state: PlanOrderState) -> bool:
    """Lock an order that is in this state; return False if it no longer is."""
    if not PlanOrder.objects.filter(pk=order.pk, state=state).update(state=F("state")):
        return False
    order.refresh_from_db()
    return True


def _close(order: PlanOrder, state: PlanOrderState, now: datetime, outcome: str) -> None:
    order.state, order.over_at, order.outcome = state, now, outcome
    order.save(update_fields=["state", "over_at", "outcome"])


def _actor_of(order: PlanOrder) -> User:
    """Return the order's author; if deleted, a user with the same name."""
    return order.author or User(username=order.author_name)


def _hours(gpu_s: float) -> str:
    return f"{gpu_s / 3600:.2f}"


def _record(order: PlanOrder, actor: User, what: str, reason: str, source: str) -> None:
    goal: dict[str, Any] = {"gpu_type": order.gpu_model, "count": order.count}
    audit.record(
        actor,
        f"plan-order.{what}",
        order.cluster.name,
        after={
            "order": str(order.pk),
            **(goal if order.job is None else {"job": str(order.job)}),
            "most_lost_gpu_s": order.most_lost_gpu_s,
            "most_moves": order.most_moves,
            "starts_at": order.starts_at.isoformat(),
            "ends_at": order.ends_at.isoformat(),
            **({"nodes": order.nodes, "lost_gpu_s": order.lost_gpu_s} if order.nodes else {}),
        },
        reason=reason,
        source=source,
    )
