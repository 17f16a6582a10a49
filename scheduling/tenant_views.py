"""Pages of tenants: the tree with its use, one tenant with its members and open jobs."""

from collections.abc import Sequence

from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from scheduling.engine.states import TERMINAL
from scheduling.models import Job
from scheduling.quota_use import QuotaUse, quota_uses
from tenants.models import Membership, Tenant
from tenants.permissions import Access, access_of
from tenants.selectors import members_of, visible_tenants
from tenants.web import live_or_whole, page_login_required

JOBS_SHOWN = 20


def in_tree_order(tenants: Sequence[Tenant]) -> list[tuple[Tenant, int]]:
    """Tenants with their depth, children below their parents, each level by name."""
    known = {t.pk for t in tenants}
    below: dict[int | None, list[Tenant]] = {}
    for tenant in sorted(tenants, key=lambda t: t.name):
        parent = tenant.parent_id if tenant.parent_id in known else None
        below.setdefault(parent, []).append(tenant)
    ordered: list[tuple[Tenant, int]] = []

    def visit(parent: int | None, depth: int) -> None:
        for tenant in below.get(parent, []):
            ordered.append((tenant, depth))
            visit(tenant.pk, depth + 1)

    visit(None, 0)
    return ordered


@page_login_required
@require_GET
def tenants(request: HttpRequest) -> HttpResponse:
    visible = list(visible_tenants(request.user))
    members = dict(
        Membership.objects.filter(tenant__in=visible)
        .order_by()
        .values_list("tenant_id")
        .annotate(Count("id"))
    )
    counts = dict(
        Job.objects.filter(tenant__in=visible)
        .exclude(state__in=list(TERMINAL))
        .order_by()
        .values_list("tenant_id")
        .annotate(Count("id"))
    )
    uses: dict[str, list[QuotaUse]] = {}
    for use in quota_uses():
        uses.setdefault(use.tenant, []).append(use)
    access = access_of(request.user)
    rows = [
        {
            "tenant": t,
            "depth": depth,
            "members": members.get(t.pk, 0),
            "jobs": counts.get(t.pk, 0),
            "uses": [u for u in uses.get(t.name, []) if u.guaranteed or u.used],
            "role": role_title(access, t.pk),
        }
        for t, depth in in_tree_order(visible)
    ]
    return render(
        request, live_or_whole(request, "scheduling/tenants.html"), {"nav": "tenants", "rows": rows}
    )


def role_title(access: Access, tenant_id: int) -> str:
    if access.operator:
        return "operator"
    return (access.role_in(tenant_id) or "").replace("-", " ")


@page_login_required
@require_GET
def tenant(request: HttpRequest, name: str) -> HttpResponse:
    found = visible_tenants(request.user).filter(name=name).first()
    if found is None:
        raise Http404("There is no such tenant, or you have no role in it.")
    access = access_of(request.user)
    jobs = Job.objects.filter(tenant=found).exclude(state__in=list(TERMINAL))
    context = {
        "nav": "tenants",
        "tenant": found,
        "role": role_title(access, found.pk),
        "uses": [u for u in quota_uses() if u.tenant == found.name],
        "members": members_of(found),
        "children": visible_tenants(request.user).filter(parent=found),
        "parent": visible_tenants(request.user).filter(children=found).first(),
        "jobs": jobs.select_related("tenant").prefetch_related("pod_sets")[:JOBS_SHOWN],
        "job_count": jobs.count(),
        "may_administer": access.may_administer(found.pk),
    }
    return render(request, live_or_whole(request, "scheduling/tenant.html"), context)
