"""Pages about who may use how much: the quota matrix and one quota of it."""

import csv
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.core.paginator import Page, Paginator
from django.db.models import Sum
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.text import Truncator
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from scheduling.models import NodeRecord
from scheduling.pages.forms import DAMAGED
from scheduling.pages.tenants.tenants import in_tree_order
from scheduling.queries.effects import quota_effects
from scheduling.queries.names import gpu_type_names
from scheduling.queries.quota_use import quota_uses, use_of
from tenants.errors import DomainError, Stale
from tenants.facts import QuotaUse
from tenants.models import GpuType, Quota, QuotaMode, Tenant
from tenants.names import tenant_names
from tenants.permissions import access_of
from tenants.selectors import (
    first_quota_record_since,
    last_quota_record,
    parents_by_id,
    subtree_ids,
    visible_names,
    visible_quotas,
    visible_tenants,
)
from tenants.services.audit import PAGE
from tenants.services.quota_sheet import QuotaEdit, SheetRefused, change_quotas, rehearse_quotas
from tenants.services.quota_sums import promised_below
from tenants.services.quota_terms import QuotaChange, QuotaTerms
from tenants.services.quotas import change_quota
from tenants.templatetags.ui import gpus
from tenants.web.pages import UnknownFilter, actor_of, page_login_required, unknown_names

# A rehearsal writes nothing; the reason is asked for only when it counts.
REHEARSAL = "rehearsal"


# --- the matrix -----------------------------------------------------------------------------------
REASON_SHOWN = 200  # characters of a colleague's reason in a cell
CELLS = 96  # on a page at most, and at least one row of them
FILTERS = ("tenant", "gpu")
NOTHING_EDITED = "Nothing was edited, so nothing has changed."


@dataclass(slots=True)
class MatrixCell:
    """One tenant's quota of one GPU type, as it is and as it was typed."""

    tenant: Tenant
    gpu_type: GpuType
    quota: Quota | None
    use: QuotaUse | None
    editable: bool
    version: int
    typed: str
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stale: bool = False
    after: Quota | None = None  # as the edit would make it

    @property
    def key(self) -> str:
        return f"{self.tenant.pk}-{self.gpu_type.pk}"

    @property
    def now(self) -> str:
        return gpus(self.quota.guaranteed_milli).replace(",", "") if self.quota else ""

    @property
    def is_marked(self) -> bool:
        return bool(self.edited or self.errors or self.warnings)

    @property
    def edited(self) -> bool:
        if not self.editable or self.typed.strip() == self.now:
            return False
        try:
            return self.quota is None or typed_milli(self.typed) != self.quota.guaranteed_milli
        except ValueError:
            return True  # what is wrong with it is told beside it


@dataclass(frozen=True, slots=True)
class MatrixRow:
    tenant: Tenant
    depth: int
    cells: list[MatrixCell]


@dataclass(frozen=True, slots=True)
class Total:
    """The foot of one GPU type: promised to the top of the tree, installed, what is left."""

    gpu_type: GpuType
    promised: int
    installed: int

    @property
    def left(self) -> int:
        return self.installed - self.promised

    @property
    def over(self) -> int:
        return -self.left


@dataclass(frozen=True, slots=True)
class ShownPart:
    """The part of the matrix that the address asks for: tenants below one, one GPU type, and of
    many tenants a page. `tenants`: all that the reader may see, with their depth. A wrong filter
    shows nothing and is `unknown`."""

    filters: dict[str, str]
    unknown: dict[str, UnknownFilter]
    tenants: list[tuple[Tenant, int]]
    all_types: list[GpuType]
    types: list[GpuType]
    page: Page[tuple[Tenant, int]]
    rows: list[MatrixRow]

    @property
    def cells(self) -> list[MatrixCell]:
        return [cell for row in self.rows for cell in row.cells]


