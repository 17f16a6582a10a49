"""The first page of engineers and tenant admins: my jobs, my quota, what can start now."""

from django.db.models import Exists, OuterRef, QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET

from scheduling.engine.states import HOLDING, TERMINAL, WAITING
from scheduling.engine.types import whole_milli
from scheduling.models import Job, Placement
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries.quota_use import quota_uses
from scheduling.queries.selectors import visible_jobs
from scheduling.queries.startable import startable, told_before
from tenants.facts import QuotaUse
from tenants.models import GpuType, Tenant
from tenants.permissions import Access, access_of
from tenants.selectors import visible_tenants
from tenants.web import actor_of, live_or_whole, page_login_required

JOBS_SHOWN = 12


def held_by(jobs: QuerySet[Job]) -> int:
    """Milli-GPU that pods of these jobs hold now; a job may hold less than it asks for."""
    # From the few live pods to their jobs: the other way leads through all jobs there ever were.
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
    access = access_of(user)
    tenants = list(visible_tenants(user))
    administers = any(access.may_administer(t.pk) for t in tenants)
    jobs = visible_jobs(user) if administers else visible_jobs(user).filter(user=user)
    names = {t.name for t in tenants}
    uses: dict[str, list[QuotaUse]] = {}
    for use in quota_uses():
        if use.tenant in names and (use.guaranteed or use.used):
            uses.setdefault(use.tenant, []).append(use)
    mine = [t.name for t in submittable(access, tenants)]
    told = told_before(user, mine) if mine else None
    context = {
        "nav": "overview",
        "administers": administers,
        "tenants": tenants,
        "jobs": jobs.order_by("-submitted_at", "-id")[:JOBS_SHOWN],
        "waiting": jobs.filter(state__in=list(WAITING)).count(),
        "active": jobs.filter(state__in=list(HOLDING)).count(),
        "ended": jobs.filter(state__in=list(TERMINAL)).count(),
        "held_milli": held_by(jobs),
        "uses": sorted(uses.items()),
        "mine": mine,
        "told": told,
        # Until the first answer is there.
        "gpu_types": GpuType.objects.values_list("name", flat=True) if told is None else (),
    }
    return render(request, live_or_whole(request, "metrics/overview/overview.html"), context)


@require_GET
@page_login_required
def can_start(request: HttpRequest) -> HttpResponse:
    """What a new job could start with: a part of the overview that comes after it, for the engine
    is asked."""
    user = actor_of(request)
    tenants = list(visible_tenants(user))
    mine = [t.name for t in submittable(access_of(user), tenants)]
    told = startable(user, mine) if mine else None
    return render(request, "metrics/overview/_can_start.html", {"told": told, "mine": mine})
