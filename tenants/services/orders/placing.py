"""What people do with orders: place one of their draft, call it off, end it or let it stay."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from tenants.errors import Conflict, FieldError, Invalid, NotAllowed
from tenants.models import OrderCell, OrderState, QuotaOrder, User
from tenants.permissions import access_of
from tenants.services.drafts.apply import DraftTried, try_draft
from tenants.services.drafts.edits import empty
from tenants.services.orders.carrying_out import end, record, record_all, taken
from tenants.services.quotas import reason_faults
from tenants.services.transactions import unit_of_work
from tenants.services.typed_gpus import typed_milli

FURTHEST = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a draft; `order`: what is still to happen, None = nothing is."""

    tried: DraftTried
    order: QuotaOrder | None = None


def submit_draft(
    actor: User,
    *,
    reason: str,
    source: str,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    expected_version: int | None = None,
    dry_run: bool = False,
) -> Submitted:
    """Apply the actor's draft, at once or at `starts_at`, for good or until `ends_at`. It has to be
    possible as things are now. Raises as `try_draft`, and Invalid (starts_at, ends_at)."""
    now = timezone.now()
    if faults := _time_faults(now, starts_at, ends_at):
        raise Invalid.fields(faults)
    with unit_of_work(dry_run):
        tried = try_draft(
            actor,
            reason=reason,
            source=source,
            expected_version=expected_version,
            dry_run=starts_at is not None,
        )
        if tried.errors or (starts_at is None and ends_at is None):
            return Submitted(tried)
        if not tried.cells:
            raise Invalid("Your draft changes nothing, so there is nothing to be done later.")
        order = QuotaOrder.objects.create(
            author=actor,
            author_name=actor.get_username(),
            reason=reason.strip(),
            state=OrderState.SCHEDULED if starts_at else OrderState.TEMPORARY,
            starts_at=starts_at,
            ends_at=ends_at,
            applied_at=None if starts_at else now,
        )
        for at, cell in enumerate(tried.cells):
            made = OrderCell.objects.create(
                order=order,
                tenant=cell.tenant,
                gpu_type=cell.gpu_type,
                guaranteed_milli=typed_milli(cell.typed),
                version=cell.version,
                record=None if starts_at else tried.results[at].record,
            )
            record(made, actor, "placed", order.reason, source=source)
        if starts_at is not None:
            empty(tried.draft)
    return Submitted(tried, order)


def _time_faults(
    now: datetime, starts_at: datetime | None, ends_at: datetime | None
) -> list[FieldError]:
    faults = []
    for name, at in (("starts_at", starts_at), ("ends_at", ends_at)):
        if at is None:
            continue
        if at <= now:
            faults.append(FieldError((name,), "That time has passed; name one to come."))
        elif at > now + FURTHEST:
            faults.append(FieldError((name,), "Name a time within a year."))
    if not faults and starts_at is not None and ends_at is not None and ends_at <= starts_at:
        faults.append(FieldError(("ends_at",), "It has to end after it starts."))
    return faults


def cancel_order(
    actor: User, order: QuotaOrder, *, reason: str, source: str, dry_run: bool = False
) -> QuotaOrder:
    """Call off what has not been applied yet. Raises NotAllowed, Invalid (reason) and Conflict."""
    with unit_of_work(dry_run):
        _take(actor, order, reason, [OrderState.SCHEDULED, OrderState.WAITING], "called off")
        order.state, order.over_at = OrderState.CANCELLED, timezone.now()
        order.outcome = f"{actor.get_username()} called it off: {reason.strip()}"
        order.save(update_fields=["state", "over_at", "outcome"])
        record_all(order, actor, "cancelled", reason.strip(), source=source)
    return order


def end_order(
    actor: User, order: QuotaOrder, *, reason: str, source: str, dry_run: bool = False
) -> QuotaOrder:
    """Set back what a temporary order has changed, before its time. Raises as `cancel_order`."""
    with unit_of_work(dry_run):
        _take(actor, order, reason, [OrderState.TEMPORARY], "ended")
        end(order, timezone.now(), actor=actor, reason=reason.strip(), source=source)
    return order


def keep_order(
    actor: User, order: QuotaOrder, *, reason: str, source: str, dry_run: bool = False
) -> QuotaOrder:
    """Let what a temporary order has changed stay for good. Raises as `cancel_order`."""
    with unit_of_work(dry_run):
        _take(actor, order, reason, [OrderState.TEMPORARY], "kept")
        order.state, order.over_at = OrderState.DONE, timezone.now()
        order.outcome = f"{actor.get_username()} let it stay for good: {reason.strip()}"
        order.save(update_fields=["state", "over_at", "outcome"])
        record_all(order, actor, "kept", reason.strip(), source=source)
    return order


def may_handle(actor: User, order: QuotaOrder) -> bool:
    """Whether somebody may call an order off, end it or let it stay: its author, and who may change
    all of its quotas."""
    if order.author_id == actor.pk:
        return True
    return may_change_all(actor, order.cells.values_list("tenant_id", flat=True))


def may_change_all(actor: User, tenants: Iterable[int]) -> bool:
    access = access_of(actor)
    return all(access.may_administer_from_above(tenant) for tenant in tenants)


def _take(actor: User, order: QuotaOrder, reason: str, states: list[OrderState], done: str) -> None:
    if not may_handle(actor, order):
        raise NotAllowed("Only its author, and who may change all of its quotas, may do that.")
    if faults := reason_faults(reason):
        raise Invalid.fields(faults)
    if not taken(order, *states):
        order.refresh_from_db()
        word = OrderState(order.state).label.lower()
        raise Conflict(f"It is {word} and cannot be {done}. Read it again.")
