"""The table of jobs, and of the jobs of an array."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.db.models import Count, Min, Q, QuerySet, Sum
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from scheduling.engine.states import TERMINAL, WAITING
from scheduling.models import Job
from scheduling.pages.jobs.acts import ActQuestion, questions
from scheduling.pages.jobs.columns import COLUMNS, columns_in
from scheduling.pages.jobs.filters import (
    RARE,
    SINCE,
    SORTS,
    STATE_CHOICES,
    filtered_jobs,
    filters_in,
    order_of,
    unknown_in,
)
from scheduling.pages.jobs.saved_views import views_of
from scheduling.pages.polled import polled
from scheduling.queries import selectors
from scheduling.queries.queues.waiting_order import positions
from scheduling.queries.selectors import JobArray, visible_jobs
from tenants.database.keyset import BadCursor, cursor_of, rows_after_cursor
from tenants.errors import NotFound
from tenants.models import GpuType
from tenants.permissions import access_of
from tenants.selectors import visible_tenants
from tenants.web.pages import actor_of, page_login_required

JOBS_PER_PAGE = 50


@require_GET
@page_login_required
def jobs(request: HttpRequest) -> HttpResponse:
    # An array has buttons, whose forms contain a secret of the session.
    own = request.GET.get("user") == "me" or "array" in request.GET
    return polled(request, access_of(request.user), lambda: _jobs(request), alike=not own)


def _jobs(request: HttpRequest) -> HttpResponse:
    live = request.htmx  # type: ignore[attr-defined]
    filters, columns = filters_in(request), columns_in(request)
    unknown, seen = unknown_in(request, filters), visible_jobs(request.user)
    is_array = filters["array"] and "array" not in unknown
    array = shown_array(request, uuid.UUID(filters["array"])) if is_array else None
    cursor = request.GET.get("after", "")
    rows = seen.none() if unknown else filtered_jobs(seen, filters, actor_of(request).pk)
    if cursor and not unknown:
        rows = rows.filter(after_cursor(cursor, order_of(filters)))
    found = list(rows[: JOBS_PER_PAGE + 1])
    page = found[:JOBS_PER_PAGE]
    filtered = any(value for name, value in filters.items() if name != "sort")
    counted = not array and not unknown and (filtered or page)
    context = {
        "nav": "jobs",
        "jobs": page,
        "older": cursor_of(page[-1], order_of(filters)) if len(found) > JOBS_PER_PAGE else None,
        "first": not cursor,
        "what_is_gone": selectors.what_is_gone(),
        "filters": filters,
        "filtered": filtered,
        "columns": columns,
        "positions": positions(page) if "position" in columns else {},
        "array": array,
        "standing": standing_of(seen, filters, actor_of(request).pk) if counted else None,
        "unknown": unknown,
        "live": live,
    }
    if live:
        return render(request, "scheduling/jobs/_jobs_live.html", context)
    shown = {**request.GET.dict(), "columns": ",".join(columns)}
    reasons = selectors.reasons_of_waiting(seen)
    if "reason" not in unknown:
        reasons.add(filters["reason"])
    around = _around(request, filters, shown, reasons)
    return render(request, "scheduling/jobs/jobs.html", context | around)


def _around(
    request: HttpRequest, filters: dict[str, str], shown: dict[str, str], reasons: set[str]
) -> dict[str, object]:
    """Return what surrounds the live part; `shown`: the parameters that describe all it shows."""
    return {
        "states": STATE_CHOICES,
        "sorts": [(name, title) for name, (title, _) in SORTS.items()],
        "periods": [(name, title) for name, (title, _) in SINCE.items()],
        "reasons": sorted(reasons - {""}),
        "tenants": visible_tenants(request.user),
        "gpu_types": GpuType.objects.all(),
        "rare": [name for name in RARE if filters[name]],
        "all_columns": COLUMNS.items(),
        "live_address": "?" + urlencode(shown),
        "views": views_of(actor_of(request), request.GET.dict()),
    }


@dataclass(frozen=True, slots=True)
class JobsStanding:
    """How many jobs wait, with `held` of them on hold, how many start or run, and the milli-GPU of
    each group. `oldest`: submission time of the oldest waiting job; None = none waits."""

    waiting: int
    waiting_milli: int
    held: int
    oldest: datetime | None
    active: int
    active_milli: int


def standing_of(seen: QuerySet[Job], filters: dict[str, str], user_id: int) -> JobsStanding:
    """Count the jobs that the filters match, whatever their state."""
    rows = filtered_jobs(seen, {**filters, "state": "open", "sort": ""}, user_id).order_by()
    waits = Q(state__in=list(WAITING))
    found = rows.aggregate(
        waiting=Count("pk", filter=waits),
        waiting_milli=Sum("gpu_milli", filter=waits, default=0),
        held=Count("pk", filter=waits & Q(held=True)),
        oldest=Min("submitted_at", filter=waits),
        active=Count("pk", filter=~waits),
        active_milli=Sum("gpu_milli", filter=~waits, default=0),
    )
    return JobsStanding(**found)


@dataclass(frozen=True, slots=True)
class ShownArray:
    """An array, its number of open jobs, and what the reader may do to them."""

    row: JobArray
    open: int
    may_cancel: bool
    may_hold: bool
    may_release: bool

    @property
    def acts(self) -> list[ActQuestion]:
        return questions("array", self.row.id, self.row.name)


def shown_array(request: HttpRequest, array_id: uuid.UUID) -> ShownArray:
    user = actor_of(request)
    try:
        first = selectors.first_of_array(user, array_id)
        array = selectors.array_by_id(user, array_id)
    except NotFound as error:  # its last job was deleted a moment ago
        raise Http404(error.detail) from None
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


def after_cursor(cursor: str, order: tuple[str, ...]) -> Q:
    """Match jobs after the one that the cursor names; raise Http404 for a damaged cursor."""
    try:
        return rows_after_cursor(Job, order, cursor)
    except BadCursor:
        raise Http404("This page of jobs does not exist. Start again from the first.") from None
