"""The page of loans: who borrows whose guarantee now, and who wants it back."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from scheduling.pages.polled import polled
from scheduling.queries.names import gpu_type_names
from scheduling.queries.standing.loans import loans
from tenants.models import GpuType
from tenants.names import tenant_names
from tenants.permissions import access_of
from tenants.selectors import visible_tenants
from tenants.web.pages import (
    actor_of,
    live_or_whole,
    page_login_required,
    unknown_names,
    unknown_values,
)

FILTERS = ("tenant", "gpu")


@require_GET
@page_login_required
def loan_ledger(request: HttpRequest) -> HttpResponse:
    return polled(request, access_of(request.user), lambda: _loan_ledger(request), alike=True)


def _loan_ledger(request: HttpRequest) -> HttpResponse:
    filters = {name: request.GET.get(name, "").strip() for name in FILTERS}
    user = actor_of(request)
    known = {"tenant": tenant_names(user), "gpu": gpu_type_names()}
    unknown = unknown_names(request, FILTERS) | unknown_values(filters, known)
    tenant, gpu = filters["tenant"], filters["gpu"]
    found = None if unknown else loans(user, (tenant,) if tenant else None, gpu or None)
    context = {
        "nav": "quotas",
        "found": found,
        "wanted": sum(one.wanted_milli for one in found.loans) if found else 0,
        "filters": filters,
        "unknown": unknown,
        "tenants": visible_tenants(user),
        "gpu_types": GpuType.objects.all(),
    }
    return render(request, live_or_whole(request, "scheduling/quotas/loans.html"), context)
