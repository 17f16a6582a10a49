"""What people do with orders: turn their draft into one, cancel it, end it early or make it
permanent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from tenants.errors import Conflict, FieldError, Invalid, NotAllowed
from tenants.models import (
    OrderCell,
    OrderState,
    OrderTenant,
    Quota,
    QuotaDraft,
    QuotaOrder,
    Tenant,
    User,
)
from tenants.permissions import Access, access_of
from tenants.services.approval import needs_approval
from tenants.services.audit import reason_faults
from tenants.services.drafts.apply import DraftTried, edits_of, try_draft
from tenants.services.drafts.cell_text import guaranteed_in
from tenants.services.drafts.edits import empty, locked_draft
from tenants.services.drafts.wanted import wanted
from tenants.services.moves.guaranteed import moved_milli
from tenants.services.moves.typed import meant
from tenants.services.orders.carrying_out import apply, close, end, record, record_all, taken
from tenants.services.transactions import unit_of_work

FURTHEST = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a draft. `order`: what is still to be done; None = nothing."""

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
    """Apply the actor's draft, at once or at `starts_at`, permanently or until `ends_at`.

    A draft that needs approval waits for it. The draft must be applicable in the current state.
    Raises as `try_draft`, and Invalid (starts_at, ends_at).
    """
    now = timezone.now()
    if faults := _time_faults(now, starts_at, ends_at):
        raise Invalid.fields(faults)
    with unit_of_work(dry_run):
        waits = needs_approval(changed_milli(locked_draft(actor)))
        is_later = waits or starts_at is not None
        tried = try_draft(
            actor,
            reason=reason,
            source=source,
            expected_version=expected_version,
            dry_run=is_later,
        )
        if tried.refused or not (is_later or ends_at):
            return Submitted(tried)
        if not tried.count:
            raise Invalid("Your draft changes nothing, so there is nothing to schedule.")
        later = OrderState.WAITING if waits else OrderState.SCHEDULED
        order = QuotaOrder.objects.create(
            author=actor,
            author_name=actor.get_username(),
            reason=reason.strip(),
            state=later if is_later else OrderState.TEMPORARY,
            starts_at=starts_at,
            ends_at=ends_at,
            applied_at=None if is_later else now,
        )
        for at, cell in enumerate(tried.cells):
            terms = wanted(cell)
            made = OrderCell.objects.create(
                order=order,
                tenant=cell.tenant,
                gpu_type=cell.gpu_type,
                guaranteed_milli=terms.pop("guaranteed"),
                terms=terms,
                version=cell.version,
                record=None if is_later else tried.results[at].record,
            )
            record(made, actor, "placed", order.reason, source=source)
        for at, one in enumerate(tried.tenants):
            moved = OrderTenant.objects.create(
                order=order,
                tenant=one.tenant,
                fields=meant(one.fields),
                base=one.base,
                record=None if is_later else tried.tenant_results[at].record,
            )
            record(moved, actor, "placed", order.reason, source=source)
        if is_later:
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
            faults.append(FieldError((name,), "That time has passed. Give a later time."))
        elif at > now + FURTHEST:
            faults.append(FieldError((name,), "Give a time within a year."))
    if not faults and starts_at is not None and ends_at is not None and ends_at <= starts_at:
        faults.append(FieldError(("ends_at",), "The end must be after the start."))
    return faults


def changed_milli(draft: QuotaDraft) -> int:
    """Return how many guaranteed milli-GPU a draft changes, up and down, including what moves along
    with tenants."""
    cells = edits_of(draft)
    rows = Quota.objects.filter(tenant__in={cell.tenant_id for cell in cells}).order_by()
    now = {
        (t, g): m for t, g, m in rows.values_list("tenant_id", "gpu_type_id", "guaranteed_milli")
    }
    edited = sum(
        abs((guaranteed_in(cell.typed) or 0) - now.get((cell.tenant_id, cell.gpu_type_id), 0))
        for cell in cells
    )
    wanted_above = {
        one.tenant_id: one.fields["parent"] for one in draft.tenants.all() if "parent" in one.fields
    }
    ids = dict(Tenant.objects.filter(name__in=wanted_above.values()).values_list("name", "id"))
    return edited + moved_milli({t: ids.get(name) for t, name in wanted_above.items()})


def approve_order(
    actor: User, order: QuotaOrder, *, reason: str, source: str, dry_run: bool = False
) -> QuotaOrder:
    """Approve an order. It is carried out at its time, or now if that has passed. Raises as
    `cancel_order`, and Conflict naming any obstacle."""
    with unit_of_work(dry_run):
        _take_as_second(actor, order, reason, "approved")
        now = timezone.now()
        order.approver_name = actor.get_username()
        order.save(update_fields=["approver_name"])
        record_all(order, actor, "approved", reason.strip(), source=source)
        if order.starts_at is not None and order.starts_at > now:
            order.state = OrderState.SCHEDULED
            order.save(update_fields=["state"])
        else:
            apply(order, now, source=source)
    return order


