"""Operators free whole nodes, for nobody in particular or for a job that waits: a plan with its
price, which is carried out as it stands."""

import uuid
from dataclasses import dataclass, field

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from metrics.pages.operations.views import operator_required
from scheduling.models import Cluster, Job, NodeRecord
from scheduling.queries.nodes.defragment import Defragmentation, defragmentation
from scheduling.queries.nodes.effects import MOST_NODES
from scheduling.services.clusters.node_orders import empty_nodes
from tenants.errors import DomainError
from tenants.services.audit import PAGE
from tenants.services.queues import Why
from tenants.web.pages import actor_of

TAKES = ("gpu", "count", "job")


@dataclass
class WantedPlan:
    """What the address asks for, and what is wrong with it."""

    gpu: str
    count: str
    job: Job | None
    errors: dict[str, list[str]] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """0 where it is no number of nodes."""
        good = self.count.isascii() and self.count.isdigit() and len(self.count) < 5
        return int(self.count) if good and int(self.count) <= MOST_NODES else 0


def asked(request: HttpRequest, cluster: Cluster) -> WantedPlan:
    """Raises Http404 for a job that is not there."""
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
    """The plan that the address asks for, or (POST) its nodes emptied as they were shown."""
    found = Cluster.objects.filter(name=cluster).first()
    if found is None:
        raise Http404(f"There is no cluster “{cluster}”.")
    wish = asked(request, found)
    nodes, reason = request.POST.getlist("node"), request.POST.get("reason", "")
    if request.method == "POST":
        why = Why(reason, PAGE)
        try:
            orders = empty_nodes(actor_of(request), found, nodes, why=why)
        except DomainError as error:
            wish.errors |= error.by_field or {"": [error.detail]}
        else:
            some = "1 node" if len(orders) == 1 else f"{len(orders)} nodes"
            are = "is" if len(orders) == 1 else "are"
            text = f"{some} of {found.name} {are} being emptied: {', '.join(nodes)}."
            messages.success(request, text, extra_tags="good")
            return redirect(f"{reverse('nodes')}?show=trouble")
    models = NodeRecord.objects.filter(cluster=found, gpus__gt=0).exclude(gpu_model="")
    context = {
        "nav": "operations",
        "cluster": found,
        "asked": wish,
        "errors": wish.errors,
        "gpu_models": sorted(set(models.values_list("gpu_model", flat=True))),
        "plan": _plan(request, found, wish),
        "reason": reason,
        "takes": TAKES,
    }
    status = 422 if wish.errors else 200
    return render(request, "metrics/nodes/node_plan.html", context, status=status)


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
