"""The columns of the table of jobs: those there are, and those that its reader chose."""

from collections.abc import Iterable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST

from scheduling.models import JobTable
from scheduling.services.jobs.tables import keep_columns
from tenants.names import Names
from tenants.web.pages import UnknownFilter, actor_of, page_login_required, sent_back, to_list

# In their order. Name and state of a job are always there.
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
    """Those that the address names, else the reader's own choice."""
    if "columns" in request.GET:
        return known(request.GET["columns"].split(","))
    chosen = JobTable.objects.filter(user=actor_of(request)).values_list("columns", flat=True)
    return known(chosen.first() or USUAL)


def known(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that are columns, in their order."""
    asked = set(names)
    return tuple(name for name in COLUMNS if name in asked)


def unknown_columns(request: HttpRequest) -> dict[str, UnknownFilter]:
    names = [name for name in request.GET.get("columns", "").split(",") if name]
    told = [Names("column", fixed=tuple(COLUMNS)).none_such(n) for n in names if n not in COLUMNS]
    return {"columns": UnknownFilter("columns", ",".join(names), told[0])} if told else {}


@require_POST
@page_login_required
def choose_columns(request: HttpRequest) -> HttpResponse:
    """Keep the reader's choice, or take it back."""
    chosen = known(request.POST.getlist("column"))
    if "usual" in request.POST:
        keep_columns(actor_of(request), ())
    elif chosen:
        keep_columns(actor_of(request), chosen)
    else:  # none kept = the usual ones, which nobody has asked for
        text = "Choose at least one column beside name and state. The columns stay as they were."
        messages.error(request, text, extra_tags="bad")
    return back_to_table(request, without="columns")


def back_to_table(request: HttpRequest, *, without: str = "") -> HttpResponse:
    """Where the button was pressed, by what stood behind `?` there."""
    address = sent_back(request)
    address.pop(without, None)
    return to_list(reverse("jobs"), address)
