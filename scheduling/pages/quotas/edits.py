"""Editing the matrix: input is kept in a draft, rehearsed and previewed."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from scheduling.pages.quotas.orders import utc
from scheduling.pages.quotas.shown import MatrixCell, ShownPart, key_of, matrix, savebar
from scheduling.pages.refusals import (
    NOTHING_TO_PREVIEW,
    REHEARSAL,
    refusal,
    rehearsed_reason,
)
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
from tenants.services.orders.placing import submit_draft
from tenants.services.previews.kept import quota_effects
from tenants.services.transactions import unit_of_work
from tenants.web.pages import actor_of, page_login_required, to_list

TIMES = ("starts_at", "ends_at")
FIELDS = {"starts_at": "From", "ends_at": "Until", "reason": "Reason"}
LARGEST_STAMP = 2**53  # of a number in JavaScript


@page_login_required
@require_POST
def check(request: HttpRequest) -> HttpResponse:
    """Save the edits as typed in the draft, and rehearse all of it; no quota is changed. Of the
    matrix, only cells that are edited or were marked before are sent."""
    give_up(request)
    shown = matrix(request)
    not_kept = keep(request, shown, write=page_write(request))
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
    """Preview what saving the whole draft would do to jobs; no quota is changed."""
    shown = matrix(request)
    write = page_write(request)
    keep(request, shown, write=write)
    # As if the page saved next: anything it has written in the meantime comes before that.
    then = PageWrite(write.tab, write.stamp + 1) if write else None
    with unit_of_work(dry_run=True):
        reason = rehearsed_reason(request)
        attempt = DraftSaving.of(request, shown, reason, write=then, dry_run=True)
    if not attempt.saved:
        return refusal(request, *attempt.told(shown))
    found = attempt.found
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


# --- saving, and its rehearsal --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class DraftSaving:
    """What became, or would become, of saving what was sent together with the rest of the reader's
    draft.

    `faults`: by field, other than the cells. `tried`: nothing but the draft's own contents can have
    prevented the save.
    """

    not_kept: Invalid | None
    unseen: set[str]
    faults: dict[str, list[str]]
    found: DraftTried
    order: QuotaOrder | None
    tried: bool

    @classmethod
    def of(
        cls,
        request: HttpRequest,
        shown: ShownPart,
        reason: str,
        *,
        write: PageWrite | None,
        dry_run: bool = False,
    ) -> "DraftSaving":
        not_kept = keep(request, shown, saving=True, write=write)
        unseen = unseen_of(request, shown)
        faults: dict[str, list[str]] = {}
        starts_at, ends_at = (time_typed(request, name, faults) for name in TIMES)
        if not reason.strip():
            faults["reason"] = ["Say why; it is kept in the audit trail."]
        found, order = tried(request), None
        stopped = not_kept is not None or unseen or any(cell.errors for cell in shown.cells)
        may_try = bool(found.count and not (stopped or faults))
        if may_try:
            try:
                submitted = submit_draft(
                    actor_of(request),
                    reason=reason,
                    source=PAGE,
                    starts_at=starts_at,
                    ends_at=ends_at,
                    dry_run=dry_run,
                )
            except Invalid as error:
                faults |= error.by_field
                may_try = False
            else:
                found, order = submitted.tried, submitted.order
        return cls(not_kept, unseen, faults, found, order, may_try)

    @property
    def saved(self) -> bool:
        return self.tried and not self.found.refused

    @property
    def is_nothing(self) -> bool:
        """Whether nothing was edited."""
        return not self.found.count and not (self.not_kept or self.unseen)

    def told(self, shown: ShownPart) -> Iterator[str]:
        """Yield why it was not saved, without relying on the page's marks."""
        show_unseen(shown, self.unseen)
        mark(shown, self.found, saved=False)
        wrong = [cell for cell in shown.cells if cell.errors]
        if self.not_kept:
            yield self.not_kept.detail
        elif self.is_nothing and not wrong:
            yield NOTHING_TO_PREVIEW
        if self.unseen:
            yield f"Nothing is saved yet: {told_unseen(self.unseen)}. Save to see them marked."
        if wrong or self.found.refused:
            yield f"Correct the marked {'tenants' if self.found.tenant_errors else 'cells'} first."
        for cell in wrong:
            yield f"{cell.tenant.name}, {cell.gpu_type.name}: {' '.join(cell.errors)}"
        for one in shown.placed:
            if one.errors:
                yield f"{one.seen.edit.tenant.name}: {' '.join(one.errors)}"
        yield from refused_elsewhere(shown, self.found)
        for name, texts in self.faults.items():
            yield f"{FIELDS.get(name, name)}: {' '.join(texts)}"


def show_unseen(shown: ShownPart, unseen: set[str]) -> None:
    """Show cells as in the draft if the page did not."""
    for cell in shown.cells:
        if cell.key in unseen and cell.editable and cell.key in shown.drafted:
            edit = shown.drafted[cell.key]
            cell.typed, cell.version = edit.typed, edit.version


def told_unseen(unseen: set[str]) -> str:
    """Return text that continues a sentence."""
    s = "" if len(unseen) == 1 else "s"
    return f"your draft has {len(unseen)} more edit{s}, made in another tab or browser"


