"""Changes of quotas that are made at a time, or until a time: in the matrix, and on their page."""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from tenants.errors import DomainError, NotFound
from tenants.models import OrderCell, OrderState, QuotaOrder, User
from tenants.services.audit import PAGE
from tenants.services.orders.placing import (
    approve_order,
    cancel_order,
    end_order,
    keep_order,
    may_approve,
    may_handle,
    refuse_order,
)
from tenants.services.orders.seen import guaranteed_before, visible_order
from tenants.services.typed_gpus import as_typed
from tenants.web.pages import actor_of, page_login_required

CELLS_NAMED = 4

Act = Callable[..., QuotaOrder]


def utc(at: datetime | None) -> str:
    """An instant as people write it: "Fri 2030-01-04 18:00 UTC"."""
    return f"{at:%a %Y-%m-%d %H:%M} UTC" if at else ""


@dataclass(frozen=True, slots=True)
class ShownCell:
    """One guarantee of an order: what it makes of what, and why it did not go back."""

    cell: OrderCell
    before: str
    after: str

    @classmethod
    def of(cls, cell: OrderCell) -> "ShownCell":
        before = guaranteed_before(cell)
        told = "none" if before is None else f"{before:.12g}"
        return cls(cell, told if cell.record else "", as_typed(cell.guaranteed_milli))


@dataclass(frozen=True, slots=True)
class ShownOrder:
    order: QuotaOrder
    cells: list[ShownCell]

    @classmethod
    def of(cls, order: QuotaOrder) -> "ShownOrder":
        seen: list[OrderCell] = order.seen  # type: ignore[attr-defined]
        return cls(order, [ShownCell.of(cell) for cell in seen])

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
                starts = f"on {utc(order.starts_at)}" if order.starts_at else ""
                ends = f"until {utc(order.ends_at)}" if order.ends_at else ""
                return ", ".join(filter(None, (starts, ends)))
            case OrderState.TEMPORARY:
                return f"until {utc(order.ends_at)}"
        return ""


def planned(orders: Iterable[ShownOrder]) -> dict[str, list[tuple[uuid.UUID, str]]]:
    """{key of a cell of the matrix: [(order, what it will be when)]}."""
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
    """What may be done to an order now."""

    name: str
    title: str
    does: str
    done: str
    act: Act


CANCEL = Button("cancel", "Call it off", "No quota changes.", "It is called off.", cancel_order)
END = Button(
    "end",
    "Set back now",
    "The quotas go back to what they were, except those that somebody has changed since.",
    "It is over; the quotas went back.",
    end_order,
)
KEEP = Button("keep", "Let it stay", "Nothing goes back.", "It stays for good.", keep_order)
APPROVE = Button(
    "approve",
    "Approve",
    "The quotas change, at their time or at once.",
    "It is approved.",
    approve_order,
)
REFUSE = Button("refuse", "Refuse", "No quota changes.", "It is refused.", refuse_order)
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
    """One order, what became of it, and what may be done to it."""
    actor = actor_of(request)
    try:
        order = visible_order(actor, order_id)
    except NotFound:
        raise Http404("There is no such change of quotas, or you may not see it.") from None
    errors: dict[str, list[str]] = {}
    reason = request.POST.get("reason", "")
    if request.method == "POST":
        button = next((b for b in buttons_of(actor, order) if b.name in request.POST), None)
        if button is None:
            errors[""] = ["That cannot be done to it now; see below how it stands."]
        elif acted(request, order, button, reason, errors):
            return redirect("quotas")
        order = visible_order(actor, order_id)
    context = {
        "nav": "quotas",
        "shown": ShownOrder.of(order),
        "buttons": buttons_of(actor, order),
        "reason": reason,
        "errors": errors,
    }
    status = 422 if errors else 200
    return render(request, "scheduling/quotas/quota_order.html", context, status=status)


def acted(
    request: HttpRequest,
    order: QuotaOrder,
    button: Button,
    reason: str,
    errors: dict[str, list[str]],
) -> bool:
    """Do it; False with `errors` by field ("" = none of them) otherwise."""
    try:
        button.act(actor_of(request), order, reason=reason, source=PAGE)
    except DomainError as error:
        errors |= error.by_field or {"": [error.detail]}
        return False
    messages.success(request, button.done, extra_tags="good")
    if order.outcome and button is END:
        messages.warning(request, order.outcome, extra_tags="wait")
    return True
