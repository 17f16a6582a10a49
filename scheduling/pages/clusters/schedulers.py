"""The page of the schedulers: which one leads what, how busy it is, and what to do if one is not
enough."""

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from scheduling.models import Cluster
from scheduling.queries.names import cluster_names
from scheduling.queries.standing.schedulers import scheduler_states
from tenants.web.conditional import by_its_text
from tenants.web.pages import (
    actor_of,
    live_or_whole,
    page_login_required,
    unknown_names,
    unknown_values,
)

FILTERS = ("cluster",)


@require_GET
@page_login_required
def schedulers(request: HttpRequest) -> HttpResponse:
    if not actor_of(request).is_operator:
        raise PermissionDenied("This page shows all clusters together; only operators see it.")
    filters = {name: request.GET.get(name, "").strip() for name in FILTERS}
    unknown = unknown_names(request, FILTERS)
    unknown |= unknown_values(filters, {"cluster": cluster_names()})
    clusters = list(Cluster.objects.filter(is_active=True))
    shown = [one for one in clusters if filters["cluster"] in ("", one.name)]
    context = {
        "nav": "operations",
        "clusters": clusters,
        "filters": filters,
        "unknown": unknown,
        "states": [] if unknown else scheduler_states(shown, timezone.now()),
    }
    # The remaining work changes without any of the marks, and the page is cheap to make.
    answer = render(request, live_or_whole(request, "scheduling/clusters/schedulers.html"), context)
    return by_its_text(request, answer)
