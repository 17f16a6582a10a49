"""The page of the global queue of a cluster: who waits their turn, in its order, and what keeps the
first of each GPU model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from scheduling.models import Cluster, Job, SchedulerLease
from scheduling.queries.names import gpu_type_names
from scheduling.queries.queue_stages import first_by_model
from scheduling.queries.selectors import accepting, cluster_by_name
from scheduling.queries.standstill import standstill
from scheduling.queries.waiting_order import standing_in
from tenants.errors import NotFound
from tenants.models import GpuType
from tenants.names import Names
from tenants.permissions import Access, access_of
from tenants.web import (
    UnknownFilter,
    actor_of,
    live_or_whole,
    page_login_required,
    unknown_names,
)

JOBS_PER_PAGE = 50
FILTERS = ("gpu", "scope")


@dataclass(frozen=True, slots=True)
class Place:
    """A job and its place, from 1; of a tenant that the reader may not see only its size is shown.
    `heads`: the GPU models of which it is the first."""

    number: int
    job: Job
    visible: bool
    heads: tuple[str, ...]


@page_login_required
@require_GET
def global_queue(request: HttpRequest, name: str) -> HttpResponse:
    try:
        cluster = cluster_by_name(name)
    except NotFound as error:
        raise Http404(error.detail) from None
    filters = {name: request.GET.get(name, "").strip() for name in FILTERS}
    scopes = scopes_of(cluster)
    unknown = unknown_names(request, FILTERS, "page")
    unknown |= unknown_filters(filters, scopes)
    scope = filters["scope"] or (scopes[0] if scopes else "")
    standing = standing_in(cluster.pk, scope)
    ids = standing.ids()
    shown = [] if unknown else ids
    if filters["gpu"] and not unknown:
        accepted = set(
            accepting(standing.jobs.order_by(), filters["gpu"]).values_list("id", flat=True)
        )
        shown = [job for job in ids if job in accepted]
    page = Paginator(shown, JOBS_PER_PAGE).get_page(request.GET.get("page"))
    first = first_by_model(standing, ids)
    context = {
        "nav": "queues",
        "cluster": cluster,
        "standstill": standstill(cluster),
        "page": page,
        "places": places(access_of(actor_of(request)), page, first),
        "filters": filters,
        "scope": scope,
        "scopes": scopes,
        "gpu_types": GpuType.objects.all(),
        "unknown": unknown,
    }
    return render(request, live_or_whole(request, "scheduling/queues/global_queue.html"), context)


def scopes_of(cluster: Cluster) -> list[str]:
    """Where several schedulers share the cluster, the shards that have a queue of their own."""
    leases = SchedulerLease.objects.filter(cluster=cluster).exclude(scope="")
    return list(leases.order_by("scope").values_list("scope", flat=True))


def unknown_filters(filters: dict[str, str], scopes: list[str]) -> dict[str, UnknownFilter]:
    known = {"gpu": gpu_type_names(), "scope": Names("shard", fixed=tuple(scopes))}
    return {
        name: UnknownFilter(name, filters[name], names.none_such(filters[name]))
        for name, names in known.items()
        if filters[name] and filters[name] not in names
    }


def places(access: Access, page: Any, first: Mapping[str, UUID]) -> list[Place]:
    """The jobs of a page with their places among those that the filters leave; `first`: the first
    job by GPU model."""
    rows = Job.objects.select_related("tenant", "cluster", "user").prefetch_related("pod_sets")
    jobs = rows.in_bulk(list(page.object_list))
    return [
        Place(
            page.start_index() + at,
            jobs[pk],
            access.may_view(jobs[pk].tenant_id),
            tuple(sorted(model for model, job in first.items() if job == pk)),
        )
        for at, pk in enumerate(page.object_list)
        if pk in jobs
    ]
