"""Pages of tenants: the tree with its use, one tenant with its members, limits and open jobs."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any

from django.contrib import messages
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from scheduling.engine.states import OPEN
from scheduling.models import Job
from scheduling.pages.forms import LimitsForm, show
from scheduling.pages.polled import polled
from scheduling.pages.quotas.standing import quota_standing
from scheduling.pages.refusals import NOTHING_TO_PREVIEW, refusal, refusal_of_form
from scheduling.queries import selectors
from scheduling.queries.quota_use import quota_uses
from tenants.errors import DomainError
from tenants.facts import QuotaUse
from tenants.models import Membership, Tenant
from tenants.permissions import Access, access_of, lineage
from tenants.selectors import (
    given_to_all,
    members_of,
    parents_by_id,
    visible_names,
    visible_tenants,
)
from tenants.services.audit import PAGE
from tenants.services.previews.kept import tenant_effects
from tenants.services.tenant_terms import FELT_BY_JOBS, LIMITS
from tenants.services.tenants import change_tenant
from tenants.web.pages import actor_of, live_or_whole, page_login_required

JOBS_SHOWN = 20
# A subset of the columns of the table of jobs.
COLUMNS = ("gpus", "model", "tenant", "waited", "starts", "ran", "submitted")


def in_tree_order(
    tenants: Sequence[Tenant], order: Callable[[Tenant], Any] = attrgetter("name")
) -> list[tuple[Tenant, int]]:
    """Return tenants with their depth: children below their parents, each level sorted by
    `order`."""
    known = {t.pk for t in tenants}
    below: dict[int | None, list[Tenant]] = {}
    for tenant in sorted(tenants, key=order):
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
    access = access_of(request.user)
    return polled(request, access, lambda: _tenants(request, access), alike=True)


def _tenants(request: HttpRequest, access: Access) -> HttpResponse:
    visible = list(visible_tenants(request.user))
    members = dict(
        Membership.objects.filter(tenant__in=visible)
        .order_by()
        .values_list("tenant_id")
        .annotate(Count("id"))
    )
    counts = open_jobs(visible)
    uses: dict[str, list[QuotaUse]] = {}
    known = quota_uses()
    for use in known:
        uses.setdefault(use.tenant, []).append(use)
    rows = [
        {
            "tenant": t,
            "depth": depth,
            "members": members.get(t.pk, 0),
            "jobs": counts[t.pk],
            "uses": [u for u in uses.get(t.name, []) if u.guaranteed or u.used],
            "role": role_title(access, t.pk),
        }
        for t, depth in in_tree_order(visible)
    ]
    return render(
        request,
        live_or_whole(request, "scheduling/tenants/tenants.html"),
        {
            "nav": "tenants",
            "rows": rows,
            "standing": quota_standing(selectors.visible_jobs(request.user), visible, known),
        },
    )


def open_jobs(visible: Sequence[Tenant]) -> Counter[int]:
    """Return {primary key of a tenant: open jobs of it and of all below it}."""
    rows = Job.objects.filter(tenant__in=visible, state__in=list(OPEN)).order_by()
    parents, counts = parents_by_id(), Counter[int]()
    for tenant_id, count in rows.values_list("tenant_id").annotate(Count("id")):
        counts.update(dict.fromkeys(lineage(parents, tenant_id), count))
    return counts


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
    return polled(request, access, lambda: _tenant(request, found, access), alike=True)


def _tenant(request: HttpRequest, found: Tenant, access: Access) -> HttpResponse:
    jobs = selectors.in_tenant(Job.objects.all(), found.name).filter(state__in=list(OPEN))
    children = visible_tenants(request.user).filter(parent=found)
    names = visible_names(request.user)
    context = {
        "nav": "tenants",
        "tenant": found,
        "role": role_title(access, found.pk),
        "uses": [u.seen_by(names) for u in quota_uses() if u.tenant == found.name],
        "members": members_of(found),
        "children": children,
        "columns": [name for name in COLUMNS if children or name != "tenant"],
        "parent": visible_tenants(request.user).filter(children=found).first(),
        "jobs": jobs.select_related("tenant").prefetch_related("pod_sets")[:JOBS_SHOWN],
        "job_count": jobs.count(),
        "may_administer": access.may_administer(found.pk),
        "may_limit": access.may_administer_from_above(found.pk),
        "limited": limited(found, names),
        "inherited": inherited(found, names),
    }
    return render(request, live_or_whole(request, "scheduling/tenants/tenant.html"), context)


def inherited(tenant: Tenant, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return {field of `tenants.selectors.INHERITED`: the tenant's value, and which tenant sets
    it}, without fields that the cluster sets. `names`: the tenants that the reader may see."""
    found = {field: by_tenant[tenant.name] for field, by_tenant in given_to_all().items()}
    return {
        field: {
            "value": given.value,
            "by": given.by if given.by in names else "a tenant above it",
        }
        for field, given in found.items()
        if given is not None
    }