def matrix(request: HttpRequest) -> ShownPart:
    """The cells that the reader may see, with what was typed into them where it was sent."""
    access = access_of(request.user)
    filters = {name: request.GET.get(name, "").strip() for name in FILTERS}
    tenants = in_tree_order(list(visible_tenants(request.user)))
    all_types = list(GpuType.objects.all())
    unknown = unknown_names(request, FILTERS, "page")
    top = next((t for t, _ in tenants if t.name == filters["tenant"]), None)
    if filters["tenant"] and top is None:
        text = tenant_names(request.user).none_such(filters["tenant"])
        unknown["tenant"] = UnknownFilter("tenant", filters["tenant"], text)
    types = [t for t in all_types if filters["gpu"] in ("", t.name)]
    if not types and all_types:
        text = gpu_type_names().none_such(filters["gpu"])
        unknown["gpu"] = UnknownFilter("gpu", filters["gpu"], text)
    wanted = [] if unknown else tenants
    if top is not None:
        below = subtree_ids(top.pk)
        wanted = [(t, depth) for t, depth in wanted if t.pk in below]
    page = Paginator(wanted, max(1, CELLS // max(1, len(types)))).get_page(request.GET.get("page"))
    # Also where a page has other tenants by now, what was typed is not passed over.
    posted = {name.removeprefix("q-") for name in request.POST if name.startswith("q-")}
    of_tenants, of_types = ({key.split("-")[at] for key in posted if "-" in key} for at in (0, 1))
    of_page = {t.pk for t, _ in page.object_list}
    lines = [(t, d) for t, d in tenants if t.pk in of_page or str(t.pk) in of_tenants]
    columns = [t for t in all_types if t in types or str(t.pk) in of_types]
    quotas = visible_quotas(request.user).filter(
        tenant__in=[t.pk for t, _ in lines], gpu_type__in=columns
    )
    stored = {(q.tenant_id, q.gpu_type_id): q for q in quotas}
    names = frozenset(t.name for t, _ in tenants)
    uses = {(u.tenant, u.gpu_model): u for u in quota_uses()}
    rows = []
    for tenant, depth in lines:
        editable = access.may_administer_from_above(tenant.pk)
        cells = []
        for gpu_type in columns:
            quota = stored.get((tenant.pk, gpu_type.pk))
            use = uses.get((tenant.name, gpu_type.name))
            cell = MatrixCell(
                tenant,
                gpu_type,
                quota,
                use.seen_by(names) if use else None,
                editable,
                quota.version if quota else 0,
                "",
            )
            cell.typed = request.POST.get(f"q-{cell.key}", cell.now)
            sent = request.POST.get(f"v-{cell.key}", "")
            if sent.isascii() and sent.isdigit() and len(sent) < 19:
                cell.version = int(sent)
            cells.append(cell)
        rows.append(MatrixRow(tenant, depth, cells))
    return ShownPart(filters, unknown, tenants, all_types, columns, page, rows)


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


# Digits of other scripts, "1_000" and "1e3" are numbers to Python, and mostly slips of a hand here.
PLAIN = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
THOUSANDS = re.compile(r"[1-9][0-9]{0,2}([,_ '’\u00a0\u202f][0-9]{3})+(\.[0-9]*)?")


def typed_milli(text: str) -> int:
    """GPUs as people write them, in milli-GPU; raises ValueError with the remedy."""
    text = text.strip()
    if not text:
        raise ValueError("Write 0 to guarantee none.")
    if THOUSANDS.fullmatch(text):
        raise ValueError("Write thousands without a separator, e.g. 1200.")
    if any(c.isdigit() and not c.isascii() for c in text):
        raise ValueError("Write the number with the digits 0 to 9, e.g. 16.")
    if "," in text:
        raise ValueError("Write a part of a GPU with a point, e.g. 1.5.")
    if not PLAIN.fullmatch(text):
        raise ValueError("Write a number of GPUs in the digits 0 to 9, e.g. 16.")
    value = Decimal(text)
    if value < 0:
        raise ValueError("Write 0 or more GPUs.")
    if value > 10**9:
        raise ValueError("That is more than any cluster has. Write at most 1,000,000,000 GPUs.")
    if (value * 1000) % 1:
        raise ValueError("The smallest share is 0.001 GPU.")
    return int(value * 1000)


def edits_of(rows: list[MatrixRow]) -> tuple[list[MatrixCell], list[QuotaEdit]]:
    """The edited cells with a legible number and their edits; the others are marked."""
    cells, edits = [], []
    for cell in (c for row in rows for c in row.cells if c.edited):
        try:
            milli = typed_milli(cell.typed)
        except ValueError as error:
            cell.errors.append(str(error))
            continue
        cells.append(cell)
        edits.append(QuotaEdit(cell.tenant, cell.gpu_type, milli, cell.version))
    return cells, edits


def attempt(request: HttpRequest, rows: list[MatrixRow], reason: str, *, dry_run: bool) -> bool:
    """Make the edits (or rehearse them) and mark each cell; True when nothing stood against it."""
    cells, edits = edits_of(rows)
    illegible = any(c.errors for row in rows for c in row.cells)
    try:
        results = change_quotas(
            actor_of(request), edits, reason=reason, source=PAGE, dry_run=dry_run or illegible
        )
    except SheetRefused as refused:
        for index, error in refused.errors.items():
            mark(cells[index], error, dry_run=dry_run)
        return False
    for index, result in results.items():
        cells[index].warnings.extend(result.warnings)
        cells[index].after = result.quota
    return not illegible


def overtaker(tenant: Tenant, gpu_type: GpuType) -> tuple[str, str]:
    """Who changed a quota last, and the reason given, in brackets; "Somebody" and "" where the
    audit trail does not say."""
    last = last_quota_record(tenant, gpu_type)
    if last is None:
        return "Somebody", ""
    reason = Truncator(last.reason).chars(REASON_SHOWN)
    return last.actor_name, f" (“{reason}”)" if reason else ""


def was(cell: MatrixCell) -> str:
    """What a cell said when its edit began, with a blank before it; "" where the audit trail does
    not say."""
    record = first_quota_record_since(cell.tenant, cell.gpu_type, cell.version)
    if record is None:
        return ""
    if record.before is None:
        return " There was no quota when you began."
    return f" It was {record.before['guaranteed']:.12g} when you began."


def mark(cell: MatrixCell, error: DomainError, *, dry_run: bool) -> None:
    if isinstance(error, Stale):
        cell.stale = True
        who, why = overtaker(cell.tenant, cell.gpu_type)
        began = was(cell)
        now = f"set it to {cell.now}" if cell.quota else "removed it"
        if dry_run:
            # The version that was sent stays, so that the next rehearsal and the save say so too.
            advice = "Saving asks once more before it overwrites; or take theirs."
        else:
            cell.version = error.current_version
            advice = "Save again to overwrite, or take theirs."
        told = f"{who} {now} meanwhile{why}; you wrote {cell.typed}.{began} {advice}"
        cell.errors.append(told)
        return
    cell.errors.extend(e.detail for e in error.errors if e.field != "reason")
    if not error.errors:
        cell.errors.append(error.detail)


def sheet(request: HttpRequest, shown: ShownPart, **more: Any) -> dict[str, Any]:
    access = access_of(request.user)
    return {
        "nav": "quotas",
        "shown": shown,
        "rows": shown.rows,
        "unknown": shown.unknown,
        "filters": shown.filters,
        "totals": totals(shown.types),
        **savebar(request, shown),
        "sees_changes": access.operator or any(access.may_administer(t) for t in access.parents),
        **more,
    }


def savebar(request: HttpRequest, shown: ShownPart) -> dict[str, Any]:
    """What the edits come to, and of which part of the matrix they are."""
    cells = shown.cells
    return {
        "part": f"?{request.GET.urlencode()}" if request.GET else "",
        "editable": any(c.editable for c in cells),
        "edited": sum(c.edited for c in cells),
        "refused": any(c.errors and not c.stale for c in cells),
        "stale": any(c.stale for c in cells),
    }


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def quotas(request: HttpRequest) -> HttpResponse:
    shown = matrix(request)
    rows = shown.rows
    if request.method != "POST":
        return render(request, "scheduling/quotas/quotas.html", sheet(request, shown))
    reason = request.POST.get("reason", "")
    count = sum(c.edited for c in shown.cells)
    if count and not reason.strip():
        attempt(request, rows, REHEARSAL, dry_run=True)
        context = sheet(
            request, shown, reason_error=["Say why; it is kept in the audit trail."], reason=reason
        )
        return render(request, "scheduling/quotas/quotas.html", context, status=422)
    if count and not attempt(request, rows, reason, dry_run=False):
        context = sheet(request, shown, reason=reason)
        return render(request, "scheduling/quotas/quotas.html", context, status=422)
    if count:
        messages.success(
            request, f"{count} quota{'s' if count > 1 else ''} changed.", extra_tags="good"
        )
        for warning in (w for c in shown.cells for w in c.warnings):
            messages.warning(request, warning, extra_tags="wait")
    else:
        messages.info(request, NOTHING_EDITED, extra_tags="info")
    return redirect(request.get_full_path())


@page_login_required
@require_POST
def check(request: HttpRequest) -> HttpResponse:
    """The edits as typed, each rehearsed; nothing is changed. Of the matrix only the cells are sent
    that are edited or were marked before."""
    shown = matrix(request)
    attempt(request, shown.rows, REHEARSAL, dry_run=True)
    marked = set(request.POST.getlist("marked"))
    context = {
        "cells": [c for c in shown.cells if c.is_marked or c.key in marked],
        "reason": request.POST.get("reason", ""),
        **savebar(request, shown),
    }
    return render(request, "scheduling/quotas/_quota_check.html", context)


@page_login_required
@require_POST
def preview(request: HttpRequest) -> HttpResponse:
    """What the edits would do to jobs; nothing is changed."""
    shown = matrix(request)
    legible = attempt(request, shown.rows, REHEARSAL, dry_run=True)
    edited = [cell for cell in shown.cells if cell.after is not None]
    if not legible:
        return refusal(request, "Correct the marked cells first.")
    if not edited:
        return refusal(request, "Nothing is edited, so there is nothing to look ahead to.")
    after = {(cell.tenant.name, cell.gpu_type.name): cell.after for cell in edited}
    title = f"What {'this change' if len(edited) == 1 else f'these {len(edited)} changes'} would do"
    effects = quota_effects(actor_of(request), after)
    return render(request, "parts/effects.html", {"title": title, "effects": effects})


def refusal(request: HttpRequest, why: str) -> HttpResponse:
    """In place of effects; htmx shows what comes with 200 alone."""
    return render(request, "parts/effects_refused.html", {"why": why})


@page_login_required
@require_GET
def as_csv(request: HttpRequest) -> HttpResponse:
    """What each tenant is guaranteed, a row a tenant and a column a GPU type, for spreadsheets; the
    matrix takes it back."""
    types = list(GpuType.objects.all())
    quotas = visible_quotas(request.user).order_by()
    stored = {(q.tenant_id, q.gpu_type_id): q.guaranteed_milli for q in quotas}
    answer = HttpResponse(
        content_type="text/csv",
        headers={"Content-Disposition": 'attachment; filename="quotas.csv"'},
    )
    rows = csv.writer(answer, lineterminator="\n")
    rows.writerow(["tenant", *(t.name for t in types)])
    for tenant, _ in in_tree_order(list(visible_tenants(request.user))):
        rows.writerow([tenant.name, *(_text(stored.get((tenant.pk, t.pk))) for t in types)])
    return answer


# --- one quota ------------------------------------------------------------------------------------
def legible_milli(text: str, name: str, errors: dict[str, list[str]]) -> int | None:
    """GPUs as typed in a field; None, and why among its errors, where they cannot be read."""
    try:
        return typed_milli(text)
    except ValueError as error:
        errors.setdefault(name, []).append(str(error))
        return None


def limit_milli(text: str, name: str, errors: dict[str, list[str]]) -> int | None:
    """A limit as typed; empty = no limit."""
    return legible_milli(text, name, errors) if text.strip() else None


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def quota(request: HttpRequest, tenant: str, gpu_type: str) -> HttpResponse:
    """Mode and limits of one quota, beside its guarantee."""
    owner, kind = _shown(request, tenant, gpu_type)
    stored = Quota.objects.filter(tenant=owner, gpu_type=kind).first()
    use = use_of(owner.name, kind.name)
    typed = {
        "guaranteed": _text(stored.guaranteed_milli) if stored else "0",
        "mode": stored.mode if stored else QuotaMode.SHARED.value,
        "borrow_limit": _text(stored.borrow_limit_milli) if stored else "",
        "lend_limit": _text(stored.lend_limit_milli) if stored else "",
        "version": str(stored.version if stored else 0),
        "reason": "",
    }
    errors: dict[str, list[str]] = {}
    if request.method == "POST":
        typed = {name: request.POST.get(name, "") for name in typed}
        if save_quota(request, owner, kind, typed, errors):
            return redirect("quotas")
    context = {
        "nav": "quotas",
        "tenant": owner,
        "gpu_type": kind,
        "quota": stored,
        "use": use.seen_by(visible_names(request.user)) if use else None,
        "modes": QuotaMode.choices,
        "typed": typed,
        "errors": errors,
        "editable": access_of(request.user).may_administer_from_above(owner.pk),
    }
    return render(request, "scheduling/quotas/quota.html", context, status=422 if errors else 200)


TYPED = ("guaranteed", "mode", "borrow_limit", "lend_limit")


def _shown(request: HttpRequest, tenant: str, gpu_type: str) -> tuple[Tenant, GpuType]:
    """Whose quota a page is about; raises Http404."""
    owner = visible_tenants(request.user).filter(name=tenant).first()
    kind = GpuType.objects.filter(name=gpu_type).first()
    if owner is None or kind is None:
        raise Http404("There is no such quota, or it belongs to a tenant you cannot see.")
    return owner, kind


def _text(milli: int | None) -> str:
    return "" if milli is None else gpus(milli).replace(",", "")


def shown_version(text: str, errors: dict[str, list[str]]) -> int | None:
    """The version of a quota that a form was shown with; None, and why among its errors, where the
    form does not say it."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    errors[""] = [DAMAGED]
    return None


def terms_typed(typed: dict[str, str], errors: dict[str, list[str]]) -> QuotaTerms | None:
    """The quota as typed; None, and why among its errors, where it cannot be read."""
    guaranteed = legible_milli(typed["guaranteed"], "guaranteed", errors)
    shared = typed["mode"] != QuotaMode.ISOLATED
    borrow = limit_milli(typed["borrow_limit"], "borrow_limit", errors) if shared else None
    lend = limit_milli(typed["lend_limit"], "lend_limit", errors) if shared else None
    if errors or guaranteed is None:
        return None
    return QuotaTerms(guaranteed, typed["mode"], borrow, lend)


@page_login_required
@require_POST
def quota_preview(request: HttpRequest, tenant: str, gpu_type: str) -> HttpResponse:
    """What one quota as typed would do to jobs; nothing is changed."""
    owner, kind = _shown(request, tenant, gpu_type)
    errors: dict[str, list[str]] = {}
    terms = terms_typed({name: request.POST.get(name, "") for name in TYPED}, errors)
    try:
        if terms is None:
            return refusal(request, next(iter(errors.values()))[0])
        (after,) = rehearse_quotas(actor_of(request), [(owner, kind, terms)], source=PAGE)
    except SheetRefused as refused:
        return refusal(request, refused.errors[0].detail)
    effects = quota_effects(actor_of(request), {(owner.name, kind.name): after})
    title = f"What this would do to {owner.name} and others"
    return render(request, "parts/effects.html", {"title": title, "effects": effects})


def save_quota(
    request: HttpRequest,
    tenant: Tenant,
    gpu_type: GpuType,
    typed: dict[str, str],
    errors: dict[str, list[str]],
) -> bool:
    """Change the quota as typed; False with `errors` by field ("" = none of them) otherwise."""
    terms = terms_typed(typed, errors)
    version = shown_version(typed["version"], errors)
    if terms is None or version is None:
        return False
    try:
        result = change_quota(
            actor_of(request),
            QuotaChange(tenant, gpu_type, version, typed["reason"], PAGE),
            terms,
        )
    except Stale as error:
        who, why = overtaker(tenant, gpu_type)
        done = "changed" if error.current_version else "removed"
        errors[""] = [
            f"{who} {done} this quota meanwhile{why}. Your values stand below; save again to "
            "overwrite, or go back to see theirs."
        ]
        typed["version"] = str(error.current_version)
        return False
    except DomainError as error:
        errors |= error.by_field or {"": [error.detail]}
        return False
    if result.changed:
        text = f"The quota of {tenant.name} for {gpu_type.name} is changed."
        messages.success(request, text, extra_tags="good")
    else:
        messages.info(request, NOTHING_EDITED, extra_tags="info")
    for warning in result.warnings:
        messages.warning(request, warning, extra_tags="wait")
    return True
