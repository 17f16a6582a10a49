"""Editing the matrix: what is typed is kept in a draft, rehearsed and previewed."""

from datetime import UTC, datetime

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from scheduling.pages.quotas.orders import utc
from scheduling.pages.quotas.quota import REHEARSAL, refusal
from scheduling.pages.quotas.shown import MatrixCell, ShownPart, key_of, matrix, savebar
from tenants.errors import Conflict, DomainError, Invalid, NotAllowed, NotFound, Stale
from tenants.models import DraftCell, OrderState, QuotaOrder
from tenants.services.audit import PAGE
from tenants.services.drafts.apply import DraftTried, try_draft
from tenants.services.drafts.edits import (
    LONGEST,
    DraftEdit,
    PageWrite,
    TenantEdit,
    discard_draft,
    edit_draft,
)
from tenants.services.drafts.seen import overtaken, own_cells, own_tenants
from tenants.services.drafts.wanted import fields_of, terms_in_words
from tenants.services.moves.conflicts import overtaken_place
from tenants.services.previews.kept import quota_effects
from tenants.web.pages import actor_of, page_login_required, to_list

TIMES = ("starts_at", "ends_at")
LARGEST_STAMP = 2**53  # of a script


@page_login_required
@require_POST
def check(request: HttpRequest) -> HttpResponse:
    """Keep the edits as typed in the draft, and rehearse all of it; no quota is changed. Of the
    matrix only the cells are sent that are edited or were marked before."""
    give_up(request)
    shown = matrix(request)
    not_kept = keep(request, shown)
    for cell in shown.cells:
        if cell.editable and (edit := shown.drafted.get(cell.key)):
            cell.terms = terms_in_words(edit.terms, cell.quota)
    found = tried(request)
    mark(shown, found, saved=False)
    tell_of_other_tabs(shown)
    marked = set(request.POST.getlist("marked"))
    context = {
        "cells": [c for c in shown.cells if c.is_marked or c.key in marked],
        "reason": request.POST.get("reason", ""),
        "not_kept": not_kept.detail if not_kept else "",
        **savebar(request, shown),
        "refused_elsewhere": refused_elsewhere(shown, found),
    }
    return render(request, "scheduling/quotas/_quota_check.html", context)


@page_login_required
@require_POST
def preview(request: HttpRequest) -> HttpResponse:
    """What the whole draft would do to jobs; no quota is changed."""
    shown = matrix(request)
    if not_kept := keep(request, shown):
        return refusal(request, not_kept.detail)
    found = tried(request)
    if found.refused or any(cell.errors for cell in shown.cells):
        what = "marked tenants" if found.tenant_errors else "marked cells"
        return refusal(request, f"Correct the {what} first.")
    if not found.count:
        return refusal(request, "Nothing is edited, so there is nothing to preview.")
    count = found.count
    title = f"What {'this change' if count == 1 else f'these {count} changes'} would do"
    effects = quota_effects(actor_of(request), found.after, found.planned)
    return render(request, "parts/effects.html", {"title": title, "effects": effects})


@page_login_required
@require_POST
def discard(request: HttpRequest) -> HttpResponse:
    """Empty the reader's draft."""
    discard_draft(actor_of(request), write=page_write(request))
    messages.info(request, "Your edits are discarded.", extra_tags="info")
    return to_list(reverse("quotas"), request.GET)


# --- the draft ------------------------------------------------------------------------------------
def keep(request: HttpRequest, shown: ShownPart, *, saving: bool = False) -> Invalid | None:
    """Write what was sent into the reader's draft, if the draft can hold it: else why not."""
    check_lengths(shown)
    marked = set(request.POST.getlist("marked"))
    # What was typed since this page last wrote; a page without script does not say.
    fresh = request.POST.get("fresh")
    edits = []
    for cell in shown.cells:
        if not cell.editable or cell.errors or f"q-{cell.key}" not in request.POST:
            continue
        is_fresh = fresh is None or cell.key in fresh.split()
        if not is_fresh and (cell.key in shown.drafted or not saving):
            continue  # another tab may have written something newer, or taken it back
        if cell.is_retyped:
            edits.append(DraftEdit(cell.tenant, cell.gpu_type, cell.typed, cell.version))
        elif cell.key in marked and cell.key in shown.drafted:
            gone = None if not cell.terms else cell.typed
            edits.append(DraftEdit(cell.tenant, cell.gpu_type, gone))
    if not edits and not shown.drafted and not shown.placed:
        return None
    reason = request.POST.get("reason")
    try:
        edit_draft(actor_of(request), edits, reason=reason, write=page_write(request))
    except Invalid as error:
        return error
    shown.drafted = {key_of(cell): cell for cell in own_cells(actor_of(request))}
    return None


def give_up(request: HttpRequest) -> None:
    """Take a tenant out of the reader's draft, or of it what somebody else has set meanwhile, as
    its button asks."""
    asked, theirs = request.POST.get("out", ""), request.POST.get("theirs", "")
    for row in own_tenants(actor_of(request)):
        fields = [*row.fields] if asked == str(row.tenant_id) else []
        if theirs == str(row.tenant_id):
            faster = overtaken_place(row.tenant, row.fields, row.base)
            fields = [one.field for one in faster.fields] if faster else []
        if fields:
            edit_draft(actor_of(request), tenants=[TenantEdit(row.tenant, dict.fromkeys(fields))])


def check_lengths(shown: ShownPart) -> None:
    """Mark cells of which no draft could keep what is in them."""
    for cell in shown.cells:
        if len(cell.typed) > LONGEST and not cell.errors:
            cell.errors.append(f"Use at most {LONGEST} characters, e.g. 16.")


