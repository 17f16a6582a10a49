"""Rows of queues as the engine's nouns."""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from django.db.models import Count, Q, Sum

from scheduling.engine.deltas import QueueDebts, QueuesChanged
from scheduling.engine.states import HOLDING
from scheduling.engine.types import DEFAULT_QUEUE, MILLI, QueueSpec
from scheduling.models import Job, Placement, SchedulerLease
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS
from tenants.models import Queue, QueueOrder, QueueState

log = logging.getLogger(__name__)


def queues(cluster_id: int, scope: str | None = None) -> QueuesChanged:
    """Return the queues of tenants that have more than a plain one, and what counts elsewhere.

    That is what their jobs hold outside the scope (None = outside the cluster) in queues with a
    limit.
    """
    by_tenant: dict[str, list[Queue]] = {}
    for row in Queue.objects.select_related("tenant").order_by("tenant_id", "name"):
        by_tenant.setdefault(row.tenant.name, []).append(row)
    found = [spec for tenant, rows in by_tenant.items() for spec in specs_of(tenant, rows)]
    limited = {(q.tenant, q.name) for q in found if q.max_running is not None or q.max_milli}
    if not limited:
        return QueuesChanged(tuple(found))
    own = Q(cluster_id=cluster_id) & (Q() if scope is None else Q(scope=scope))
    return QueuesChanged(
        tuple(found), _jobs_elsewhere(own, limited), _held_elsewhere(cluster_id, scope, limited)
    )


def specs_of(tenant: str, rows: Sequence[Queue]) -> list[QueueSpec]:
    """Return the queues of a tenant, by name; none if it has only a plain one."""
    if len(rows) == 1 and _is_plain(rows[0]):
        return []
    return [_queue(tenant, row) for row in rows]


def debts(cluster_id: int, scope: str) -> QueueDebts | None:
    """Return what queues are owed, as the scope's scheduler last wrote it; None = nothing."""
    leases = SchedulerLease.objects.filter(cluster=cluster_id, scope=scope)
    told = leases.values_list("queue_debts", flat=True).first()
    if not told:
        return None
    try:
        owed = [
            (str(tenant), str(queue), float(gpus))
            for tenant, queues in told["owed"].items()
            for queue, gpus in queues.items()
        ]
        # A database may store the keys of a document in its own order.
        found = QueueDebts(tuple(sorted(owed)), float(told["at"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.error("debts of queues of cluster %s ignored: %r", cluster_id, error)
        return None
    return found if all(map(math.isfinite, [found.at, *(each[2] for each in owed)])) else None


def released(told: QueuesChanged) -> tuple[QueueSpec, ...]:
    """Return the queues for a simulation, with none held.

    A queue held now was not always held and will not always be, and a simulation does not know what
    happens elsewhere.
    """
    return tuple(replace(queue, held=False, why="") for queue in told.queues)


def _is_plain(row: Queue) -> bool:
    """Whether the only queue of a tenant has nothing that affects its order."""
    held, limited = row.state == QueueState.HELD, row.max_running is not None or row.max_gpus
    return row.name == DEFAULT_QUEUE and not (held or limited or row.order)


def _queue(tenant: str, row: Queue) -> QueueSpec:
    held = row.state == QueueState.HELD
    return QueueSpec(
        tenant,
        row.name,
        weight=row.weight,
        rank=row.rank,
        fifo=row.order == QueueOrder.FIFO,
        fair_users=row.order == QueueOrder.FAIR_USERS,
        held=held,
        why=_why(row) if held else "",
        max_running=row.max_running,
        max_milli={model: gpus * MILLI for model, gpus in row.max_gpus.items()},
    )


def _why(row: Queue) -> str:
    """Return who holds the queue, since when, and why."""
    by = f"by {row.state_by}" if row.state_by else ""
    since = f"since {row.state_at:%Y-%m-%d %H:%M} UTC" if row.state_at else ""
    reason = row.state_reason.strip().rstrip(".")
    told = " ".join(filter(None, (by, since)))
    if not reason:
        return f"{told}." if told else ""
    return f"{reason} ({told})." if told else f"{reason}."


def _jobs_elsewhere(own: Q, limited: Iterable[tuple[str, str]]) -> tuple[tuple[str, str, int], ...]:
    rows = Job.objects.filter(~own, state__in=list(HOLDING)).order_by()
    numbers = rows.values_list("tenant__name", "queue").annotate(Count("id"))
    counted = {(tenant, queue): jobs for tenant, queue, jobs in numbers}
    return tuple((*name, counted[name]) for name in sorted(limited) if name in counted)


def _held_elsewhere(
    cluster_id: int, scope: str | None, limited: Iterable[tuple[str, str]]
) -> tuple[tuple[str, str, str, float], ...]:
    own = Q(job__cluster_id=cluster_id)
    if scope is not None:
        own &= Q(job__scope=scope)
    rows = (
        Placement.objects.filter(~own, state__in=LIVE_PLACEMENTS)
        .values_list("job__tenant__name", "job__queue", "gpu_model")
        .annotate(held=Sum(HELD))
        .order_by("job__tenant__name", "job__queue", "gpu_model")
    )
    names = set(limited)
    return tuple(row for row in rows if row[:2] in names)
