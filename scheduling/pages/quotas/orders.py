"""Quota changes with a start or end time: in the matrix, and on their own page."""

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from scheduling.pages.polled import polled
from scheduling.pages.refusals import refusal
from tenants.errors import Conflict, DomainError, NotFound
from tenants.models import OrderCell, OrderState, QuotaOrder, Tenant, User
from tenants.permissions import access_of
from tenants.services.approval import most_alone
from tenants.services.audit import PAGE
from tenants.services.moves.guaranteed import moved_milli
from tenants.services.orders.carrying_out import rehearse
from tenants.services.orders.placing import (
    approvable,
    approve_order,
    cancel_order,
    end_order,
    keep_order,
    may_approve,
    may_handle,
    refuse_order,
)
from tenants.services.orders.seen import (
    PENDING,
    SeenOrderCell,
    SeenOrderTenant,
    cells_seen,
    lapses_at,
    tenants_of,
    visible_order,
)
from tenants.services.previews.kept import quota_effects
from tenants.services.quota_revert import said_of
from tenants.services.quota_terms import in_gpus, in_words
from tenants.services.typed_gpus import as_typed
from tenants.web.pages import actor_of, page_login_required

CELLS_NAMED = 4
CHIPS = {
    OrderState.WAITING: "wait",
    OrderState.TEMPORARY: "busy",
    OrderState.DONE: "good",
    OrderState.FAILED: "bad",
}
LIVE = "scheduling/quotas/_quota_order_live.html"

Act = Callable[..., QuotaOrder]


def utc(at: datetime | None) -> str:
    """Write an instant as people do: "Fri 2030-01-04 18:00 UTC"."""
    return f"{at:%a %Y-%m-%d %H:%M} UTC" if at else ""


@dataclass(frozen=True, slots=True)
class ShownCell:
    """One guarantee of an order: its old and new value, and why it was not taken back.
    `stands_against`: why it can no longer be carried out; "" = no known reason."""

    cell: OrderCell
    before: str
    after: str
    stands_against: str = ""

    @property
    def terms(self) -> str:
        """What it sets besides the guarantee, in words."""
        return ", ".join(said_of(in_gpus(self.cell.terms)))

    @classmethod
    def of(cls, seen: SeenOrderCell) -> "ShownCell":
        """Build it without `stands_against`, which `_against` finds."""
        cell = seen.cell
        after = as_typed(cell.guaranteed_milli)
        if seen.pending:
            return cls(cell, _told(seen.now), after)
        return cls(cell, _told(seen.before) if cell.record else "", after)


def _told(guaranteed: float | None) -> str:
    return "none" if guaranteed is None else f"{guaranteed:.12g}"


def _against(seen: SeenOrderCell) -> str:
    """Return who has changed a quota since an order for it was placed; "" = nobody. For readers who
    may change the order."""
    if not seen.is_overtaken:
        return ""
    found = seen.overtaken()
    was = f"; it was {_told(found.before)} when this was scheduled" if found.known else ""
    done = f"set it to {_told(seen.now)}" if seen.quota else "removed it"
    others = (one.told for one in found.fields if one.field != "guaranteed" and seen.quota)
    return " ".join((f"{found.who} {done} meanwhile{found.why}{was}.", *others))


