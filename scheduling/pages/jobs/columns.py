"""The columns of the table of jobs: all that exist, and those that the reader has chosen."""

from collections.abc import Iterable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST

from scheduling.models import JobTable
from scheduling.services.jobs.tables import keep_columns
from tenants.names import Names
from tenants.web.pages import UnknownFilter, actor_of, page_login_required, sent_back, to_list

# In display order. A job's name and state are always shown.
COLUMNS = {
    "position": "Position",
    "priority": "Priority",
    "gpus": "GPUs",
    "model": "GPU type",
    "tenant": "Tenant",
    "queue": "Queue",
    "cluster": "Cluster",
    "kind": "Kind",
    "waited": "Waited",
    "starts": "Starts",
    "ran": "Ran",
    "submitted": "Submitted",
    "by": "By",
}
USUAL = ("gpus", "model", "tenant", "waited", "starts", "ran", "submitted", "by")


def columns_in(request: HttpRequest) -> tuple[str, ...]:
    """Return the columns in the address, else the reader's choice."""
    if "columns" in request.GET:
        return known(request.GET["columns"].split(","))
    chosen = JobTable.objects.filter(user=actor_of(request)).values_list("columns", flat=True)
    return known(chosen.first() or USUAL)


def known(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are columns, in display order."""
    asked = set(names)
    return tuple(name for name in COLUMNS if name in asked)


def unknown_columns(request: HttpRequest) -> dict[str, UnknownFilter]:
    names = [name for name in request.GET.get("columns", "").split(",") if name]
    told = [Names("column", fixed=tuple(COLUMNS)).none_such(n) for n in names if n not in COLUMNS]
    return {"columns": UnknownFilter("columns", ",".join(names), told[0])} if told else {}


@require_POST
@page_login_required
def choose_columns(request: HttpRequest) -> HttpResponse:
    """Store the reader's choice, or reset it."""
    chosen = known(request.POST.getlist("column"))
    if "usual" in request.POST:
        keep_columns(actor_of(request), ())
    elif chosen:
        keep_columns(actor_of(request), chosen)
    else:  # storing none would mean the defaults, which nobody asked for
        text = "Choose at least one column besides name and state. The columns were not changed."
        messages.error(request, text, extra_tags="bad")
    return back_to_table(request, without="columns")


def back_to_table(request: HttpRequest, *, without: str = "") -> HttpResponse:
    """Return to the page with the button, with its query string."""
    address = sent_back(request)
    address.pop(without, None)
    return to_list(reverse("jobs"), address)
