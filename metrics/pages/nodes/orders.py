"""Pages on which operators cordon and drain a node, preview that, and take it back."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from scheduling.models import NodeRecord
from scheduling.pages.refusals import refusal
from scheduling.queries.nodes.effects import NodeAct, NodesMeant, node_effects
from scheduling.queries.nodes.orders import order_of
from scheduling.services.clusters.node_orders import lift_order, order_node, refuse_orders
from tenants.errors import DomainError
from tenants.services.audit import PAGE, Why
from tenants.templatetags.ui import duration
from tenants.web.pages import actor_of, page_login_required

HOUR = 3600
WAITS = "ends"
BY_TIME = "time"
# When pods must leave, in seconds from now.
TIMES = (0, HOUR // 4, HOUR, 4 * HOUR, 12 * HOUR, 24 * HOUR, 72 * HOUR)
UNKNOWN = "Choose what to do."
UNKNOWN_TIME = "Choose one of the times."
WAYS = (
    ("", "Cordon", "no new pods; running pods stay"),
    (WAITS, "Drain, and wait until its jobs end", "no job loses work"),
    (BY_TIME, "Drain by a deadline", "jobs that have not ended by then leave and are placed again"),
)


@dataclass(frozen=True, slots=True)
class Typed:
    """The form's contents: what to do with the node (one of WAYS), by when, and why."""

    way: str = WAITS
    within: str = "0"
    reason: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> "Typed":
        post = request.POST
        return cls(post.get("way", WAITS), post.get("within", "0"), post.get("reason", ""))

    @property
    def drains(self) -> bool:
        return bool(self.way)

    def evict_at(self) -> datetime | None:
        """Return when pods are evicted; None = never. Raises ValueError."""
        if self.way not in [way for way, *_ in WAYS]:
            raise ValueError(UNKNOWN)
        if self.way != BY_TIME:
            return None
        seconds = {str(choice): choice for choice in TIMES}.get(self.within)
        if seconds is None:
            raise ValueError(UNKNOWN_TIME)
        return timezone.now() + timedelta(seconds=seconds)


def times() -> list[tuple[str, str]]:
    """Return (value, title) of each deadline for jobs to leave."""
    return [("0", "at once"), *((str(s), f"within {duration(s)}") for s in TIMES[1:])]


def _node(request: HttpRequest, cluster: str, name: str) -> NodeRecord:
    if not actor_of(request).is_operator:
        raise Http404("Only operators can take nodes out of service.")
    rows = NodeRecord.objects.select_related("cluster")
    return get_object_or_404(rows, cluster__name=cluster, name=name)


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def node_order(request: HttpRequest, cluster: str, name: str) -> HttpResponse:
    """Show and process the form that takes a node out of service."""
    found = _node(request, cluster, name)
    task = order_of(found.cluster_id, name)
    typed, errors = Typed(), dict[str, list[str]]()
    if request.method == "POST":
        typed = Typed.of(request)
        try:
            order_node(
                actor_of(request),
                found.cluster,
                name,
                drains=typed.drains,
                evict_at=typed.evict_at(),
                why=Why(typed.reason, PAGE),
            )
        except ValueError as error:
            errors = {"way": [str(error)]}
        except DomainError as error:
            errors = error.by_field or {"": [error.detail]}
        else:
            done = "is being drained" if typed.drains else "is cordoned"
            messages.success(request, f"{name} {done}.", extra_tags="good")
            return redirect("node", cluster, name)
    context = {
        "nav": "nodes",
        "node": found,
        "task": task,
        "typed": typed,
        "errors": errors,
        "ways": WAYS,
        "times": times(),
    }
    status = 422 if errors else 200
    return render(request, "metrics/nodes/node_order.html", context, status=status)


@page_login_required
@require_POST
def node_preview(request: HttpRequest, cluster: str, name: str) -> HttpResponse:
    """Preview taking the node out of service as the form says; nothing is changed."""
    found = _node(request, cluster, name)
    typed = Typed.of(request)
    try:
        evict_at = typed.evict_at()
    except ValueError as error:
        return refusal(request, str(error))
    try:
        refuse_orders(found.cluster, (name,), drains=typed.drains, evict_at=evict_at)
    except DomainError as error:
        return refusal(request, error.detail)
    act = NodeAct.DRAIN if typed.drains else NodeAct.CORDON
    wish = NodesMeant(act, (name,), evict_at=evict_at)
    effects = node_effects(actor_of(request), found.cluster, wish).effects
    title = f"What this would do to jobs on {name} and others"
    return render(request, "parts/effects.html", {"title": title, "effects": effects})


@page_login_required
@require_POST
def node_lift(request: HttpRequest, cluster: str, name: str) -> HttpResponse:
    """Let jobs use the node again."""
    found = _node(request, cluster, name)
    try:
        lift_order(
            actor_of(request), found.cluster, name, why=Why(request.POST.get("reason", ""), PAGE)
        )
    except DomainError as error:
        text = error.first_detail
        messages.error(request, f"{name} was not changed. {text}", extra_tags="bad")
    else:
        messages.success(request, f"{name} accepts jobs again.", extra_tags="good")
    return redirect("node", cluster, name)