@dataclass(frozen=True, slots=True)
class ShownOrder:
    """`may_decide`: whether the reader may approve or refuse it."""

    order: QuotaOrder
    cells: list[ShownCell]
    tenants: list[SeenOrderTenant]
    may_decide: bool = False

    @property
    def what(self) -> str:
        """E.g. "2 quotas and 1 tenant"."""
        counts = ((len(self.cells), "quota"), (len(self.tenants), "tenant"))
        return " and ".join(f"{n} {what}{'s' if n > 1 else ''}" for n, what in counts if n)

    @property
    def chip(self) -> str:
        return CHIPS.get(OrderState(self.order.state), "")

    @property
    def is_pending(self) -> bool:
        return self.order.state in PENDING

    @property
    def is_overtaken(self) -> bool:
        cells = any(cell.stands_against for cell in self.cells)
        return cells or any(one.overtaken for one in self.tenants)

    @property
    def has_outcomes(self) -> bool:
        return any(cell.cell.outcome for cell in self.cells)

    @property
    def tenants_have_outcomes(self) -> bool:
        return any(one.one.outcome for one in self.tenants)

    @property
    def changed_milli(self) -> int:
        """How many guaranteed milli-GPU it changes, up and down."""
        before = (0.0 if cell.before in ("", "none") else float(cell.before) for cell in self.cells)
        edited = sum(
            abs(cell.cell.guaranteed_milli - round(1000 * was))
            for cell, was in zip(self.cells, before, strict=True)
        )
        moved = [one.one for one in self.tenants if "parent" in one.one.fields]
        names = [one.fields["parent"] for one in moved]
        ids = dict(Tenant.objects.filter(name__in=names).values_list("name", "id"))
        return edited + moved_milli({m.tenant_id: ids.get(m.fields["parent"]) for m in moved})

    @property
    def lapses_at(self) -> datetime | None:
        return lapses_at(self.order)

    @property
    def is_late(self) -> bool:
        """Whether it still waits for approval although its time has come."""
        starts_at = self.order.starts_at
        return self.order.state == OrderState.WAITING and (
            starts_at is not None and starts_at <= timezone.now()
        )

    @property
    def first(self) -> list[ShownCell]:
        return self.cells[:CELLS_NAMED]

    @property
    def more(self) -> int:
        return len(self.cells) - len(self.first)

    @property
    def when(self) -> str:
        """What is still to happen, and when."""
        order = self.order
        match order.state:
            case OrderState.SCHEDULED | OrderState.WAITING:
                starts = f"from {utc(order.starts_at)}" if order.starts_at else ""
                ends = f"until {utc(order.ends_at)}" if order.ends_at else ""
                return ", ".join(filter(None, (starts, ends)))
            case OrderState.TEMPORARY:
                return f"until {utc(order.ends_at)}"
        return ""


def shown_orders(viewer: User, orders: Sequence[QuotaOrder]) -> list[ShownOrder]:
    """Return orders as lists show them, with two statements."""
    seen = cells_seen(orders)
    tenants = tenants_of(orders, viewer)
    mine = approvable(viewer, (one for one in orders if one.state == OrderState.WAITING))
    return [
        ShownOrder(
            one,
            [ShownCell.of(cell) for cell in seen[one.pk]],
            tenants[one.pk],
            one.pk in mine,
        )
        for one in orders
    ]


def shown_whole(viewer: User, order: QuotaOrder) -> ShownOrder:
    """Return an order as its page shows it, with the obstacles for readers who may do something
    about them."""
    cells = cells_seen([order])[order.pk]
    knows = may_handle(viewer, order)
    return ShownOrder(
        order,
        [replace(ShownCell.of(c), stands_against=_against(c) if knows else "") for c in cells],
        tenants_of([order], viewer)[order.pk],
        order.state == OrderState.WAITING and may_approve(viewer, order),
    )


def planned(orders: Iterable[ShownOrder]) -> dict[str, list[tuple[uuid.UUID, str]]]:
    """Return {key of a matrix cell: [(order, its future value and when)]}."""
    found: dict[str, list[tuple[uuid.UUID, str]]] = {}
    for one in orders:
        order = one.order
        for shown in one.cells:
            if order.state == OrderState.WAITING:
                text = f"{shown.after} once somebody approves it"
            elif order.state == OrderState.SCHEDULED:
                text = f"{shown.after} from {utc(order.starts_at)}"
            elif order.state == OrderState.TEMPORARY and shown.before:
                text = f"back to {shown.before} on {utc(order.ends_at)}"
            else:
                continue
            key = f"{shown.cell.tenant_id}-{shown.cell.gpu_type_id}"
            found.setdefault(key, []).append((order.pk, text))
    return found


@dataclass(frozen=True, slots=True)
class Button:
    """An action that is possible on an order now."""

    name: str
    title: str
    does: str
    done: str
    act: Act
    look: str = "btn-plain"


