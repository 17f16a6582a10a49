"""Carrying out an order: apply it as a whole, and later take it back quota by quota."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q
from django.utils import timezone

from tenants.effects import PlannedTenant
from tenants.errors import Conflict, DomainError
from tenants.models import OrderCell, OrderState, OrderTenant, Quota, QuotaOrder, Tenant, User
from tenants.services import audit, locks
from tenants.services.audit import SCHEDULE
from tenants.services.moves.change import (
    ChangedTogether,
    ChangeRefused,
    PlaceChange,
    change_together,
)
from tenants.services.moves.revert import tenant_reversal
from tenants.services.quota_revert import reversal_of
from tenants.services.quota_sheet import QuotaEdit, SheetChange, sheet_changes
from tenants.services.quota_terms import QuotaChange, QuotaTerms, in_gpus
from tenants.services.tenants import take_turns
from tenants.services.transactions import unit_of_work

KEPT = timedelta(days=30)  # after it was over
OVER = (OrderState.DONE, OrderState.CANCELLED, OrderState.FAILED)


def carry_out_due() -> int:
    """Carry out what is due; return the number of orders."""
    now = timezone.now()
    due = QuotaOrder.objects.filter(
        Q(state=OrderState.SCHEDULED, starts_at__lte=now)
        | Q(state=OrderState.TEMPORARY, ends_at__lte=now)
    )
    count = _fail_unapproved(now)
    # What is taken back first makes room for what starts at the same time.
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
    """Delete orders that have long been over; return how many."""
    old = QuotaOrder.objects.filter(over_at__lt=timezone.now() - KEPT)
    _, deleted = old.delete()
    return deleted.get("tenants.QuotaOrder", 0)


def start(order: QuotaOrder, now: datetime) -> bool:
    """Apply a scheduled order with its author's current rights, all of it or nothing. Return False
    when somebody else did, or cancelled it."""
    with unit_of_work(dry_run=False):
        if not taken(order, OrderState.SCHEDULED):
            return False
        try:
            apply(order, now, source=SCHEDULE)
        except DomainError as error:
            fail(order, now, error.detail)
    return True


def apply(order: QuotaOrder, now: datetime, *, source: str) -> None:
    """Change quotas and tenants as an order says, and record that in the order. Raises Conflict
    with all obstacles; then nothing is changed."""
    items = Items.of(order)
    done = _changed(order, items, source=source)
    for at, result in done.quotas.items():
        items.cells[at].record = result.record
        items.cells[at].save(update_fields=["record"])
    for at, changed in done.tenants.items():
        items.tenants[at].record = changed.record
        items.tenants[at].save(update_fields=["record"])
    order.applied_at = now
    order.state = OrderState.TEMPORARY if order.ends_at else OrderState.DONE
    order.over_at = None if order.ends_at else now
    order.save(update_fields=["applied_at", "state", "over_at"])


@dataclass(frozen=True, slots=True)
class RehearsedOrder:
    """The quotas (by tenant and GPU type) and tenants as an order would make them."""

    after: dict[tuple[str, str], Quota | None]
    planned: dict[str, PlannedTenant]


def rehearse(order: QuotaOrder) -> RehearsedOrder:
    """Return what an order would do now, without changing anything. Raises as `apply`."""
    items = Items.of(order)
    done = _changed(order, items, source=SCHEDULE, dry_run=True)
    after: dict[tuple[str, str], Quota | None] = {
        (items.cells[at].tenant.name, items.cells[at].gpu_type.name): result.quota
        for at, result in done.quotas.items()
    }
    return RehearsedOrder(after, {one.tenant.name: one.planned for one in done.tenants.values()})


@dataclass(frozen=True, slots=True)
class Items:
    """What an order changes."""

    cells: list[OrderCell]
    tenants: list[OrderTenant]

    @classmethod
    def of(cls, order: QuotaOrder) -> "Items":
        cells = order.cells.select_related("order", "tenant", "gpu_type", "record__tenant")
        tenants = order.tenants.select_related("order", "tenant", "record__tenant")
        return cls(list(cells), list(tenants))

    def __iter__(self) -> Iterator[OrderCell | OrderTenant]:
        yield from self.cells
        yield from self.tenants


def _changed(
    order: QuotaOrder, items: Items, *, source: str, dry_run: bool = False
) -> ChangedTogether:
    if order.author is None:
        raise Conflict(f"The author, {order.author_name}, was deleted.")
    edits = [QuotaEdit(c.tenant, c.gpu_type, fields_of(c), c.version) for c in items.cells]
    changes = sheet_changes(edits, reason=order.reason, source=source)
    moves = [PlaceChange(one.tenant, one.fields, one.base) for one in items.tenants]
    try:
        return change_together(
            order.author, moves, changes, reason=order.reason, source=source, dry_run=dry_run
        )
    except ChangeRefused as refused:
        told = [f"{name_of(items.tenants[at])}: {e.detail}" for at, e in refused.tenants.items()]
        told += [f"{name_of(items.cells[at])}: {e.detail}" for at, e in refused.quotas.items()]
        raise Conflict(" ".join(told)) from None


def close(order: QuotaOrder, state: OrderState, now: datetime, outcome: str) -> None:
    """Mark an order as over."""
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
    """Take back what a temporary order changed, except what somebody has changed since; the order
    then says so.

    `actor`: who ends it early. Returns False when it has already ended.
    """
    by = actor or actor_of(order)
    if order.ends_at is not None and not reason:
        reason = f"Until {order.ends_at:%Y-%m-%d %H:%M} UTC: {order.reason}"[:2000]
    with unit_of_work(dry_run=False):
        if not taken(order, OrderState.TEMPORARY):
            return False
        items = Items.of(order)
        # The lock order of all joint changes: first tenants, then rows below them.
        if items.tenants:
            take_turns()
        locks.keep(Tenant, [one.tenant_id for one in items])
        stayed = _set_back(by, items, reason, source)
        for one in stayed:
            one.save(update_fields=["outcome"])
            record(one, by, "stayed", one.outcome, source=source)
        close(order, OrderState.DONE, now, _told_of(stayed) or order.outcome)
    return True


def _told_of(stayed: Sequence[OrderCell | OrderTenant]) -> str:
    """Return e.g. "1 quota and 2 tenants did not go back."; "" when all did."""
    cells = sum(isinstance(one, OrderCell) for one in stayed)
    counts = ((cells, "quota"), (len(stayed) - cells, "tenant"))
    parts = [f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts if count]
    return f"{' and '.join(parts)} did not go back." if parts else ""


def _set_back(actor: User, items: Items, reason: str, source: str) -> list[OrderCell | OrderTenant]:
    """Take back what the sums allow, together; return what stays, each with the reason."""
    stayed: list[OrderCell | OrderTenant] = []
    cells: list[tuple[OrderCell, SheetChange]] = []
    tenants: list[tuple[OrderTenant, PlaceChange]] = []
    for one in items:
        try:
            if isinstance(one, OrderCell):
                cells.append((one, _change_back(one, reason, source)))
            else:
                tenants.append((one, _move_back(one)))
        except Conflict as conflict:
            one.outcome = conflict.detail
            stayed.append(one)
    while cells or tenants:
        moves, changes = [change for _, change in tenants], [change for _, change in cells]
        try:
            change_together(actor, moves, changes, reason=reason, source=source, agreed=True)
        except ChangeRefused as refused:
            for going, errors in ((cells, refused.quotas), (tenants, refused.tenants)):
                for at, error in errors.items():
                    going[at][0].outcome = error.detail
                    stayed.append(going[at][0])
            cells = [one for at, one in enumerate(cells) if at not in refused.quotas]
            tenants = [one for at, one in enumerate(tenants) if at not in refused.tenants]
        else:
            break
    return stayed


def _move_back(one: OrderTenant) -> PlaceChange:
    """Return the change that takes a tenant back. Raises Conflict when somebody has changed it
    since, or nothing changed."""
    if one.record is None:
        raise Conflict("It already had this value when the order was carried out.")
    found = tenant_reversal(one.record)
    return PlaceChange(found.tenant, found.fields, found.base, reverts=one.record)


def _change_back(cell: OrderCell, reason: str, source: str) -> SheetChange:
    """Return the change that takes a quota back. Raises Conflict when somebody has changed it
    since, or nothing changed."""
    if cell.record is None:
        raise Conflict("It already had this value when the order was carried out.")
    found = reversal_of(cell.record)
    change = QuotaChange(
        found.tenant, found.gpu_type, found.version, reason, source, reverts=cell.record
    )
    return SheetChange(change, QuotaTerms.in_gpus(found.then) if found.then else None)


# --- what all acts share --------------------------------------------------------------------------
def taken(order: QuotaOrder, *states: str) -> bool:
    """Lock an order that is in one of these states; return False when it no longer is."""
    rows = QuotaOrder.objects.filter(pk=order.pk, state__in=states)
    if not rows.update(state=F("state")):
        return False
    order.refresh_from_db()
    return True


def actor_of(order: QuotaOrder) -> User:
    """Return the order's author; after a deletion, a stand-in with the name."""
    return order.author or User(username=order.author_name)


