"""Pages on which operators free whole nodes, for a waiting job or for none in particular: a plan
with its price, carried out at once or ordered for a later time."""

import math
import re
import uuid
from dataclasses import dataclass, field
from datetime import timedelta

from django.contrib import messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from metrics.pages.operations.views import operator_required
from scheduling.models import Cluster, Job, NodeRecord, PlanOrder, PlanOrderState
from scheduling.pages.quotas.edits import time_typed
from scheduling.pages.quotas.orders import utc
from scheduling.queries.nodes.defragment import Defragmentation, defragmentation
from scheduling.queries.nodes.effects import MOST_NODES
from scheduling.services.clusters.node_orders import empty_nodes
from scheduling.services.clusters.plan_orders import Approved, WholeNodes, cancel_plan, order_plan
from tenants.errors import DomainError
from tenants.services.audit import PAGE, Why
from tenants.templatetags.ui import short_model
from tenants.web.pages import actor_of

TAKES = ("gpu", "count", "job")
TIMES = ("starts_at", "ends_at")
TOLD = timedelta(days=7)  # how long the page shows orders that are over
CHIPS = {
    PlanOrderState.SCHEDULED: "wait",
    PlanOrderState.MOVING: "busy",
    PlanOrderState.DONE: "good",
    PlanOrderState.FAILED: "bad",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a plan may cost, as typed: GPU-hours of work, and jobs that move."""

    hours: str = ""
    moves: str = ""

    @classmethod
    def of(cls, plan: Defragmentation | None) -> "Limits":
        """Return what a plan costs now, rounded up."""
        if plan is None:
            return cls()
        return cls(f"{math.ceil(plan.lost_gpu_s / 36) / 100:g}", str(len(plan.moves)))

    @classmethod
    def typed(cls, post: QueryDict) -> "Limits":
        return cls(post.get("hours", ""), post.get("moves", ""))

    def read(self, errors: dict[str, list[str]]) -> Approved | None:
        """Parse them; return None and add the reasons to `errors` if that fails."""
        good = re.fullmatch(r"\d{1,9}(\.\d{1,6})?", self.hours.strip(), re.ASCII)
        if not good:
            errors["hours"] = ["Write a number of GPU-hours, e.g. 12 or 0.5."]
        if not re.fullmatch(r"\d{1,6}", self.moves.strip(), re.ASCII):
            errors["moves"] = ["Write a whole number of jobs."]
        if "hours" in errors or "moves" in errors:
            return None
        return Approved(float(self.hours) * 3600, int(self.moves))


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """An order as the page shows it."""

    order: PlanOrder

    @property
    def chip(self) -> str:
        return CHIPS.get(PlanOrderState(self.order.state), "")

    @property
    def is_pending(self) -> bool:
        return self.order.state == PlanOrderState.SCHEDULED

    @property
    def when(self) -> str:
        starts, ends = self.order.starts_at, self.order.ends_at
        until = f"{ends:%H:%M}" if ends.date() == starts.date() else utc(ends)
        return f"{utc(starts)} until {until}"

    @property
    def wish(self) -> str:
        order = self.order
        if order.job is not None:
            name = Job.objects.filter(pk=order.job).values_list("name", flat=True).first()
            return f"Room for {name or 'a deleted job'}"
        nodes = "node" if order.count == 1 else "nodes"
        return f"{order.count} more whole {nodes} of {short_model(order.gpu_model)}"

    @property
    def limits(self) -> str:
        hours, moves = f"{self.order.most_lost_gpu_s / 3600:.6g}", self.order.most_moves
        return f"{hours} GPU-hours, {moves} job{'' if moves == 1 else 's'}"

    @property
    def outcome(self) -> str:
        order = self.order
        if order.outcome or not order.nodes:
            return order.outcome
        return f"Emptied: {', '.join(order.nodes)}."


@dataclass
class WantedPlan:
    """What the address asks for, and what is wrong with it."""

    gpu: str
    count: str
    job: Job | None
    errors: dict[str, list[str]] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """The number of nodes; 0 if invalid."""
        good = self.count.isascii() and self.count.isdigit() and len(self.count) < 5
        return int(self.count) if good and int(self.count) <= MOST_NODES else 0


def asked(request: HttpRequest, cluster: Cluster) -> WantedPlan:
    """Read the address; raise Http404 for an unknown job."""
    text, job = request.GET.get("job", ""), None
    if text:
        try:
            job = Job.objects.filter(cluster=cluster, id=uuid.UUID(text)).first()
        except ValueError:
            job = None
        if job is None:
            raise Http404("There is no such job on this cluster.")
    found = WantedPlan(request.GET.get("gpu", ""), request.GET.get("count", ""), job)
    if found.count and not found.wanted:
        found.errors["count"] = [f"Must be a whole number from 1 to {MOST_NODES}."]
    return found


@operator_required
@require_http_methods(["GET", "HEAD", "POST"])
def node_plan(request: HttpRequest, cluster: str) -> HttpResponse:
    """Show the plan that the address asks for. POST empties the nodes as they were shown, or orders
    the same goal for a later time."""
    found = Cluster.objects.filter(name=cluster).first()
    if found is None:
        raise Http404(f"There is no cluster “{cluster}”.")
    wish = asked(request, found)
    if request.method == "POST" and (done := _done(request, found, wish)):
        messages.success(request, done, extra_tags="good")
        if "later" in request.POST:
            return redirect("node-plan", found.name)
        return redirect(f"{reverse('nodes')}?show=trouble")
    models = NodeRecord.objects.filter(cluster=found, gpus__gt=0).exclude(gpu_model="")
    told = Q(over_at=None) | Q(over_at__gte=timezone.now() - TOLD)
    plan = _plan(request, found, wish)
    context = {
        "nav": "operations",
        "cluster": found,
        "asked": wish,
        "errors": wish.errors,
        "gpu_models": sorted(set(models.values_list("gpu_model", flat=True))),
        "plan": plan,
        "limits": Limits.typed(request.POST) if "later" in request.POST else Limits.of(plan),
        "times": {name: request.POST.get(name, "") for name in TIMES},
        "reason": request.POST.get("reason", ""),
        "takes": TAKES,
        "orders": [ShownPlan(order) for order in PlanOrder.objects.filter(told, cluster=found)],
    }
    status = 422 if wish.errors else 200
    return render(request, "metrics/nodes/node_plan.html", context, status=status)


@operator_required
@require_POST
def plan_cancel(request: HttpRequest, cluster: str, order_id: uuid.UUID) -> HttpResponse:
    """Cancel an order that has not been carried out yet."""
    order = get_object_or_404(PlanOrder, pk=order_id, cluster__name=cluster)
    try:
        cancel_plan(actor_of(request), order, why=Why(request.POST.get("reason", ""), PAGE))
    except DomainError as error:
        text = error.first_detail
        messages.error(request, f"Nothing was changed. {text}", extra_tags="bad")
    else:
        messages.success(request, "The order is called off; nothing moves.", extra_tags="good")
    return redirect("node-plan", cluster)


def _done(request: HttpRequest, cluster: Cluster, wish: WantedPlan) -> str:
    """Carry out what the form says; return "" with `wish.errors` if it is refused."""
    why = Why(request.POST.get("reason", ""), PAGE)
    try:
        if "later" in request.POST:
            return _ordered(request, cluster, wish, why)
        nodes = request.POST.getlist("node")
        orders = empty_nodes(actor_of(request), cluster, nodes, why=why)
    except DomainError as error:
        wish.errors |= error.by_field or {"": [error.detail]}
        return ""
    some = "1 node" if len(orders) == 1 else f"{len(orders)} nodes"
    are = "is" if len(orders) == 1 else "are"
    return f"{some} of {cluster.name} {are} being emptied: {', '.join(nodes)}."


def _ordered(request: HttpRequest, cluster: Cluster, wish: WantedPlan, why: Why) -> str:
    """Order the plan for the given time; raise DomainError."""
    starts_at, ends_at = (time_typed(request, name, wish.errors) for name in TIMES)
    if starts_at is None:
        wish.errors.setdefault("starts_at", ["Give the time to start, in UTC."])
    approved = Limits.typed(request.POST).read(wish.errors)
    if approved is None or starts_at is None or wish.errors:
        return ""
    goal = WholeNodes(wish.gpu, wish.wanted) if wish.job is None else WholeNodes(job=wish.job.pk)
    order = order_plan(
        actor_of(request), cluster, goal, approved, starts_at=starts_at, ends_at=ends_at, why=why
    )
    return f"Scheduled for {utc(order.starts_at)}. Kant makes a new plan then."


def _plan(request: HttpRequest, cluster: Cluster, wish: WantedPlan) -> Defragmentation | None:
    if not wish.job and not (wish.gpu and wish.wanted):
        return None
    try:
        if wish.job:
            return defragmentation(actor_of(request), cluster, job=wish.job.pk)
        return defragmentation(actor_of(request), cluster, gpu_model=wish.gpu, nodes=wish.wanted)
    except DomainError as error:
        wish.errors.setdefault("", []).append(error.detail)
        return None
