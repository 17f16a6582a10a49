"""What people see of drafts: all of their own, and of others' drafts what they may change
themselves."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TypeVar

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.text import Truncator

from tenants.errors import NotFound
from tenants.models import DraftCell, DraftTenant, GpuType, Quota, QuotaDraft, Tenant, User
from tenants.permissions import Access, access_of
from tenants.selectors import first_quota_record_since, last_quota_record, visible_names
from tenants.services.drafts.cell_text import guaranteed_in
from tenants.services.drafts.conflicts import FieldConflict, field_conflicts
from tenants.services.drafts.wanted import TERMS, fault_of, typed_in
from tenants.services.moves import typed as places
from tenants.services.moves.conflicts import OvertakenPlace, overtaken_place, shown_to
from tenants.services.quota_terms import QuotaTerms, gpus
from tenants.services.typed_gpus import as_typed

Row = TypeVar("Row", DraftCell, DraftTenant)
REASON_SHOWN = 200  # characters of a colleague's reason


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A quota that somebody has changed since an edit of it began.

    `by`, `reason`: "" when the audit trail does not say. `base`: the quota when the edit began;
    None = there was none, or it is unknown (see `known`). `mine`: the fields that the edit sets, as
    typed.
    """

    by: str
    reason: str
    base: QuotaTerms | None
    known: bool
    now: Quota | None
    mine: Mapping[str, str]

    @property
    def before(self) -> float | None:
        """The guarantee when the edit began, in GPUs."""
        return None if self.base is None else gpus(self.base.guaranteed)

    @property
    def fields(self) -> list[FieldConflict]:
        """Their, my and the original value of each field in which these differ."""
        theirs = QuotaTerms.of(self.now) if self.now else None
        return field_conflicts(self.mine, theirs, self.base)

    @property
    def who(self) -> str:
        return self.by or "Somebody"

    @property
    def why(self) -> str:
        """The reason in brackets, after a blank; "" when none is known."""
        reason = Truncator(self.reason).chars(REASON_SHOWN)
        return f" (“{reason}”)" if reason else ""

    @property
    def told(self) -> str:
        """The conflict in sentences: their, my and the original value of each field."""
        fields = {one.field: one for one in self.fields}
        of_guarantee = fields.get("guaranteed")
        if self.now is not None and (
            of_guarantee is None or of_guarantee.theirs == of_guarantee.base
        ):
            said = f"{self.who} changed this quota meanwhile{self.why}."
        else:
            fields.pop("guaranteed", None)
            now = f"set it to {as_typed(self.now.guaranteed_milli)}" if self.now else "removed it"
            said = f"{self.who} {now} meanwhile{self.why}"
            said += f"; you wrote {self.mine['guaranteed']}." if "guaranteed" in self.mine else "."
            if self.known and self.base is None:
                said += " There was no quota when you began."
            elif self.base is not None:
                said += f" It was {self.before:.12g} when you began."
        return " ".join((said, *(one.told for one in fields.values() if self.now)))


@dataclass(frozen=True, slots=True)
class SeenCell:
    """A cell of a draft, next to the quota as it is now."""

    cell: DraftCell
    quota: Quota | None
    overtaken: Overtaken | None

    @property
    def guaranteed(self) -> int | None:
        """In milli-GPU; None when the typed text cannot be read."""
        return guaranteed_in(self.cell.typed)

    @property
    def terms(self) -> dict[str, str]:
        """Mode and limits that the edit sets, as typed; "" = no limit."""
        fields = typed_in(self.cell)
        return {name: fields[name] for name in TERMS if name in fields}

    @property
    def fault(self) -> str:
        """Why the typed text cannot be read, and how to fix it; "" if it can."""
        return fault_of(self.cell.typed)


@dataclass(frozen=True, slots=True)
class SeenTenant:
    """A tenant of a draft, next to its current state. `names`: the tenants that the viewer sees;
    others are not named."""

    edit: DraftTenant
    names: Container[str]

    @property
    def fields(self) -> dict[str, str]:
        """What the draft sets, as typed, without the name of a parent that the viewer does not
        see."""
        return shown_to(self.names, self.edit.fields)

    @property
    def now(self) -> dict[str, str]:
        return shown_to(self.names, places.as_typed(self.edit.tenant))

    @property
    def told(self) -> list[str]:
        """What the draft changes compared with now, in words."""
        return places.in_words(self.fields, places.as_typed(self.edit.tenant))

    @property
    def fault(self) -> str:
        return places.fault_of(self.edit.fields)

    @property
    def overtaken(self) -> OvertakenPlace | None:
        found = overtaken_place(self.edit.tenant, self.edit.fields, self.edit.base)
        return found.seen_by(self.names) if found else None


