"""The quota matrix: tenants by GPU types, with what the reader is about to change of it."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.paginator import Page, Paginator
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from scheduling.models import NodeRecord
from scheduling.pages.quotas.orders import ShownOrder, planned, shown_orders
from scheduling.pages.tenants.tenants import in_tree_order
from scheduling.queries.names import gpu_type_names
from scheduling.queries.quota_use import quota_uses
from tenants.facts import QuotaUse
from tenants.models import DraftCell, GpuType, Quota, Tenant
from tenants.names import tenant_names
from tenants.permissions import access_of
from tenants.selectors import parents_by_id, subtree_ids, visible_quotas, visible_tenants
from tenants.services.drafts.cell_text import cell_text, named_terms
from tenants.services.drafts.seen import (
    SeenTenant,
    cells_of_others,
    own_cells,
    own_tenants,
    tenants_of_others,
)
from tenants.services.drafts.wanted import is_edit, makes_another, terms_in_words
from tenants.services.orders.seen import told_orders
from tenants.services.quota_sums import promised_below
from tenants.services.typed_gpus import as_typed
from tenants.templatetags.ui import bar_milli
from tenants.web.conditional import by_its_text
from tenants.web.csv_files import csv_answer
from tenants.web.pages import UnknownFilter, actor_of, page_login_required, unknown_names

EDITS_NAMED = 4  # of each colleague
CELLS = 96  # on a page at most, and at least one row of them
FILTERS = ("tenant", "gpu", "edited")
MINE = "mine"  # of `edited`: tenants of whose quotas the reader has edited some


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
    planned: list[tuple[UUID, str]] = field(default_factory=list)  # by which order it will be what
    terms: list[str] = field(default_factory=list)  # what the draft makes of mode and limits
    full: int = 0  # milli-GPU that the whole width of a bar stands for, in all cells of its type

    @property
    def key(self) -> str:
        return f"{self.tenant.pk}-{self.gpu_type.pk}"

    @property
    def now(self) -> str:
        return as_typed(self.quota.guaranteed_milli) if self.quota else ""

    @property
    def said(self) -> str:
        """The quota as it is, with mode and limits, as somebody would type it."""
        return cell_text(self.quota)

    @property
    def typed_terms_told(self) -> str:
        """What the typed text makes of mode and limits."""
        return ", ".join(terms_in_words(named_terms(self.typed), self.quota))

    @property
    def edited(self) -> bool:
        return bool(self.terms) or self.is_retyped

    @property
    def terms_told(self) -> str:
        return ", ".join(self.terms)

    @property
    def is_marked(self) -> bool:
        return bool(self.edited or self.errors or self.warnings)

    @property
    def is_retyped(self) -> bool:
        """Whether another quota is typed than there is; what cannot be read is."""
        if not self.editable or self.typed.strip() == self.now:
            return False
        return makes_another(self.quota, self.typed, {})


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


@dataclass(slots=True)
class PlacedTenant:
    """A tenant in the reader's draft, and what stands against it."""

    seen: SeenTenant
    errors: list[str] = field(default_factory=list)
    stale: bool = False

    @property
    def key(self) -> str:
        return f"{self.seen.edit.tenant.name}: {', '.join(self.seen.told)}"


@dataclass(slots=True)
class ShownPart:
    """The part of the matrix that the address asks for: tenants below one, one GPU type, and of
    many tenants a page. `tenants`: all that the reader may see, with their depth. `drafted`: the
    reader's edits, wherever they are, by the keys of their cells; `placed`: of tenants. A wrong
    filter shows nothing and is `unknown`."""

    filters: dict[str, str]
    unknown: dict[str, UnknownFilter]
    tenants: list[tuple[Tenant, int]]
    all_types: list[GpuType]
    types: list[GpuType]
    page: Page[tuple[Tenant, int]]
    rows: list[MatrixRow]
    drafted: dict[str, DraftCell]
    orders: list[ShownOrder]
    placed: list[PlacedTenant]

    @property
    def drafted_elsewhere(self) -> list[str]:
        """Keys of edits that are in no field here."""
        here = {cell.key for cell in self.cells if cell.editable}
        return [key for key in self.drafted if key not in here]

    @property
    def cells(self) -> list[MatrixCell]:
        return [cell for row in self.rows for cell in row.cells]


def key_of(cell: DraftCell) -> str:
    """Of the cell of the matrix that it is about."""
    return f"{cell.tenant_id}-{cell.gpu_type_id}"