def limited(tenant: Tenant, names: Collection[str]) -> list[dict[str, Any]]:
    """Return the tenant and those of its ancestors that have limits, nearest first. `names`: the
    tenants that the reader may see."""
    above = list(lineage(parents_by_id(), tenant.pk))
    rows = sorted(Tenant.objects.filter(id__in=above), key=lambda t: above.index(t.pk))
    return [
        {"tenant": t, "name": t.name if t.name in names else "a tenant above it"}
        for t in rows
        if any(getattr(t, field) is not None for field in LIMITS)
    ]


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def limits(request: HttpRequest, name: str) -> HttpResponse:
    """The form of a tenant's limits, for admins of a tenant above it; for operators also of its
    minimum run time and its namespace."""
    found = _limited_or_404(request, name)
    form = _limits_form(request, found)
    status = 200
    if request.method == "POST":
        if form.is_valid() and limits_changed(request, found, form):
            return redirect("tenant", name)
        form.mark_errors()
        status = 422
    context = {"nav": "tenants", "tenant": found, "form": form}
    return render(request, "scheduling/tenants/tenant_limits.html", context, status=status)


@page_login_required
@require_POST
def limits_preview(request: HttpRequest, name: str) -> HttpResponse:
    """Preview what the form would do to jobs; nothing is changed."""
    found, actor = _limited_or_404(request, name), actor_of(request)
    form = _limits_form(request, found)
    if not form.is_valid():
        return refusal_of_form(request, form)
    if not (changes := form.changes()):
        return refusal(request, NOTHING_TO_PREVIEW)
    try:
        then = change_tenant(actor, found, changes, source=PAGE, dry_run=True)
    except DomainError as error:
        show(form, error)
        return refusal_of_form(request, form)
    if FELT_BY_JOBS.isdisjoint(changes):
        return refusal(request, "This applies only to new jobs, not to those that wait or run now.")
    context = {
        "title": "What this change would do",
        "effects": tenant_effects(actor, then, changes.keys()),
    }
    return render(request, "parts/effects.html", context)


def _limited_or_404(request: HttpRequest, name: str) -> Tenant:
    found = visible_tenants(request.user).filter(name=name).first()
    if found is None or not access_of(request.user).may_administer_from_above(found.pk):
        raise Http404("There is no such tenant, or you may not change its limits.")
    return found


def _limits_form(request: HttpRequest, found: Tenant) -> LimitsForm:
    return LimitsForm(found, request.POST or None, operator=access_of(request.user).operator)


def limits_changed(request: HttpRequest, found: Tenant, form: LimitsForm) -> bool:
    """Save the changed limits; return False with the form's errors if that fails."""
    changes = form.changes()
    if not changes:
        form.add_error(None, "Nothing was changed.")
        return False
    try:
        change_tenant(
            actor_of(request), found, changes, reason=form.cleaned_data["reason"], source=PAGE
        )
    except DomainError as error:
        show(form, error)
        return False
    what = "limits and the namespace" if "namespace" in changes else "limits"
    messages.success(request, f"The {what} of {found.name} are saved.", extra_tags="good")
    return True
