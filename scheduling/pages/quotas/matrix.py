"""The page of quotas: tenants by GPU types, with pending edits of the reader and of others.
Submitting it applies the reader's draft."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_http_methods

from scheduling.models import NodeRecord
from scheduling.pages.quotas.edits import (
    TIMES,
    DraftSaving,
    check_lengths,
    mark,
    page_write,
    refused_elsewhere,
    show_unseen,
    tell_done,
    told_unseen,
)
from scheduling.pages.quotas.quota import NOTHING_EDITED
from scheduling.pages.quotas.shown import MINE, ShownPart, key_of, matrix, savebar
from scheduling.pages.quotas.standing import quota_standing
from scheduling.pages.tenants.tenants import in_tree_order
from scheduling.queries.selectors import visible_jobs
from tenants.models import DraftCell, GpuType, Quota
from tenants.permissions import Access, access_of
from tenants.selectors import parents_by_id, visible_quotas, visible_tenants
from tenants.services.drafts.cell_text import cell_text
from tenants.services.drafts.seen import SeenTenant, cells_of_others, tenants_of_others
from tenants.services.quota_sums import promised_below
from tenants.web.conditional import by_its_text
from tenants.web.csv_files import csv_answer
from tenants.web.pages import actor_of, page_login_required, to_list

EDITS_NAMED = 4  # per colleague


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def quotas(request: HttpRequest) -> HttpResponse:
    """Show the matrix; POST applies the reader's draft."""
    shown = matrix(request)
    if request.method != "POST":
        return render(request, "scheduling/quotas/quotas.html", sheet(request, shown))
    reason = request.POST.get("reason", "")
    attempt = DraftSaving.of(request, shown, reason, write=page_write(request))
    if attempt.is_nothing and not any(cell.errors for cell in shown.cells):
        messages.info(request, NOTHING_EDITED, extra_tags="info")
        return to_list(request.path, request.GET)
    found, unseen = attempt.found, attempt.unseen
    if attempt.saved:
        tell_done(request, found, attempt.order)
        return to_list(request.path, request.GET)
    shown = matrix(request, unseen.union(key_of(found.cells[at]) for at in found.errors))
    show_unseen(shown, unseen)
    check_lengths(shown)
    mark(shown, found, saved=attempt.tried)
    context = {
        "reason": reason,
        "reason_error": attempt.faults.get("reason", []),
        "time_errors": attempt.faults,
        "times": {name: request.POST.get(name, "") for name in TIMES},
        "not_kept": attempt.not_kept.detail if attempt.not_kept else "",
        "unseen": told_unseen(unseen) if unseen else "",
        "refused_elsewhere": refused_elsewhere(shown, found),
    }
    page = sheet(request, shown, **context)
    return render(request, "scheduling/quotas/quotas.html", page, status=422)


# --- beside the cells -----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Total:
    """The footer of a GPU type: guaranteed to roots, installed, and what is left."""

    gpu_type: GpuType
    promised: int
    installed: int

    @property
    def left(self) -> int:
        return self.installed - self.promised

    @property
    def over(self) -> int:
        return -self.left


def totals(types: list[GpuType]) -> list[Total]:
    parents = parents_by_id()
    by_type: dict[int, dict[int, int]] = {}
    quotas = Quota.objects.filter(gpu_type__in=types)
    for tenant, gpu_type, milli in quotas.order_by().values_list(
        "tenant_id", "gpu_type_id", "guaranteed_milli"
    ):
        by_type.setdefault(gpu_type, {})[tenant] = milli
    installed = dict(
        NodeRecord.objects.filter(cluster__is_active=True)
        .order_by()
        .values_list("gpu_model")
        .annotate(Sum("gpus"))
    )
    return [
        Total(
            t, promised_below(parents, None, by_type.get(t.pk, {})), 1000 * installed.get(t.name, 0)
        )
        for t in types
    ]


