"""The page of a cluster's global queue: the jobs that wait their turn, in order, and what blocks
the first job of each GPU model."""

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from scheduling.models import Cluster
from scheduling.pages.polled import polled
from scheduling.queries.explain import policy_in_use
from scheduling.queries.names import gpu_type_names
from scheduling.queries.queues.global_queue import global_queue as global_queue_of
from scheduling.queries.queues.global_queue import scopes_of, shard_names
from scheduling.queries.selectors import accepting, cluster_by_name
from scheduling.queries.standstill import standstill
from tenants.errors import NotFound
from tenants.models import GpuType
from tenants.permissions import access_of
from tenants.web.pages import (
    UnknownFilter,
    actor_of,
    live_or_whole,
    page_login_required,
    unknown_names,
    unknown_values,
)

JOBS_PER_PAGE = 50
FILTERS = ("gpu", "scope")


@page_login_required
@require_GET
def global_queue(request: HttpRequest, name: str) -> HttpResponse:
    try:
        cluster = cluster_by_name(name)
    except NotFound as error:
        raise Http404(error.detail) from None
    access = access_of(request.user)
    return polled(request, access, lambda: _global_queue(request, cluster), alike=True)


def _global_queue(request: HttpRequest, cluster: Cluster) -> HttpResponse:
    filters = {name: request.GET.get(name, "").strip() for name in FILTERS}
    scopes = scopes_of(cluster)
    unknown = unknown_names(request, FILTERS, "page")
    unknown |= unknown_filters(filters, scopes)
    scope = filters["scope"] or (scopes[0] if scopes else "")
    queue = global_queue_of(cluster, scope)
    accepted = accepting(queue.standing.jobs, filters["gpu"]) if filters["gpu"] else None
    shown = [] if unknown else queue.numbered(accepted)
    page = Paginator(shown, JOBS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "nav": "queues",
        "cluster": cluster,
        "standstill": standstill(cluster),
        "page": page,
        "by_run_times": policy_in_use(cluster.pk).plans_by_learned,
        "places": queue.places(actor_of(request), list(page.object_list)),
        "filters": filters,
        "scope": scope,
        "scopes": scopes,
        "gpu_types": GpuType.objects.all(),
        "unknown": unknown,
    }
    return render(request, live_or_whole(request, "scheduling/queues/global_queue.html"), context)


def unknown_filters(filters: dict[str, str], scopes: list[str]) -> dict[str, UnknownFilter]:
    return unknown_values(filters, {"gpu": gpu_type_names(), "scope": shard_names(scopes)})
