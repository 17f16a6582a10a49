"""The home page of engineers and tenant admins: my jobs, my quota, what can start now."""

from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET

from scheduling.engine.states import HOLDING, TERMINAL, WAITING
from scheduling.engine.types import whole_milli
from scheduling.models import Job, Placement
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries.marks import marks
from scheduling.queries.quota_use import quota_book, quota_uses
from scheduling.queries.selectors import jobs_seen_with
from scheduling.queries.startable import startable, told_before
from tenants.facts import QuotaUse
from tenants.models import Tenant
from tenants.permissions import Access, access_of
from tenants.selectors import visible_tenants
from tenants.web.conditional import by_its_text, conditional
from tenants.web.pages import actor_of, live_or_whole, page_login_required

JOBS_SHOWN = 12


def held_by(jobs: QuerySet[Job]) -> int:
    """Return the milli-GPU that pods of these jobs hold now; a job may hold less than it asks
    for."""
    # From the few live pods to their jobs: the other way would read all jobs there ever were.
    of_these = Exists(jobs.order_by().filter(pk=OuterRef("job_id")))
    pods = Placement.objects.filter(of_these, state__in=LIVE_PLACEMENTS)
    return whole_milli(pods.aggregate(milli=Sum(HELD))["milli"] or 0)


def submittable(access: Access, tenants: list[Tenant]) -> list[Tenant]:
    return [t for t in tenants if access.may_submit(t.pk)]


@require_GET
@page_login_required
def overview(request: HttpRequest) -> HttpResponse:
    user = actor_of(request)
    if user.is_operator:
        return redirect("operations")
    # All tenants: rights and quota computations follow the whole tree.
    tree = list(Tenant.objects.all())
    access = access_of(user, {t.pk: t.parent_id for t in tree})
    tenants = [t for t in tree if access.may_view(t.pk)]
    mine = [t.name for t in submittable(access, tenants)]
    told = told_before(user, mine) if mine else None

    def answer() -> HttpResponse:
        own = _own(access, tree)
        if told is not None:
            own["gpu_types"] = ()
        context = {"nav": "overview", "tenants": tenants, "mine": mine, "told": told, **own}
        return render(request, live_or_whole(request, "metrics/overview/overview.html"), context)

    return conditional(request, access, (marks(), told), answer)


def _own(access: Access, tree: list[Tenant]) -> dict[str, Any]:
    """Return the jobs and quotas visible with these rights in a tree of tenants."""
    visible = access.visible_tenants() or frozenset()
    administers = any(access.may_administer(t) for t in visible)
    jobs = jobs_seen_with(access)
    if not administers:
        jobs = jobs.filter(user=access.user_id)
    names = {t.pk: t.name for t in tree}
    parents = {t.name: None if t.parent_id is None else names[t.parent_id] for t in tree}
    found = quota_uses(quota_book(parents=parents))
    seen = {names[t] for t in visible}
    uses: dict[str, list[QuotaUse]] = {}
    for use in found:
        if use.tenant in seen and (use.guaranteed or use.used):
            uses.setdefault(use.tenant, []).append(use)
    states = {"waiting": WAITING, "active": HOLDING, "ended": TERMINAL}
    counts = {name: Count("id", filter=Q(state__in=list(of))) for name, of in states.items()}
    return {
        "administers": administers,
        "jobs": jobs.order_by("-submitted_at", "-id")[:JOBS_SHOWN],
        **jobs.order_by().aggregate(**counts),
        "held_milli": held_by(jobs),
        "uses": sorted(uses.items()),
        # Shown until it is known what could start.
        "gpu_types": sorted({use.gpu_model for use in found}),
    }


@require_GET
@page_login_required
def can_start(request: HttpRequest) -> HttpResponse:
    """Show what a new job could start with. The overview loads this part separately, because it
    runs the engine."""
    user = actor_of(request)
    tenants = list(visible_tenants(user))
    mine = [t.name for t in submittable(access_of(user), tenants)]
    told = startable(user, mine) if mine else None
    shown = {"told": told, "mine": mine}
    return by_its_text(request, render(request, "metrics/overview/_can_start.html", shown))