def sheet(request: HttpRequest, shown: ShownPart, **more: Any) -> dict[str, Any]:
    access = shown.access
    drafts = [cell.draft for cell in shown.drafted.values()]
    drafts += [one.seen.edit.draft for one in shown.placed]
    reason = drafts[0].reason if drafts else ""
    return {
        "nav": "quotas",
        "reason": reason,
        "came_back": request.method != "POST" and any(c.edited for c in shown.cells),
        "placed": shown.placed,
        "shown": shown,
        "rows": shown.rows,
        "unknown": shown.unknown,
        "filters": shown.filters,
        "only_mine": shown.filters["edited"] == MINE,
        "totals": totals(shown.types),
        "standing": None
        if shown.unknown
        else quota_standing(
            visible_jobs(request.user), shown.wanted, shown.uses, shown.filters["gpu"]
        ),
        "of_part": of_part(shown.filters),
        **savebar(request, shown),
        "editors": editors(request, access),
        "sees_changes": access.operator or any(access.may_administer(t) for t in access.parents),
        **more,
    }


def of_part(filters: Mapping[str, str]) -> str:
    """Return this part of the matrix as the query string of pages with the same two filters."""
    said = {name: filters[name] for name in ("tenant", "gpu") if filters[name]}
    return f"?{urlencode(said)}" if said else ""


@dataclass(frozen=True, slots=True)
class Editor:
    """Somebody else whose draft has edits of what the reader may change too; the newest edit is
    from `at`."""

    name: str
    at: datetime
    cells: list[DraftCell]
    tenants: list[SeenTenant]

    @property
    def first(self) -> list[DraftCell]:
        return self.cells[:EDITS_NAMED]

    @property
    def more(self) -> int:
        return len(self.cells) - len(self.first)

    @property
    def keys(self) -> str:
        """The cells' keys with their typed texts, for the page's script."""
        return json.dumps({key_of(cell): cell.typed for cell in self.cells})


def editors(request: HttpRequest, access: Access) -> list[Editor]:
    viewer = actor_of(request)
    cells: dict[str, list[DraftCell]] = {}
    for cell in cells_of_others(viewer, access):
        cells.setdefault(cell.draft.author.get_username(), []).append(cell)
    tenants: dict[str, list[SeenTenant]] = {}
    for author, seen in tenants_of_others(viewer, access):
        tenants.setdefault(author.get_username(), []).append(seen)
    return [
        Editor(
            name,
            max(
                [c.edited_at for c in cells.get(name, ())]
                + [t.edit.edited_at for t in tenants.get(name, ())]
            ),
            cells.get(name, []),
            tenants.get(name, []),
        )
        for name in sorted(cells.keys() | tenants.keys())
    ]


@require_GET
def who_edits(request: HttpRequest) -> HttpResponse:
    """List the others who are about to change quotas, for an open page. After the sign-in has
    expired that page stays, because somebody is typing into it."""
    if request.headers.get("HX-Request") and not request.user.is_authenticated:
        return HttpResponse(status=401)
    return told_editors(request)


@page_login_required
def told_editors(request: HttpRequest) -> HttpResponse:
    context = {"editors": editors(request, access_of(request.user))}
    answer = render(request, "scheduling/quotas/_quota_editors.html", context)
    return by_its_text(request, answer)


@page_login_required
@require_GET
def as_csv(request: HttpRequest) -> HttpResponse:
    """Return quotas as CSV, one row per tenant and one column per GPU type; the matrix accepts it
    back."""
    types = list(GpuType.objects.all())
    quotas = visible_quotas(request.user).order_by()
    stored = {(q.tenant_id, q.gpu_type_id): q for q in quotas}
    rows = (
        [tenant.name, *(cell_text(stored.get((tenant.pk, t.pk))) for t in types)]
        for tenant, _ in in_tree_order(list(visible_tenants(request.user)))
    )
    return csv_answer("quotas.csv", ["tenant", *(t.name for t in types)], rows)
