"""The filters and the order in the address of the table of jobs."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from scheduling.engine.states import HOLDING, TERMINAL, WAITING, JobState
from scheduling.models import Job
from scheduling.pages.jobs.columns import unknown_columns
from scheduling.queries import selectors
from scheduling.queries.names import gpu_type_names, queue_names, reason_names, submitter_names
from scheduling.queries.selectors import visible_jobs
from scheduling.queries.wording import STATE_WORDS
from tenants.names import Names, tenant_names
from tenants.services.typed_gpus import typed_milli
from tenants.web.pages import UnknownFilter, unknown_names

FILTERS = (
    "q", "state", "tenant", "queue", "gpu", "user", "reason", "array",
    "min_gpus", "max_gpus", "since", "sort",
)  # fmt: skip
# The table shows little of these, so they are behind a button unless one is set.
RARE = ("user", "queue", "reason", "min_gpus", "max_gpus", "since")
STATE_GROUPS = {
    "open": WAITING | HOLDING,
    "waiting": WAITING,
    "held": WAITING,
    "active": HOLDING,
    "ended": TERMINAL,
}
# Next to the group of all waiting jobs, the state's plain name would be ambiguous.
STATE_TITLES = {**STATE_WORDS, JobState.PENDING: "Waiting, no quota held"}
STATE_CHOICES = [
    ("open", "Open"),
    ("waiting", "Waiting"),
    ("held", "On hold"),
    ("active", "Starting or running"),
    ("ended", "Ended"),
    *((state.value, STATE_TITLES[state]) for state in JobState),
]
SINCE = {
    "1h": ("the last hour", timedelta(hours=1)),
    "24h": ("the last 24 hours", timedelta(days=1)),
    "7d": ("the last 7 days", timedelta(days=7)),
    "30d": ("the last 30 days", timedelta(days=30)),
}
NEWEST = ("-submitted_at", "-id")
SORTS = {
    "": ("Newest first", NEWEST),
    "oldest": ("Oldest first", ("submitted_at", "id")),
    "gpus": ("Most GPUs first", ("-gpu_milli", *NEWEST)),
    "priority": ("Highest priority first", ("-priority", "submitted_at", "id")),
}
# No index has these orders: they are for open jobs, which are few.
OF_OPEN_JOBS = ("gpus", "priority")


def filters_in(request: HttpRequest) -> dict[str, str]:
    """Return each filter in the address ("" = none); an order for open jobs selects only those."""
    filters = {name: request.GET.get(name, "").strip() for name in FILTERS}
    if filters["sort"] in OF_OPEN_JOBS and not filters["state"]:
        filters["state"] = "open"
    return filters


def unknown_in(request: HttpRequest, filters: dict[str, str]) -> dict[str, UnknownFilter]:
    """Return the parameters that the table does not have, or whose value is unknown, by name."""
    told = _unknown_values(request.user, filters)
    unknown = {name: UnknownFilter(name, filters[name], text) for name, text in told.items()}
    return unknown_names(request, FILTERS, "after", "columns") | unknown | unknown_columns(request)


def _unknown_values(user: Any, filters: dict[str, str]) -> dict[str, str]:
    known: dict[str, Callable[[], Names]] = {
        "state": lambda: Names("job state", fixed=tuple(dict(STATE_CHOICES))),
        "tenant": lambda: tenant_names(user),
        "gpu": gpu_type_names,
        "user": lambda: submitter_names(user, visible_jobs(user)),
        "queue": lambda: queue_names(user, visible_jobs(user)),
        "reason": lambda: reason_names(visible_jobs(user)),
        "since": lambda: Names("period", fixed=tuple(SINCE)),
        "sort": lambda: Names("order", fixed=tuple(SORTS)),
    }
    told = {}
    for name, names_of in known.items():
        # Only now, because the known names cost a query.
        if filters[name] and filters[name] not in (names := names_of()):
            told[name] = names.none_such(filters[name])
    if filters["array"] and not _is_array(user, filters["array"]):
        told["array"] = f"There is no array “{filters['array'][:64]}” that you may see"
    for name in ("min_gpus", "max_gpus"):
        try:
            if filters[name]:
                typed_milli(filters[name])
        except ValueError as error:
            told[name] = f"“{filters[name]}” is not a number of GPUs: {str(error).rstrip('.')}"
    over = not STATE_GROUPS.get(filters["state"], {filters["state"]}) <= STATE_GROUPS["open"]
    if filters["sort"] in OF_OPEN_JOBS and over and "state" not in told:
        told["sort"] = "Jobs that are over can only be sorted by time: newest or oldest first"
    return told


def _is_array(user: Any, array_id: str) -> bool:
    try:
        return visible_jobs(user).filter(array_id=UUID(array_id)).exists()
    except ValueError:
        return False


def filtered_jobs(rows: QuerySet[Job], filters: dict[str, str], user_id: int) -> QuerySet[Job]:
    """Apply the page's filters, all of which must be known."""
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
    if filters["user"] == "me":
        rows = rows.filter(user=user_id)
    elif filters["user"]:
        rows = rows.filter(user__username=filters["user"])
    if filters["gpu"]:
        rows = selectors.accepting(rows, filters["gpu"])
    if filters["min_gpus"]:
        rows = rows.filter(gpu_milli__gte=typed_milli(filters["min_gpus"]))
    if filters["max_gpus"]:
        rows = rows.filter(gpu_milli__lte=typed_milli(filters["max_gpus"]))
    if filters["since"]:
        rows = rows.filter(submitted_at__gt=timezone.now() - SINCE[filters["since"]][1])
    return rows.order_by(*order_of(filters))


def order_of(filters: dict[str, str]) -> tuple[str, ...]:
    return SORTS[filters["sort"]][1]
