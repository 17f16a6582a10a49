"""What is done of an order: it is applied, as a whole, and it goes back, quota by quota."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q
from django.utils import timezone

from tenants.errors import Conflict, DomainError
from tenants.models import OrderCell, OrderState, Quota, QuotaOrder, Tenant, User
from tenants.services import audit, locks
from tenants.services.audit import SCHEDULE
from tenants.services.quota_revert import reversal_of
from tenants.services.quota_sheet import (
    QuotaEdit,
    SheetChange,
    SheetRefused,
    carry_out_as_agreed,
    change_quotas,
)
from tenants.services.quota_terms import QuotaChange, QuotaTerms, in_gpus
from tenants.services.quotas import QuotaChangeResult
from tenants.services.transactions import unit_of_work

KEPT = timedelta(days=30)  # since it was over
OVER = (OrderState.DONE, OrderState.CANCELLED, OrderState.FAILED)


def carry_out_due(now: datetime | None = None) -> int:
    """Do what is due by now; returns how many orders that were."""
    now = now or timezone.now()
    due = QuotaOrder.objects.filter(
        Q(state=OrderState.SCHEDULED, starts_at__lte=now)
        | Q(state=OrderState.TEMPORARY, ends_at__lte=now)
    )
    count = _fail_unapproved(now)
    # What goes back first makes room for what starts at the same time.
    for order in sorted(due, key=lambda one: (one.ends_at or now, one.starts_at or now)):
        done = start(order, now) if order.state == OrderState.SCHEDULED else end(order, now)
        count += done
    return count


def _fail_unapproved(now: datetime) -> int:
    late = Q(ends_at__lte=now) | Q(created_at__lt=now - KEPT)
    count = 0
    for order in QuotaOrder.objects.filter(late, state=OrderState.WAITING):
        with unit_of_work(dry_run=False):
            if taken(order, OrderState.WAITING):
                fail(order, now, "Nobody approved it in time.")
                count += 1
    return count


def forget_old_orders() -> int:
    """Delete orders that are over for long; returns how many."""
    old = QuotaOrder.objects.filter(over_at__lt=timezone.now() - KEPT)
    _, deleted = old.delete()
    return deleted.get("tenants.QuotaOrder", 0)


def start(order: QuotaOrder, now: datetime) -> bool:
    """Apply a scheduled order by the rights that its author has now, all of it or nothing; False
    where somebody else did, or cancelled it."""
    with unit_of_work(dry_run=False):
        if not taken(order, OrderState.SCHEDULED):
            return False
        try:
            apply(order, now, source=SCHEDULE)
        except DomainError as error:
            fail(order, now, error.detail)
    return True


def apply(order: QuotaOrder, now: datetime, *, source: str) -> None:
    """Make the quotas what an order says, and tell so in it. Raises Conflict with all that stands
    against it; then nothing is changed."""
    for cell, result in _changed(order, source=source):
        cell.record = result.record
        cell.save(update_fields=["record"])
    order.applied_at = now
    order.state = OrderState.TEMPORARY if order.ends_at else OrderState.DONE
    order.over_at = None if order.ends_at else now
    order.save(update_fields=["applied_at", "state", "over_at"])


def rehearse(order: QuotaOrder) -> dict[tuple[str, str], Quota | None]:
    """The quotas as an order would make them now, by tenant and GPU type; nothing is changed.
    Raises as `apply`."""
    found = _changed(order, source=SCHEDULE, dry_run=True)
    return {(cell.tenant.name, cell.gpu_type.name): result.quota for cell, result in found}


def _changed(
    order: QuotaOrder, *, source: str, dry_run: bool = False
) -> list[tuple[OrderCell, QuotaChangeResult]]:
    cells = list(order.cells.select_related("tenant", "gpu_type"))
    if order.author is None:
        raise Conflict(f"{order.author_name}, whose order it is, was deleted.")
    edits = [QuotaEdit(c.tenant, c.gpu_type, fields_of(c), c.version) for c in cells]
    try:
        results = change_quotas(
            order.author, edits, reason=order.reason, source=source, dry_run=dry_run
        )
    except SheetRefused as refused:
        told = (f"{name_of(cells[at])}: {error.detail}" for at, error in refused.errors.items())
        raise Conflict(" ".join(told)) from None
    return [(cells[at], result) for at, result in results.items()]


def close(order: QuotaOrder, state: OrderState, now: datetime, outcome: str) -> None:
    """Nothing of it is still to happen."""
    order.state, order.over_at, order.outcome = state, now, outcome
    order.save(update_fields=["state", "over_at", "outcome"])


def fail(order: QuotaOrder, now: datetime, why: str) -> None:
    close(order, OrderState.FAILED, now, f"Nothing was changed. {why}")
    record_all(order, actor_of(order), "failed", order.outcome, source=SCHEDULE)


def end(
    order: QuotaOrder,
    now: datetime,
    *,
    actor: User | None = None,
    reason: str = "",
    source: str = SCHEDULE,
) -> bool:
    """Set back what a temporary order has changed, except what somebody has changed since: that
    stays, and is told. `actor`: who ends it before its time. False where it was ended already."""
    by = actor or actor_of(order)
    if order.ends_at is not None and not reason:
        reason = f"Until {order.ends_at:%Y-%m-%d %H:%M} UTC: {order.reason}"[:2000]
    with unit_of_work(dry_run=False):
        if not taken(order, OrderState.TEMPORARY):
            return False
        cells = order.cells.select_related("tenant", "gpu_type", "record__tenant")
        locks.keep(Tenant, [cell.tenant_id for cell in cells])
        stayed = _set_back(by, list(cells), reason, source)
        for cell in stayed:
            cell.save(update_fields=["outcome"])
            record(cell, by, "stayed", cell.outcome, source=source)
        count = len(stayed)
        quotas = "quota" if count == 1 else "quotas"
        told = f"{count} {quotas} did not go back." if count else order.outcome
        close(order, OrderState.DONE, now, told)
    return True


def _set_back(actor: User, cells: Sequence[OrderCell], reason: str, source: str) -> list[OrderCell]:
    """Those that stay, each with why. The others go back together, as far as sums allow."""
    stayed: list[OrderCell] = []
    going: list[tuple[OrderCell, SheetChange]] = []
    for cell in cells:
        try:
            going.append((cell, _change_back(cell, reason, source)))
        except Conflict as conflict:
            cell.outcome = conflict.detail
            stayed.append(cell)
    while going:
        try:
            carry_out_as_agreed(actor, [change for _, change in going])
        except SheetRefused as refused:
            for at, error in refused.errors.items():
                going[at][0].outcome = error.detail
                stayed.append(going[at][0])
            going = [one for at, one in enumerate(going) if at not in refused.errors]
        else:
            break
    return stayed


def _change_back(cell: OrderCell, reason: str, source: str) -> SheetChange:
    """Raises Conflict where somebody has changed the quota since, or it was not changed at all."""
    if cell.record is None:
        raise Conflict("It was so already when the order was carried out.")
    found = reversal_of(cell.record)
    change = QuotaChange(
        found.tenant, found.gpu_type, found.version, reason, source, reverts=cell.record
    )
    return SheetChange(change, QuotaTerms.in_gpus(found.then) if found.then else None)


# --- what all acts share --------------------------------------------------------------------------
def taken(order: QuotaOrder, *states: str) -> bool:
    """Lock an order that is in one of these states; False where it is in none of them any more."""
    rows = QuotaOrder.objects.filter(pk=order.pk, state__in=states)
    if not rows.update(state=F("state")):
        return False
    order.refresh_from_db()
    return True


def actor_of(order: QuotaOrder) -> User:
    """Its author; of one who was deleted the name."""
    return order.author or User(username=order.author_name)


def fields_of(cell: OrderCell) -> dict[str, Any]:
    """The fields of the quota that an order sets."""
    return {"guaranteed": cell.guaranteed_milli, **cell.terms}


def name_of(cell: OrderCell) -> str:
    return f"{cell.tenant.name} / {cell.gpu_type.name}"


def record(cell: OrderCell, actor: User, what: str, reason: str, *, source: str) -> None:
    """Tell in the audit trail what became of one quota of an order."""
    order = cell.order
    times = {"starts_at": order.starts_at, "ends_at": order.ends_at}
    audit.record(
        actor,
        f"quota-order.{what}",
        name_of(cell),
        tenant=cell.tenant,
        after={
            "order": str(order.pk),
            "guaranteed": cell.guaranteed_milli / 1000,
            **in_gpus(cell.terms),
            **{name: at.isoformat() for name, at in times.items() if at},
        },
        reason=reason,
        source=source,
    )


def record_all(order: QuotaOrder, actor: User, what: str, reason: str, *, source: str) -> None:
    for cell in order.cells.select_related("order", "tenant", "gpu_type"):
        record(cell, actor, what, reason, source=source)
