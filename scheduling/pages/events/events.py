"""Events of jobs and changes made by people, as one list with filters."""

from datetime import datetime, timedelta
from uuid import UUID

from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from scheduling.engine.states import JobEventKind
from scheduling.models import Cluster
from scheduling.pages.polled import polled
from scheduling.queries.events.stream import (
    CHANGES,
    MOST_COUNTED,
    SUBJECTS,
    EventsWanted,
    StreamEvent,
    counts,
    event_kinds,
    stream,
)
from scheduling.queries.evidence import names_in
from scheduling.queries.names import cluster_names, node_names
from scheduling.queries.selectors import visible_jobs, what_is_gone
from tenants.api.filters import MomentField
from tenants.database.keyset import BadCursor
from tenants.names import Names, tenant_names
from tenants.permissions import access_of
from tenants.selectors import subtree_ids, visible_tenants
from tenants.templatetags.ui import words
from tenants.web.pages import (
    UnknownFilter,
    actor_of,
    live_or_whole,
    page_login_required,
    unknown_names,
)

EVENTS_PER_PAGE = 50
FILTERS = ("kind", "tenant", "cluster", "node", "job", "period", "until")
PERIODS = {
    "1h": ("an hour", timedelta(hours=1)),
    "24h": ("a day", timedelta(days=1)),
    "7d": ("7 days", timedelta(days=7)),
    "30d": ("30 days", timedelta(days=30)),
}
USUAL_PERIOD = "24h"
THEME_TITLES = {
    "starts": "Starts",
    "ends": "Ends",
    "losses": "Preempted, moved, sent back",
    "jobs": "Everything about jobs",
    CHANGES: "What people changed",
}
# The page starts with these counts; the first are those somebody may have to act on.
COUNTED = ("losses", "starts", "ends", CHANGES)
KIND_CHOICES = [
    ("Several", list(THEME_TITLES.items())),
    ("One kind of job event", [(kind.value, words(kind)) for kind in JobEventKind]),
    ("Changes of", [(name, words(name.replace("-", "_"))) for name in SUBJECTS]),
]


@require_GET
@page_login_required
def events(request: HttpRequest) -> HttpResponse:
    return polled(request, access_of(request.user), lambda: _events(request), alike=True)


def _events(request: HttpRequest) -> HttpResponse:
    filters = {name: request.GET.get(name, "").strip() for name in FILTERS}
    period = filters["period"] or USUAL_PERIOD
    unknown = unknown_names(request, FILTERS, "after")
    until = _until(filters["until"], unknown) or timezone.now()
    if period not in PERIODS:
        unknown["period"] = _none_such("period", period, Names("period", fixed=tuple(PERIODS)))
    since = until - PERIODS.get(period, PERIODS[USUAL_PERIOD])[1]
    wanted = _wanted(request, filters, since, until, unknown)
    cursor = request.GET.get("after") or None
    rows: list[StreamEvent] = []
    older = None
    if not unknown:
        try:
            rows, older = stream(actor_of(request), wanted, EVENTS_PER_PAGE, cursor)
        except BadCursor:
            raise Http404(
                "This page of events does not exist. Start again from the first."
            ) from None
    found = [] if unknown else zip(COUNTED, counts(actor_of(request), wanted, COUNTED), strict=True)
    context = {
        "nav": "events",
        "counts": [
            (kind, THEME_TITLES[kind], min(number, MOST_COUNTED), number > MOST_COUNTED)
            for kind, number in found
        ],
        "rows": [(row, _address(row)) for row in rows],
        "names": names_in(request.user, [row.message for row in rows if row.event]),
        "older": older,
        "first": cursor is None,
        "filters": filters,
        "period": period,
        "period_title": PERIODS.get(period, ("", None))[0],
        "periods": [(key, title) for key, (title, _) in PERIODS.items()],
        "kinds": KIND_CHOICES,
        # A kind outside the choices, e.g. a single action.
        "other_kind": filters["kind"]
        if filters["kind"] not in {value for _, group in KIND_CHOICES for value, _ in group}
        else "",
        "filtered": any(filters.values()),
        "tenants": visible_tenants(request.user),
        "clusters": list(Cluster.objects.all()),
        "what_is_gone": what_is_gone(),
        "unknown": unknown,
    }
    return render(request, live_or_whole(request, "scheduling/events/events.html"), context)


def _none_such(name: str, value: str, names: Names) -> UnknownFilter:
    return UnknownFilter(name, value, names.none_such(value))


def _until(text: str, unknown: dict[str, UnknownFilter]) -> datetime | None:
    try:
        moment: datetime | None = MomentField(required=False).clean(text)
    except ValidationError as error:
        said = f"“{text[:64]}” is not a time: {error.messages[0].rstrip('.')}"
        unknown["until"] = UnknownFilter("until", text, said)
        return None
    return moment


def _wanted(
    request: HttpRequest,
    filters: dict[str, str],
    since: datetime,
    until: datetime,
    unknown: dict[str, UnknownFilter],
) -> EventsWanted:
    """Return what the filters ask for; filters that name nothing known go to `unknown`."""
    tenants = cluster = job = None
    known = {
        "kind": event_kinds,
        "tenant": lambda: tenant_names(actor_of(request)),
        "cluster": cluster_names,
        "node": lambda: node_names(since),
    }
    for name, names_of in known.items():
        value = filters[name]
        if not value:
            continue
        names = names_of()
        if value not in names:
            unknown[name] = _none_such(name, value, names)
        elif name == "tenant":
            tenants = frozenset(subtree_ids(names.row(value).pk))
        elif name == "cluster":
            cluster = names.row(value)
    if filters["job"]:
        said = f"“{filters['job'][:64]}” is not the id of a job"
        try:
            job = UUID(filters["job"])
            known_job = visible_jobs(request.user).filter(pk=job).exists()
            said = "" if known_job else f"There is no job {job} that you may see"
        except ValueError:
            pass
        if said:
            unknown["job"] = UnknownFilter("job", filters["job"], said)
    return EventsWanted(since, until, filters["kind"], tenants, cluster, filters["node"], job)


def _address(row: StreamEvent) -> str:
    """Return the page of what the event is about; "" if there is none."""
    if row.job is not None:
        return reverse("job", args=[row.job.pk])
    what, _, act = row.kind.partition(".")
    parts = row.subject.split(" / ")
    if act == "deleted":
        return ""
    if what == "node" and len(parts) == 2:
        return reverse("node", args=parts)
    if what == "quota" and len(parts) == 2:
        return reverse("quota", args=parts)
    if what == "queue" and row.subject.count("/") == 1:
        return reverse("queue", args=row.subject.split("/"))
    if what == "member" and row.tenant:
        return reverse("tenant-members", args=[row.tenant])
    if what == "policy":
        return reverse("policy-changes", args=[row.subject])
    if what == "tenant" and row.tenant:
        return reverse("tenant", args=[row.tenant])
    return ""