def matrix(request: HttpRequest, also: Collection[str] = ()) -> ShownPart:
    """The cells that the reader may see, with what was typed into them where it was sent, else as
    the reader's draft has it. `also`: keys of cells that are shown wherever they are."""
    access = access_of(request.user)
    drafted = {key_of(cell): cell for cell in own_cells(actor_of(request))}
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
    if filters["edited"] == MINE:
        mine = {cell.tenant_id for cell in drafted.values()}
        wanted = [(t, depth) for t, depth in wanted if t.pk in mine]
    elif filters["edited"]:
        text = f"There is no such choice. Known here: {MINE}."
        unknown["edited"] = UnknownFilter("edited", filters["edited"], text)
        wanted = []
    page = Paginator(wanted, max(1, CELLS // max(1, len(types)))).get_page(request.GET.get("page"))
    # Also where a page has other tenants by now, what was typed is not passed over.
    posted = {name.removeprefix("q-") for name in request.POST if name.startswith("q-")}
    posted |= set(also)
    of_tenants, of_types = ({key.split("-")[at] for key in posted if "-" in key} for at in (0, 1))
    of_page = {t.pk for t, _ in page.object_list}
    lines = [(t, d) for t, d in tenants if t.pk in of_page or str(t.pk) in of_tenants]
    columns = [t for t in all_types if t in types or str(t.pk) in of_types]
    quotas = visible_quotas(request.user).filter(
        tenant__in=[t.pk for t, _ in lines], gpu_type__in=columns
    )
    stored = {(q.tenant_id, q.gpu_type_id): q for q in quotas}
    names = frozenset(t.name for t, _ in tenants)
    orders = shown_orders(actor_of(request), list(told_orders(actor_of(request))))
    plans = planned(orders)
    uses = {(u.tenant, u.gpu_model): u for u in quota_uses()}
    full = longest_bars(u for u in uses.values() if u.tenant in names)
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
            cell.planned = plans.get(cell.key, [])
            cell.full = full.get(gpu_type.name, 0)
            edit = drafted.get(cell.key) if editable else None
            if edit is not None:
                cell.terms = terms_in_words(edit.terms, quota)
                # What was made so by somebody meanwhile is no edit any more; another value begins
                # anew.
                if is_edit(edit, quota):
                    cell.version = edit.version
            typed = edit.typed if edit is not None else cell.now
            cell.typed = request.POST.get(f"q-{cell.key}", typed)
            sent = request.POST.get(f"v-{cell.key}", "")
            if sent.isascii() and sent.isdigit() and len(sent) < 19:
                cell.version = int(sent)
            cells.append(cell)
        rows.append(MatrixRow(tenant, depth, cells))
    placed = [PlacedTenant(SeenTenant(row, names)) for row in own_tenants(actor_of(request))]
    return ShownPart(
        filters, unknown, tenants, all_types, columns, page, rows, drafted, orders, placed
    )


def longest_bars(uses: Iterable[QuotaUse]) -> dict[str, int]:
    """Milli-GPU of the longest bar of each GPU model: two bars that look alike are alike."""
    found: dict[str, int] = {}
    for use in uses:
        length = bar_milli(use.used, use.guaranteed, use.borrowed, use.lent)
        found[use.gpu_model] = max(length, found.get(use.gpu_model, 0))
    return found


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
    access = access_of(request.user)
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
        **savebar(request, shown),
        "editors": editors(request),
        "sees_changes": access.operator or any(access.may_administer(t) for t in access.parents),
        **more,
    }


@dataclass(frozen=True, slots=True)
class Editor:
    """Somebody else who has edits in a draft, the newest at `at`, of what the reader may change,
    too."""

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
        """Of the cells, with what is typed into them, for the script of the page."""
        return json.dumps({key_of(cell): cell.typed for cell in self.cells})


def editors(request: HttpRequest) -> list[Editor]:
    viewer, access = actor_of(request), access_of(request.user)
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
    """The others who are about to change quotas, for the page that is open. Where the sign-in is
    over, that page stays as it is: somebody types into it."""
    if request.headers.get("HX-Request") and not request.user.is_authenticated:
        return HttpResponse(status=401)
    return told_editors(request)


@page_login_required
def told_editors(request: HttpRequest) -> HttpResponse:
    context = {"editors": editors(request)}
    answer = render(request, "scheduling/quotas/_quota_editors.html", context)
    return by_its_text(request, answer)


def savebar(request: HttpRequest, shown: ShownPart) -> dict[str, Any]:
    """What the edits come to, and of which part of the matrix they are."""
    cells = shown.cells
    return {
        "part": f"?{request.GET.urlencode()}" if request.GET else "",
        "editable": any(c.editable for c in cells),
        "edited": sum(c.edited for c in cells) + len(shown.drafted_elsewhere) + len(shown.placed),
        "elsewhere": shown.drafted_elsewhere,
        "placed": shown.placed,
        "refused": any(c.errors and not c.stale for c in cells)
        or any(one.errors and not one.stale for one in shown.placed),
        "stale": any(c.stale for c in cells) or any(one.stale for one in shown.placed),
    }


@page_login_required
@require_GET
def as_csv(request: HttpRequest) -> HttpResponse:
    """The quota of each tenant, a row a tenant and a column a GPU type, for spreadsheets; the
    matrix takes it back."""
    types = list(GpuType.objects.all())
    quotas = visible_quotas(request.user).order_by()
    stored = {(q.tenant_id, q.gpu_type_id): q for q in quotas}
    rows = (
        [tenant.name, *(cell_text(stored.get((tenant.pk, t.pk))) for t in types)]
        for tenant, _ in in_tree_order(list(visible_tenants(request.user)))
    )
    return csv_answer("quotas.csv", ["tenant", *(t.name for t in types)], rows)
