"""Saved views of the table of jobs: filters, order and columns under a name."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.views.decorators.http import require_POST

from scheduling.models import JobTable
from scheduling.pages.jobs.columns import back_to_table
from scheduling.services.jobs.tables import keep_view, remove_view
from tenants.errors import DomainError
from tenants.models import User
from tenants.web.pages import actor_of, page_login_required, sent_back


@dataclass(frozen=True, slots=True)
class ShownView:
    """`query`: the query string. `current`: the page shows this view."""

    name: str
    query: str
    current: bool


def views_of(user: User, address: Mapping[str, str]) -> list[ShownView]:
    """Return the user's views by name; `address`: the parameters of the page."""
    kept = JobTable.objects.filter(user=user).values_list("views", flat=True).first()
    shown = {name: value for name, value in address.items() if name != "after"}
    return [
        ShownView(view["name"], view["query"], QueryDict(view["query"]).dict() == shown)
        for view in kept or ()
    ]


@require_POST
@page_login_required
def save_view(request: HttpRequest) -> HttpResponse:
    """Save what the page shows, with its columns."""
    address = sent_back(request).dict()
    address.pop("after", None)
    address["columns"] = request.POST.get("columns", "")
    name = request.POST.get("name", "")
    try:
        keep_view(actor_of(request), name, urlencode(sorted(address.items())))
    except DomainError as error:
        messages.error(request, error.detail, extra_tags="bad")
    else:
        messages.success(request, f"View “{name.strip()}” is saved.", extra_tags="good")
    return back_to_table(request)


@require_POST
@page_login_required
def forget_view(request: HttpRequest) -> HttpResponse:
    name = request.POST.get("name", "")
    try:
        remove_view(actor_of(request), name)
    except DomainError as error:
        messages.error(request, error.detail, extra_tags="bad")
    return back_to_table(request)