CANCEL = Button(
    "cancel",
    "Call it off",
    "No quota changes.",
    "The change is called off.",
    cancel_order,
    "btn-bad",
)
END = Button(
    "end",
    "Go back now",
    "Quotas and tenants go back to their old values, except those that somebody has changed since.",
    "The change is over; the quotas went back.",
    end_order,
    "btn-main",
)
KEEP = Button(
    "keep",
    "Keep it for good",
    "The quotas keep their new values.",
    "The change is permanent now.",
    keep_order,
)
APPROVE = Button(
    "approve",
    "Approve",
    "The quotas change at once, or at the time that was set.",
    "The change is approved.",
    approve_order,
    "btn-main",
)
REFUSE = Button(
    "refuse", "Refuse", "No quota changes.", "The change is refused.", refuse_order, "btn-bad"
)
BUTTONS = {
    OrderState.WAITING: (CANCEL,),
    OrderState.SCHEDULED: (CANCEL,),
    OrderState.TEMPORARY: (END, KEEP),
}


def buttons_of(actor: User, order: QuotaOrder) -> tuple[Button, ...]:
    if order.state == OrderState.WAITING and may_approve(actor, order):
        return APPROVE, REFUSE
    return BUTTONS.get(OrderState(order.state), ()) if may_handle(actor, order) else ()


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def quota_order(request: HttpRequest, order_id: uuid.UUID) -> HttpResponse:
    """Show one order, what became of it, and the possible actions; POST carries one out."""
    actor = actor_of(request)
    order = _order_or_404(actor, order_id)
    if request.headers.get("HX-Request"):
        return polled(
            request,
            access_of(actor),
            lambda: render(request, LIVE, _context(request, order)),
            alike=False,
        )
    errors: dict[str, list[str]] = {}
    if request.method == "POST":
        button = next((b for b in buttons_of(actor, order) if b.name in request.POST), None)
        if button is None:
            errors[""] = ["That is not possible in its current state; see below."]
        elif acted(request, order, button, request.POST.get("reason", ""), errors):
            return redirect("quotas")
        order = visible_order(actor, order_id)
    context = _context(request, order) | {
        "buttons": buttons_of(actor, order),
        "reason": request.POST.get("reason", ""),
        "errors": errors,
    }
    status = 422 if errors else 200
    return render(request, "scheduling/quotas/quota_order.html", context, status=status)


def _context(request: HttpRequest, order: QuotaOrder) -> dict[str, Any]:
    alone = most_alone()
    return {
        "nav": "quotas",
        "shown": shown_whole(actor_of(request), order),
        "is_mine": order.author_id == actor_of(request).pk,
        "alone": "" if alone is None else in_words(alone),
        # The state when the page was opened, which decided the actions it offers.
        "opened": request.GET.get("opened", order.state),
    }


def _order_or_404(actor: User, order_id: uuid.UUID) -> QuotaOrder:
    try:
        return visible_order(actor, order_id)
    except NotFound:
        raise Http404("There is no such change of quotas, or you may not see it.") from None


@page_login_required
@require_POST
def quota_order_preview(request: HttpRequest, order_id: uuid.UUID) -> HttpResponse:
    """Preview what a pending order would do to jobs now; nothing is changed."""
    actor = actor_of(request)
    order = _order_or_404(actor, order_id)
    if order.state not in PENDING:
        return refusal(request, "The change can no longer be carried out. Reload the page.")
    try:
        found = rehearse(order)
    except Conflict as conflict:
        return refusal(request, f"The change cannot be carried out now. {conflict.detail}")
    title = "What it would do if it were carried out now"
    effects = quota_effects(actor, found.after, found.planned)
    context = {"title": title, "effects": effects}
    return render(request, "parts/effects.html", context)


def acted(
    request: HttpRequest,
    order: QuotaOrder,
    button: Button,
    reason: str,
    errors: dict[str, list[str]],
) -> bool:
    """Carry out the action; return False with `errors` by field ("" = none of them) if that
    fails."""
    try:
        button.act(actor_of(request), order, reason=reason, source=PAGE)
    except DomainError as error:
        errors |= error.by_field or {"": [error.detail]}
        return False
    messages.success(request, button.done, extra_tags="good")
    if order.outcome and button is END:
        messages.warning(request, order.outcome, extra_tags="wait")
    return True