def refuse_order(
    actor: User, order: QuotaOrder, *, reason: str, source: str, dry_run: bool = False
) -> QuotaOrder:
    """Reject an order that waits for approval. Raises as `cancel_order`."""
    with unit_of_work(dry_run):
        _take_as_second(actor, order, reason, "refused")
        told = f"{actor.get_username()} refused it: {reason.strip()}"
        close(order, OrderState.CANCELLED, timezone.now(), told)
        record_all(order, actor, "refused", reason.strip(), source=source)
    return order


def may_approve(actor: User, order: QuotaOrder) -> bool:
    """Return whether somebody may approve or refuse an order: those who may change all of its
    quotas, except its author."""
    return order.pk in approvable(actor, [order])


def approvable(actor: User, orders: Iterable[QuotaOrder]) -> set[UUID]:
    """Return those of the orders that somebody may approve or refuse while they wait for
    approval."""
    mine = actor.pk, actor.get_username()
    others = [one.pk for one in orders if mine[0] != one.author_id and mine[1] != one.author_name]
    if not others:
        return set()
    found: dict[UUID, bool] = dict.fromkeys(others, True)
    access = access_of(actor)
    rows = OrderCell.objects.filter(order__in=others).order_by()
    for order, tenant in rows.values_list("order_id", "tenant_id"):
        found[order] &= access.may_administer_from_above(tenant)
    moved = OrderTenant.objects.filter(order__in=others).order_by()
    places = list(moved.values_list("order_id", "tenant_id", "fields"))
    names = {fields["parent"] for _, _, fields in places if fields.get("parent")}
    above = dict(Tenant.objects.filter(name__in=names).values_list("name", "id")) if names else {}
    for order, tenant, fields in places:
        found[order] &= access.may_administer_from_above(tenant) and may_place(
            access, fields, above
        )
    return {order for order, may in found.items() if may}


def may_place(access: Access, fields: Mapping[str, Any], above: Mapping[str, int]) -> bool:
    """Return whether somebody may move a tenant to where `fields` say; `above`: {tenant: its
    id}."""
    if "parent" not in fields or access.operator:
        return True
    return fields["parent"] in above and access.may_administer(above[fields["parent"]])


def cancel_order(
    actor: User, order: QuotaOrder, *, reason: str, source: str, dry_run: bool = False
) -> QuotaOrder:
    """Cancel an order that has not been applied yet. Raises NotAllowed, Invalid (reason) and
    Conflict."""
    with unit_of_work(dry_run):
        _take(actor, order, reason, [OrderState.SCHEDULED, OrderState.WAITING], "called off")
        told = f"{actor.get_username()} called it off: {reason.strip()}"
        close(order, OrderState.CANCELLED, timezone.now(), told)
        record_all(order, actor, "cancelled", reason.strip(), source=source)
    return order


def end_order(
    actor: User, order: QuotaOrder, *, reason: str, source: str, dry_run: bool = False
) -> QuotaOrder:
    """Take back what a temporary order changed, before its end. Raises as `cancel_order`."""
    with unit_of_work(dry_run):
        _take(actor, order, reason, [OrderState.TEMPORARY], "ended")
        end(order, timezone.now(), actor=actor, reason=reason.strip(), source=source)
    return order


def keep_order(
    actor: User, order: QuotaOrder, *, reason: str, source: str, dry_run: bool = False
) -> QuotaOrder:
    """Make permanent what a temporary order changed. Raises as `cancel_order`."""
    with unit_of_work(dry_run):
        _take(actor, order, reason, [OrderState.TEMPORARY], "kept")
        told = f"{actor.get_username()} made it permanent: {reason.strip()}"
        close(order, OrderState.DONE, timezone.now(), told)
        record_all(order, actor, "kept", reason.strip(), source=source)
    return order


def may_handle(actor: User, order: QuotaOrder) -> bool:
    """Return whether somebody may cancel an order, end it early or make it permanent: its author,
    and those who may change all of its quotas."""
    if order.author_id == actor.pk:
        return True
    tenants = {one.tenant_id for items in (order.cells, order.tenants) for one in items.all()}
    return may_change_all(actor, tenants)


def may_change_all(actor: User, tenants: Iterable[int]) -> bool:
    access = access_of(actor)
    return all(access.may_administer_from_above(tenant) for tenant in tenants)


def _take(actor: User, order: QuotaOrder, reason: str, states: list[OrderState], done: str) -> None:
    if not may_handle(actor, order):
        raise NotAllowed(
            "Only its author, and users who may change all of its quotas, may do that."
        )
    _locked(order, reason, states, done)


def _take_as_second(actor: User, order: QuotaOrder, reason: str, done: str) -> None:
    if not may_approve(actor, order):
        raise NotAllowed(
            "Only users who may change all of its quotas can approve or refuse it, and never its "
            "author."
        )
    _locked(order, reason, [OrderState.WAITING], done)


def _locked(order: QuotaOrder, reason: str, states: list[OrderState], done: str) -> None:
    if faults := reason_faults(reason):
        raise Invalid.fields(faults)
    if not taken(order, *states):
        order.refresh_from_db()
        word = OrderState(order.state).label.lower()
        raise Conflict(f"It is {word} and cannot be {done}. Read it again.")
