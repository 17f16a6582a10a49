"""The part of the quota matrix that a page shows: its cells, with the reader's pending edits."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.core.paginator import Page, Paginator
from django.http import HttpRequest

from scheduling.pages.quotas.orders import ShownOrder, planned, shown_orders
from scheduling.pages.tenants.tenants import in_tree_order
from scheduling.queries.names import gpu_type_names
from scheduling.queries.quota_use import quota_uses
from tenants.facts import QuotaUse
from tenants.models import DraftCell, GpuType, Quota, Tenant
from tenants.names import Names, tenant_names
from tenants.permissions import Access, access_of
from tenants.selectors import subtree_ids, visible_tenants
from tenants.services.drafts.cell_text import cell_text, named_terms
from tenants.services.drafts.seen import SeenTenant, own_cells, own_tenants
from tenants.services.drafts.wanted import is_edit, makes_another, terms_in_words
from tenants.services.orders.seen import told_orders
from tenants.services.typed_gpus import as_typed
from tenants.templatetags.ui import bar_milli
from tenants.web.pages import UnknownFilter, actor_of, unknown_names

CELLS = 96  # per page at most, but at least one row
FILTERS = ("tenant", "gpu", "edited")
MINE = "mine"  # value of `edited`: only tenants whose quotas the reader has edited


@dataclass(slots=True)
class MatrixCell:
    """One tenant's quota of one GPU type, as stored and as typed."""

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
    planned: list[tuple[UUID, str]] = field(default_factory=list)  # (order, future value and time)
    terms: list[str] = field(default_factory=list)  # mode and limits that the draft changes
    full: int = 0  # milli-GPU at full bar width, the same in all cells of the type

    @property
    def key(self) -> str:
        return f"{self.tenant.pk}-{self.gpu_type.pk}"

    @property
    def now(self) -> str:
        return as_typed(self.quota.guaranteed_milli) if self.quota else ""

    @property
    def said(self) -> str:
        """The stored quota with mode and limits, as a person would type it."""
        return cell_text(self.quota)

    @property
    def typed_terms_told(self) -> str:
        """The mode and limits that the typed text changes."""
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
        """Whether the typed text differs from the stored quota; unreadable text does."""
        if not self.editable or self.typed.strip() == self.now:
            return False
        return makes_another(self.quota, self.typed, {})


@dataclass(frozen=True, slots=True)
class MatrixRow:
    tenant: Tenant
    depth: int
    cells: list[MatrixCell]


@dataclass(slots=True)
class PlacedTenant:
    """A tenant in the reader's draft, with the obstacles to its change."""

    seen: SeenTenant
    errors: list[str] = field(default_factory=list)
    stale: bool = False
    lost: bool = False  # the tenant, or the right to change it, is gone

    @property
    def key(self) -> str:
        return f"{self.seen.edit.tenant.name}: {', '.join(self.seen.told)}"


@dataclass(slots=True)
class ShownPart:
    """The part of the matrix that the address asks for: tenants below one, one GPU type, and one
    page if there are many tenants.

    `tenants`: all that the reader may see, with their depth. `drafted`: all of the reader's quota
    edits, by cell key; `placed`: those of tenants. An invalid filter shows nothing and is in
    `unknown`. `access`: the reader's. `wanted`: the tenants of all pages; `uses`: of all quotas.
    """

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
    access: Access
    wanted: list[Tenant]
    uses: list[QuotaUse]

    @property
    def drafted_elsewhere(self) -> list[str]:
        """Keys of edits that are in no field here."""
        here = {cell.key for cell in self.cells if cell.editable}
        return [key for key in self.drafted if key not in here]

    @property
    def cells(self) -> list[MatrixCell]:
        return [cell for row in self.rows for cell in row.cells]


def key_of(cell: DraftCell) -> str:
    """Return the key of its cell in the matrix."""
    return f"{cell.tenant_id}-{cell.gpu_type_id}"


def matrix(request: HttpRequest, also: Collection[str] = ()) -> ShownPart:
    """Return the cells that the reader may see, with their text from the request, else from the
    reader's draft. `also`: keys of cells to show wherever they are."""
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
        text = Names("choice of tenants", fixed=(MINE,)).none_such(filters["edited"])
        unknown["edited"] = UnknownFilter("edited", filters["edited"], text)
        wanted = []
    page = Paginator(wanted, max(1, CELLS // max(1, len(types)))).get_page(request.GET.get("page"))
    # Do not drop typed text even if the page has other tenants by now.
    posted = {name.removeprefix("q-") for name in request.POST if name.startswith("q-")}
    posted |= set(also)
    of_tenants, of_types = ({key.split("-")[at] for key in posted if "-" in key} for at in (0, 1))
    of_page = {t.pk for t, _ in page.object_list}
    lines = [(t, d) for t, d in tenants if t.pk in of_page or str(t.pk) in of_tenants]
    columns = [t for t in all_types if t in types or str(t.pk) in of_types]
    quotas = Quota.objects.filter(tenant__in=[t.pk for t, _ in lines], gpu_type__in=columns)
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
                # If somebody has meanwhile set the same value, it is no longer an edit; another
                # value starts a new edit.
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
        filters, unknown, tenants, all_types, columns, page, rows, drafted, orders, placed, access,
        [t for t, _ in wanted], list(uses.values()),
    )  # fmt: skip


def longest_bars(uses: Iterable[QuotaUse]) -> dict[str, int]:
    """Return the milli-GPU of the longest bar of each GPU model, so that equal bars mean equal
    amounts."""
    found: dict[str, int] = {}
    for use in uses:
        length = bar_milli(use.used, use.guaranteed, use.borrowed, use.lent)
        found[use.gpu_model] = max(length, found.get(use.gpu_model, 0))
    return found


def savebar(request: HttpRequest, shown: ShownPart) -> dict[str, Any]:
    """Return a summary of the edits, and which part of the matrix they are in."""
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
