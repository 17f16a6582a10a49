"""The table of jobs, and of the jobs of an array."""

import uuid
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from scheduling.engine.states import HOLDING, TERMINAL, WAITING, JobState
from scheduling.models import Job
from scheduling.pages.polled import polled
from scheduling.queries import selectors
from scheduling.queries.names import gpu_type_names
from scheduling.queries.selectors import JobArray, visible_jobs
from scheduling.queries.wording import STATE_WORDS
from tenants.errors import NotFound
from tenants.keyset import BadCursor, cursor_of, rows_after_cursor
from tenants.models import GpuType
from tenants.names import Names, tenant_names
from tenants.permissions import access_of
from tenants.selectors import visible_tenants
from tenants.web.pages import UnknownFilter, actor_of, page_login_required, unknown_names

JOBS_PER_PAGE, PAGE_ORDER = 50, ("-submitted_at", "-id")
STATE_GROUPS = {
    "open": WAITING | HOLDING,
    "waiting": WAITING,
    "held": WAITING,
    "active": HOLDING,
    "ended": TERMINAL,
}
# Beside the group of all that wait, the plain name of a state would stand for two things.
STATE_TITLES = {**STATE_WORDS, JobState.PENDING: "Waiting, no quota held"}
STATE_CHOICES = [
    ("open", "Open"),
    ("waiting", "Waiting"),
    ("held", "On hold"),
    ("active", "Starting or running"),
    ("ended", "Ended"),
    *((state.value, STATE_TITLES[state]) for state in JobState),
]


@require_GET
@page_login_required
def jobs(request: HttpRequest) -> HttpResponse:
    # An array has buttons, whose forms carry a secret of the session.
    own = request.GET.keys() & {"user", "array"}
    return polled(request, access_of(request.user), lambda: _jobs(request), alike=not own)


def _jobs(request: HttpRequest) -> HttpResponse:
    filters = {name: request.GET.get(name, "").strip() for name in JOB_FILTERS}
    array = array_or_404(request, filters["array"]) if filters["array"] else None
    tenants, gpu_types = visible_tenants(request.user), GpuType.objects.all()
    unknown = unknown_names(request, JOB_FILTERS, "after")
    unknown |= unknown_filters(request.user, filters)
    rows = visible_jobs(request.user)
    rows = rows.none() if unknown else filtered_jobs(rows, filters, actor_of(request).pk)
    cursor = request.GET.get("after", "")
    if cursor:
        rows = rows.filter(after_cursor(cursor))
    found = list(rows.order_by(*PAGE_ORDER)[: JOBS_PER_PAGE + 1])
    page = found[:JOBS_PER_PAGE]
    context = {
        "nav": "jobs",
        "jobs": page,
        "older": cursor_of(page[-1], PAGE_ORDER) if len(found) > JOBS_PER_PAGE else None,
        "newest": not cursor,
        "what_is_gone": selectors.what_is_gone(),
        "filters": filters,
        "filtered": any(filters.values()),
        "array": array,
        "states": STATE_CHOICES,
        "tenants": tenants,
        "gpu_types": gpu_types,
        "unknown": unknown,
        "live": request.htmx,  # type: ignore[attr-defined]
    }
    template = "scheduling/jobs/_jobs_live.html" if context["live"] else "scheduling/jobs/jobs.html"
    return render(request, template, context)


JOB_FILTERS = ("q", "state", "tenant", "queue", "gpu", "user", "reason", "array")


@dataclass(frozen=True, slots=True)
class ShownArray:
    """An array, how many jobs of it are not over, and what the reader may do to them."""

    row: JobArray
    open: int
    may_cancel: bool
    may_hold: bool
    may_release: bool


def array_or_404(request: HttpRequest, array_id: str) -> ShownArray:
    user = actor_of(request)
    try:
        first = selectors.first_of_array(user, uuid.UUID(array_id))
        array = selectors.array_by_id(user, uuid.UUID(array_id))
    except (ValueError, NotFound):
        raise Http404("There is no such array, or it is of a tenant you cannot see.") from None
    unfinished = sum(count for state, count in array.states.items() if state not in TERMINAL)
    allowed = access_of(user).may_cancel(first.tenant_id, first.user_id)
    waiting = Job.objects.filter(array_id=first.array_id, state__in=list(WAITING)).order_by()
    held = set(waiting.values_list("held", flat=True).distinct()) if allowed else set()
    return ShownArray(
        row=array,
        open=unfinished,
        may_cancel=allowed and unfinished > 0,
        may_hold=False in held,
        may_release=True in held,
    )


def unknown_filters(user: Any, filters: dict[str, str]) -> dict[str, UnknownFilter]:
    """The filters that name nothing there is, by name of the parameter."""
    known = {
        "state": Names("job state", fixed=tuple(dict(STATE_CHOICES))),
        "tenant": tenant_names(user),
        "gpu": gpu_type_names(),
    }
    told = {
        name: names.none_such(filters[name])
        for name, names in known.items()
        if filters[name] and filters[name] not in names
    }
    if filters["user"] not in ("", "me"):
        told["user"] = f"Jobs are shown of anybody or of you alone, not of “{filters['user']}”"
    return {name: UnknownFilter(name, filters[name], text) for name, text in told.items()}


def filtered_jobs(rows: QuerySet[Job], filters: dict[str, str], user_id: int) -> QuerySet[Job]:
    """Apply the filters of the page, none of which is unknown."""
    if filters["q"]:
        rows = selectors.matching(rows, filters["q"])
    if filters["state"]:
        group = STATE_GROUPS.get(filters["state"], {filters["state"]})
        rows = rows.filter(state__in=list(group))
        if filters["state"] == "held":
            rows = rows.filter(held=True)
    if filters["array"]:
        rows = rows.filter(array_id=filters["array"])
    if filters["tenant"]:
        rows = selectors.in_tenant(rows, filters["tenant"])
    if filters["queue"]:
        rows = rows.filter(queue=filters["queue"])
    if filters["reason"]:
        rows = rows.filter(reason=filters["reason"])
    if filters["user"]:
        rows = rows.filter(user=user_id)
    if filters["gpu"]:
        rows = selectors.accepting(rows, filters["gpu"])
    return rows


def after_cursor(cursor: str) -> Q:
    """Jobs older than the one the cursor names; raises Http404 for a damaged one."""
    try:
        return rows_after_cursor(Job, PAGE_ORDER, cursor)
    except BadCursor:
        raise Http404("This page of jobs does not exist. Start again from the newest.") from None