def fields_of(cell: OrderCell) -> dict[str, Any]:
    """Return the fields of the quota that an order sets."""
    return {"guaranteed": cell.guaranteed_milli, **cell.terms}


def name_of(one: OrderCell | OrderTenant) -> str:
    if isinstance(one, OrderTenant):
        return one.tenant.name
    return f"{one.tenant.name} / {one.gpu_type.name}"


def record(
    one: OrderCell | OrderTenant, actor: User, what: str, reason: str, *, source: str
) -> None:
    """Record in the audit trail what became of one quota or tenant of an order."""
    order = one.order
    times = {"starts_at": order.starts_at, "ends_at": order.ends_at}
    if isinstance(one, OrderTenant):
        sets = dict(one.fields)
    else:
        sets = {"guaranteed": one.guaranteed_milli / 1000, **in_gpus(one.terms)}
    audit.record(
        actor,
        f"quota-order.{what}",
        name_of(one),
        tenant=one.tenant,
        after={
            "order": str(order.pk),
            **sets,
            **{name: at.isoformat() for name, at in times.items() if at},
        },
        reason=reason,
        source=source,
    )


def record_all(order: QuotaOrder, actor: User, what: str, reason: str, *, source: str) -> None:
    for one in Items.of(order):
        record(one, actor, what, reason, source=source)