def page_write(request: HttpRequest) -> PageWrite | None:
    """Which write of which page it is, as its script says."""
    tab, stamp = request.POST.get("tab", ""), request.POST.get("stamp", "")
    if not (0 < len(tab) <= 36 and stamp.isascii() and stamp.isdigit() and len(stamp) < 17):
        return None
    return PageWrite(tab, min(int(stamp), LARGEST_STAMP))


def unseen_of(request: HttpRequest, shown: ShownPart) -> set[str]:
    """Keys of edits in the draft that the page which was sent does not show: they were made in
    another tab or browser since."""
    elsewhere = set(request.POST.get("elsewhere", "").split())
    posted = {key: request.POST.get(f"q-{key}") for key in shown.drafted}
    terms = {cell.key: cell.terms_told for cell in shown.cells}
    told = set(request.POST.getlist("placed"))
    of_tenants = {one.key for one in shown.placed} - told
    return of_tenants | {
        key
        for key, edit in shown.drafted.items()
        if (key not in elsewhere if posted[key] is None else posted[key] != edit.typed)
        or terms.get(key, "") != request.POST.get(f"t-{key}", "")
    }


def tried(request: HttpRequest) -> DraftTried:
    return try_draft(actor_of(request), reason=REHEARSAL, source=PAGE, dry_run=True)


def time_typed(request: HttpRequest, name: str, faults: dict[str, list[str]]) -> datetime | None:
    """A time of a field, in UTC; None where none is typed, or it cannot be read: then why is among
    the faults."""
    text = request.POST.get(name, "").strip()
    if not text:
        return None
    try:
        return datetime.strptime(text[:16], "%Y-%m-%dT%H:%M").replace(tzinfo=UTC)
    except ValueError:
        faults[name] = ["Write a date and a time of day in UTC, e.g. 2030-01-31T18:00."]
        return None


# --- what is told of it ---------------------------------------------------------------------------
def tell_done(request: HttpRequest, found: DraftTried, order: QuotaOrder | None) -> None:
    counts = ((len(found.cells), "quota"), (len(found.tenants), "tenant"))
    quotas = " and ".join(f"{n} {what}{'s' if n > 1 else ''}" for n, what in counts if n)
    text = f"{quotas} changed."
    if order is not None and order.state == OrderState.WAITING:
        text = f"{quotas} will change once somebody else has approved it: it is a large change."
    elif order is not None and order.applied_at is None:
        text = f"{quotas} will change on {utc(order.starts_at)}."
    elif order is not None:
        text = f"{quotas} changed until {utc(order.ends_at)}; then what was before comes back."
    messages.success(request, text, extra_tags="good")
    for warning in found.warnings:
        messages.warning(request, warning, extra_tags="wait")


def mark(shown: ShownPart, found: DraftTried, *, saved: bool) -> None:
    """Say in each cell what stands against its edit, or is worth a word. `saved`: it was meant to
    be saved, so that the next time overwrites what somebody else has done."""
    cells = {cell.key: cell for cell in shown.cells}
    for at, edit in enumerate(found.cells):
        cell = cells.get(key_of(edit))
        if cell is None or cell.errors or not cell.editable:
            continue
        if at in found.errors:
            mark_error(cell, edit, found.errors[at], saved=saved)
        elif at in found.results:
            cell.warnings.extend(found.results[at].warnings)
    placed = {one.seen.edit.pk: one for one in shown.placed}
    for at, error in found.tenant_errors.items():
        one = placed.get(found.tenants[at].pk)
        if one is None:
            continue
        one.stale = isinstance(error, Conflict)
        one.lost = isinstance(error, NotAllowed | NotFound)
        advice = " Change overwrites theirs; or take theirs." if one.stale else ""
        one.errors.extend([e.detail for e in error.errors] or [f"{error.detail}{advice}"])


def mark_error(cell: MatrixCell, edit: DraftCell, error: DomainError, *, saved: bool) -> None:
    if isinstance(error, Stale):
        cell.stale = True
        mine = fields_of(cell.typed, edit.terms)
        told = overtaken(cell.tenant, cell.gpu_type, cell.version, cell.quota, mine).told
        if saved:
            cell.version = error.current_version
            advice = "Save again to overwrite, or take theirs."
        else:
            # The version that was sent stays, so that the next rehearsal and the save say so too.
            advice = "Saving asks again before it overwrites; or take theirs."
        cell.errors.append(f"{told} {advice}")
        return
    cell.errors.extend(e.detail for e in error.errors if e.field != "reason")
    if not error.errors:
        cell.errors.append(error.detail)


def tell_of_other_tabs(shown: ShownPart) -> None:
    """Warn in cells that show another edit than the draft has."""
    for cell in shown.cells:
        edit = shown.drafted.get(cell.key)
        if not cell.editable or not cell.edited or cell.errors:
            continue
        if edit is None:
            text = "You took this edit back in another tab or browser; saving here saves it."
            cell.warnings.append(text)
        elif edit.typed != cell.typed:
            text = f"In another tab or browser you wrote {edit.typed} here, which counts."
            cell.warnings.append(text)


def refused_elsewhere(shown: ShownPart, found: DraftTried) -> list[str]:
    """What stands against edits that are in no field of this page."""
    elsewhere = shown.drafted_elsewhere
    return [
        f"{edit.tenant.name}, {edit.gpu_type.name}: {found.errors[at].detail}"
        for at, edit in enumerate(found.cells)
        if at in found.errors and key_of(edit) in elsewhere
    ]
