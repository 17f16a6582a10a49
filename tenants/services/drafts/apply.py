"""Apply a draft of quota and tenant changes, all of it or nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tenants.effects import PlannedTenant
from tenants.errors import DomainError, Invalid, Stale
from tenants.models import DraftCell, DraftTenant, Quota, QuotaDraft, User
from tenants.services.audit import reason_faults
from tenants.services.drafts.edits import empty, locked_draft
from tenants.services.drafts.wanted import is_edit, wanted
from tenants.services.moves.change import (
    ChangedTogether,
    ChangeRefused,
    PlaceChange,
    PlaceChanged,
    change_together,
)
from tenants.services.moves.typed import meant
from tenants.services.quota_sheet import QuotaEdit, sheet_changes
from tenants.services.quotas import QuotaChangeResult
from tenants.services.transactions import unit_of_work


@dataclass(frozen=True, slots=True)
class DraftTried:
    """What became, or would become, of a draft.

    `cells`: those that differ from the stored quota. `results` and `errors` are indexed by their
    position; with any error nothing was changed. `tenants` and their results and errors: the same
    for tenants with another parent or weight.
    """

    draft: QuotaDraft
    cells: Sequence[DraftCell]
    results: Mapping[int, QuotaChangeResult]
    errors: Mapping[int, DomainError]
    tenants: Sequence[DraftTenant] = ()
    tenant_results: Mapping[int, PlaceChanged] = field(default_factory=dict)
    tenant_errors: Mapping[int, DomainError] = field(default_factory=dict)

    @property
    def refused(self) -> bool:
        return bool(self.errors or self.tenant_errors)

    @property
    def count(self) -> int:
        """The number of quotas and tenants that it would change."""
        return len(self.cells) + len(self.tenants)

    @property
    def after(self) -> dict[tuple[str, str], Quota | None]:
        """The quotas as they would be, by tenant and GPU type."""
        return {
            (cell.tenant.name, cell.gpu_type.name): self.results[at].quota
            for at, cell in enumerate(self.cells)
            if at in self.results
        }

    @property
    def planned(self) -> dict[str, PlannedTenant]:
        """The tenants that would get another parent or weight."""
        return {one.tenant.name: one.planned for one in self.tenant_results.values()}

    @property
    def warnings(self) -> list[str]:
        return [text for at in sorted(self.results) for text in self.results[at].warnings]


def try_draft(
    actor: User,
    *,
    reason: str,
    source: str,
    expected_version: int | None = None,
    dry_run: bool = False,
) -> DraftTried:
    """Apply the actor's draft and empty it. On any error in a cell or tenant, or with `dry_run`,
    change nothing.

    `expected_version`: of the draft as it was read; None = any. Raises Invalid (reason) and Stale.
    """
    if faults := reason_faults(reason):
        raise Invalid.fields(faults)
    with unit_of_work(dry_run):
        draft = locked_draft(actor)
        if expected_version not in (None, draft.version):
            raise Stale(
                f"Your draft is at version {draft.version}; you expected version "
                f"{expected_version}. Read it again.",
                current_version=draft.version,
            )
        cells, tenants = edits_of(draft), list(draft.tenants.select_related("tenant__parent"))
        errors: dict[int, DomainError] = {}
        edits, places = [], []
        for at, cell in enumerate(cells):
            try:
                fields = wanted(cell)
            except Invalid as error:
                errors[at] = error
                continue
            edits.append(QuotaEdit(cell.tenant, cell.gpu_type, fields, cell.version))
            places.append(at)
        tenant_errors: dict[int, DomainError] = {}
        changes, numbers = [], []
        for at, one in enumerate(tenants):
            try:
                changes.append(PlaceChange(one.tenant, meant(one.fields), one.base))
            except Invalid as error:
                tenant_errors[at] = error
                continue
            numbers.append(at)
        done = ChangedTogether({}, {})
        try:
            done = change_together(
                actor,
                changes,
                sheet_changes(edits, reason=reason, source=source),
                reason=reason,
                source=source,
                dry_run=dry_run or bool(errors or tenant_errors),
            )
        except ChangeRefused as refused:
            errors |= {places[index]: error for index, error in refused.quotas.items()}
            tenant_errors |= {numbers[index]: error for index, error in refused.tenants.items()}
        if not errors and not tenant_errors:
            empty(draft)
    return DraftTried(
        draft,
        cells,
        {places[i]: one for i, one in done.quotas.items()},
        errors,
        tenants,
        {numbers[i]: one for i, one in done.tenants.items()},
        tenant_errors,
    )


def edits_of(draft: QuotaDraft) -> list[DraftCell]:
    """Return the cells that differ from the stored quota, or that cannot be read."""
    cells = list(draft.cells.select_related("tenant", "gpu_type"))
    rows = Quota.objects.filter(tenant__in={cell.tenant_id for cell in cells}).order_by()
    now = {(quota.tenant_id, quota.gpu_type_id): quota for quota in rows}
    return [cell for cell in cells if is_edit(cell, now.get((cell.tenant_id, cell.gpu_type_id)))]