# --- the draft ------------------------------------------------------------------------------------
def keep(
    request: HttpRequest,
    shown: ShownPart,
    *,
    saving: bool = False,
    write: PageWrite | None = None,
) -> Invalid | None:
    """Write what was sent into the reader's draft; return why, if the draft cannot hold it."""
    check_lengths(shown)
    marked = set(request.POST.getlist("marked"))
    # What was typed since this page last wrote; a page without JavaScript does not say.
    fresh = request.POST.get("fresh")
    edits = []
    for cell in shown.cells:
        if not cell.editable or cell.errors or f"q-{cell.key}" not in request.POST:
            continue
        is_fresh = fresh is None or cell.key in fresh.split()
        if not is_fresh and (cell.key in shown.drafted or not saving):
            continue  # another tab may have written or removed something since
        if cell.is_retyped:
            edits.append(DraftEdit(cell.tenant, cell.gpu_type, cell.typed, cell.version))
        elif cell.key in marked and cell.key in shown.drafted:
            gone = None if not cell.terms else cell.typed
            edits.append(DraftEdit(cell.tenant, cell.gpu_type, gone))
    if not edits and not shown.drafted and not shown.placed:
        return None
    reason = request.POST.get("reason")
    try:
        edit_draft(actor_of(request), edits, reason=reason, write=write)
    except Invalid as error:
        return error
    shown.drafted = {key_of(cell): cell for cell in own_cells(actor_of(request))}
    return None


def give_up(request: HttpRequest) -> None:
    """Remove from the draft what a button asks for: a tenant, or those of its fields that somebody
    else has changed."""
    asked, theirs = request.POST.get("out", ""), request.POST.get("theirs", "")
    for row in own_tenants(actor_of(request)):
        fields = [*row.fields] if asked == str(row.tenant_id) else []
        if theirs == str(row.tenant_id):
            faster = overtaken_place(row.tenant, row.fields, row.base)
            fields = [one.field for one in faster.fields] if faster else []
        if fields:
            edit_draft(actor_of(request), tenants=[TenantEdit(row.tenant, dict.fromkeys(fields))])


def check_lengths(shown: ShownPart) -> None:
    """Mark cells whose text is too long for a draft."""
    for cell in shown.cells:
        if len(cell.typed) > LONGEST and not cell.errors:
            cell.errors.append(f"Use at most {LONGEST} characters, e.g. 16.")


def page_write(request: HttpRequest) -> PageWrite | None:
    """Return which write of which page this is, as its script says."""
    tab, stamp = request.POST.get("tab", ""), request.POST.get("stamp", "")
    if not (0 < len(tab) <= 36 and stamp.isascii() and stamp.isdigit() and len(stamp) < 17):
        return None
    return PageWrite(tab, min(int(stamp), LARGEST_STAMP))


def unseen_of(request: HttpRequest, shown: ShownPart) -> set[str]:
    """Return the keys of the draft's edits that the sent page does not show, because they were made
    in another tab or browser since."""
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
    """Parse a time in UTC; return None if it is empty, or if it is invalid and then explained in
    `faults`."""
    text = request.POST.get(name, "").strip()
    if not text:
        return None
    try:
        return datetime.strptime(text[:16], "%Y-%m-%dT%H:%M").replace(tzinfo=UTC)
    except ValueError:
        faults[name] = ["Write a date and a time of day in UTC, e.g. 2030-01-31T18:00."]
        return None


# --- messages -------------------------------------------------------------------------------------
def tell_done(request: HttpRequest, found: DraftTried, order: QuotaOrder | None) -> None:
    counts = ((len(found.cells), "quota"), (len(found.tenants), "tenant"))
    quotas = " and ".join(f"{n} {what}{'s' if n > 1 else ''}" for n, what in counts if n)
    text = f"{quotas} changed."
    if order is not None and order.state == OrderState.WAITING:
        text = f"{quotas} will change once somebody else has approved this large change."
    elif order is not None and order.applied_at is None:
        text = f"{quotas} will change on {utc(order.starts_at)}."
    elif order is not None:
        text = f"{quotas} changed until {utc(order.ends_at)}; then the old values come back."
    messages.success(request, text, extra_tags="good")
    for warning in found.warnings:
        messages.warning(request, warning, extra_tags="wait")


def mark(shown: ShownPart, found: DraftTried, *, saved: bool) -> None:
    """Show in each cell the obstacles and warnings of its edit. `saved`: this was an attempt to
    save, so the next one overwrites what somebody else has set."""
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
        advice = " Change it to overwrite theirs, or take theirs." if one.stale else ""
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
            # Keep the sent version, so that the next rehearsal and the save report this too.
            advice = "Saving asks before it overwrites; or take theirs."
        cell.errors.append(f"{told} {advice}")
        return
    cell.errors.extend(e.detail for e in error.errors if e.field != "reason")
    if not error.errors:
        cell.errors.append(error.detail)


def tell_of_other_tabs(shown: ShownPart) -> None:
    """Warn in cells whose text differs from the draft."""
    for cell in shown.cells:
        edit = shown.drafted.get(cell.key)
        if not cell.editable or not cell.edited or cell.errors:
            continue
        if edit is None:
            text = "You undid this edit in another tab or browser; saving here still saves it."
            cell.warnings.append(text)
        elif edit.typed != cell.typed:
            text = f"You wrote {edit.typed} here in another tab or browser, and that counts."
            cell.warnings.append(text)


def refused_elsewhere(shown: ShownPart, found: DraftTried) -> list[str]:
    """Return the obstacles to edits that are in no field of this page."""
    elsewhere = shown.drafted_elsewhere
    return [
        f"{edit.tenant.name}, {edit.gpu_type.name}: {found.errors[at].detail}"
        for at, edit in enumerate(found.cells)
        if at in found.errors and key_of(edit) in elsewhere
    ]
