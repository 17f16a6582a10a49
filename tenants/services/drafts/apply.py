"""Make the quotas what a draft says, all of them or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tenants.errors import DomainError, Invalid, Stale
from tenants.models import DraftCell, Quota, QuotaDraft, User
from tenants.services.drafts.edits import empty, locked_draft
from tenants.services.drafts.wanted import is_edit, wanted
from tenants.services.quota_sheet import QuotaEdit, SheetRefused, change_quotas
from tenants.services.quotas import QuotaChangeResult, reason_faults
from tenants.services.transactions import unit_of_work


@dataclass(frozen=True, slots=True)
class DraftTried:
    """What became, or would become, of a draft. `cells`: those that say another quota than
    there is; by their place in it what they did, and what stands against them: then nothing was
    changed."""

    draft: QuotaDraft
    cells: Sequence[DraftCell]
    results: Mapping[int, QuotaChangeResult]
    errors: Mapping[int, DomainError]

    @property
    def after(self) -> dict[tuple[str, str], Quota | None]:
        """The quotas as they would be, by tenant and GPU type."""
        return {
            (cell.tenant.name, cell.gpu_type.name): self.results[at].quota
            for at, cell in enumerate(self.cells)
            if at in self.results
        }

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
    """Apply the actor's draft, which is empty afterwards; where something stands against a cell of
    it, or with `dry_run`, nothing is changed. `expected_version`: of the draft as it was read; None
    = whichever it is. Raises Invalid (reason) and Stale."""
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
        cells = edits_of(draft)
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
        results: Mapping[int, QuotaChangeResult] = {}
        try:
            results = change_quotas(
                actor, edits, reason=reason, source=source, dry_run=dry_run or bool(errors)
            )
        except SheetRefused as refused:
            errors |= {places[index]: error for index, error in refused.errors.items()}
        if not errors:
            empty(draft)
    return DraftTried(draft, cells, {places[i]: one for i, one in results.items()}, errors)


def edits_of(draft: QuotaDraft) -> list[DraftCell]:
    """The cells that say another quota than there is, or none that can be read."""
    cells = list(draft.cells.select_related("tenant", "gpu_type"))
    rows = Quota.objects.filter(tenant__in={cell.tenant_id for cell in cells}).order_by()
    now = {(quota.tenant_id, quota.gpu_type_id): quota for quota in rows}
    return [cell for cell in cells if is_edit(cell, now.get((cell.tenant_id, cell.gpu_type_id)))]