def overtaken(
    tenant: Tenant,
    gpu_type: GpuType,
    version: int,
    quota: Quota | None,
    mine: Mapping[str, str],
) -> Overtaken:
    """Return who changed a quota since it was read at `version` (0 = there was none).

    To be called only for a quota that has changed. `mine`: the fields that an edit sets, as typed.
    """
    last = last_quota_record(tenant, gpu_type)
    first = first_quota_record_since(tenant, gpu_type, version)
    base = QuotaTerms.in_gpus(first.before) if first and first.before else None
    by, reason = (last.actor_name, last.reason) if last else ("", "")
    return Overtaken(by, reason, base, first is not None, quota, mine)


def visible_drafts(viewer: User) -> QuerySet[QuotaDraft]:
    """Return the drafts that contain anything the viewer may see."""
    access = access_of(viewer)
    cells = _visible(DraftCell.objects.order_by(), viewer, access)
    tenants = _visible(DraftTenant.objects.order_by(), viewer, access)
    return QuotaDraft.objects.select_related("author").filter(
        Exists(cells.filter(draft=OuterRef("pk"))) | Exists(tenants.filter(draft=OuterRef("pk")))
    )


def visible_draft(viewer: User, author: str) -> QuotaDraft:
    """Return a user's draft; raise NotFound also when the viewer may see nothing of it."""
    draft = visible_drafts(viewer).filter(author__username=author).first()
    if draft is None:
        mine = author == viewer.get_username()
        raise NotFound(
            "Your draft is empty. Add edits with PATCH."
            if mine
            else (
                f"There is no draft of “{author}” that you may see. GET /api/v1/quota-drafts "
                "lists all that you may see."
            )
        )
    return draft


def cells_seen(viewer: User, draft: QuotaDraft) -> list[SeenCell]:
    """Return the cells of a draft that the viewer may see."""
    rows = _visible(draft.cells.select_related("tenant", "gpu_type"), viewer, access_of(viewer))
    cells = list(rows)
    quotas = {
        (q.tenant_id, q.gpu_type_id): q
        for q in Quota.objects.filter(tenant__in={cell.tenant_id for cell in cells}).order_by()
    }
    found = [(cell, quotas.get((cell.tenant_id, cell.gpu_type_id))) for cell in cells]
    return [SeenCell(cell, quota, _overtaken(cell, quota)) for cell, quota in found]


def tenants_seen(viewer: User, draft: QuotaDraft) -> list[SeenTenant]:
    """Return the tenants of a draft that the viewer may see."""
    rows = draft.tenants.select_related("tenant__parent")
    found = list(_visible(rows, viewer, access_of(viewer)))
    names = visible_names(viewer) if found else frozenset[str]()
    return [SeenTenant(row, names) for row in found]


def own_tenants(user: User) -> list[DraftTenant]:
    """Return the tenants in the user's draft, each with the draft."""
    rows = DraftTenant.objects.filter(draft__author=user)
    return list(rows.select_related("draft", "tenant__parent"))


def tenants_of_others(viewer: User, access: Access) -> list[tuple[User, SeenTenant]]:
    """Return the tenants that others are about to change and that the viewer may change too, by
    author name."""
    rows = DraftTenant.objects.filter(_may_change(access)).exclude(draft__author=viewer)
    found = list(
        rows.select_related("draft__author", "tenant__parent").order_by(
            "draft__author__username", "tenant__name"
        )
    )
    names = visible_names(viewer) if found else frozenset[str]()
    return [(row.draft.author, SeenTenant(row, names)) for row in found]


def _overtaken(cell: DraftCell, quota: Quota | None) -> Overtaken | None:
    if cell.version == (quota.version if quota else 0):
        return None
    return overtaken(cell.tenant, cell.gpu_type, cell.version, quota, typed_in(cell))


def own_cells(user: User) -> list[DraftCell]:
    """Return the cells of the user's draft, each with the draft."""
    rows = DraftCell.objects.filter(draft__author=user)
    return list(rows.select_related("draft", "tenant", "gpu_type"))


def own_cell(user: User, tenant: Tenant, gpu_type: GpuType) -> DraftCell | None:
    """Return the cell of the user's draft for one quota."""
    rows = DraftCell.objects.filter(draft__author=user, tenant=tenant, gpu_type=gpu_type)
    return rows.select_related("tenant", "gpu_type").first()


def cells_of_others(viewer: User, access: Access) -> list[DraftCell]:
    """Return the cells that others are about to change and that the viewer may change too, with
    drafts and authors, by author name."""
    rows = DraftCell.objects.filter(_may_change(access)).exclude(draft__author=viewer)
    return list(
        rows.select_related("draft__author", "tenant", "gpu_type").order_by(
            "draft__author__username", "tenant__name", "gpu_type__name"
        )
    )


def _visible(cells: QuerySet[Row], viewer: User, access: Access) -> QuerySet[Row]:
    own = Q(draft__author=viewer)
    if viewer.only_in is not None:  # a token for one tenant hides the author's other tenants
        own &= _may_change(access)
    return cells.filter(own | _may_change(access))


def _may_change(access: Access) -> Q:
    """Select the rows of tenants whose quotas a holder of these rights may set."""
    if access.operator:
        return ~Q(pk__in=[])
    mine = [t for t in access.parents if access.may_administer_from_above(t)]
    return Q(tenant__in=mine)
