"""Change several quotas together, all or none, as the quota matrix does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenants.errors import DomainError
from tenants.models import GpuType, Quota, Tenant, User
from tenants.permissions import lineage
from tenants.selectors import parents_by_id
from tenants.services import locks
from tenants.services.previews.kept import attach, digest_of_quotas
from tenants.services.quota_terms import QuotaChange, QuotaTerms, with_fields
from tenants.services.quotas import QuotaChangeResult, change_quota, delete_quota
from tenants.services.transactions import unit_of_work

REHEARSED = "rehearsal"


@dataclass(frozen=True, slots=True)
class QuotaEdit:
    """New values for fields of one quota, named as in `QuotaTerms`; `version` 0 = there was none
    when it was read."""

    tenant: Tenant
    gpu_type: GpuType
    fields: Mapping[str, Any]
    version: int


class SheetRefused(Exception):
    """Nothing was changed. `errors[i]` says why `edits[i]` is impossible."""

    def __init__(self, errors: dict[int, DomainError]) -> None:
        super().__init__("; ".join(e.detail for e in errors.values()))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class SheetChange:
    """`terms` None = withdraw the quota."""

    change: QuotaChange
    terms: QuotaTerms | None


def sheet_changes(edits: Sequence[QuotaEdit], *, reason: str, source: str) -> list[SheetChange]:
    """Apply the edits to the stored quotas; keep all other fields."""
    quotas = _stored({edit.tenant.pk for edit in edits})
    changes = []
    for edit in edits:
        quota = quotas.get((edit.tenant.pk, edit.gpu_type.pk))
        change = QuotaChange(edit.tenant, edit.gpu_type, edit.version, reason, source)
        changes.append(SheetChange(change, with_fields(quota, edit.fields)))
    return changes


def rehearse_quotas(
    actor: User, wanted: Sequence[tuple[Tenant, GpuType, QuotaTerms]], *, source: str
) -> list[Quota]:
    """Return the quotas as they would be with these terms, whatever their versions, without
    changing anything. Raises SheetRefused."""
    quotas = _stored({tenant.pk for tenant, _, _ in wanted})
    changes = []
    for tenant, gpu_type, terms in wanted:
        quota = quotas.get((tenant.pk, gpu_type.pk))
        version = quota.version if quota else 0
        changes.append(
            SheetChange(QuotaChange(tenant, gpu_type, version, REHEARSED, source), terms)
        )
    results = carried_out(actor, changes, dry_run=True)
    return [results[at].quota for at in range(len(changes))]


def _stored(tenants: set[int]) -> dict[tuple[int, int], Quota]:
    return {(q.tenant_id, q.gpu_type_id): q for q in Quota.objects.filter(tenant__in=tenants)}


def carried_out(
    actor: User,
    changes: Sequence[SheetChange],
    *,
    agreed: bool = False,
    in_part: bool = False,
    dry_run: bool = False,
) -> dict[int, QuotaChangeResult]:
    """Change several quotas in one transaction. The caller checks whether that needs a second
    person.

    `agreed`: the actor's rights were checked when the changes were agreed on. `in_part`: the
    changes are part of a larger one, whose caller checks the sums and attaches the preview.

    The order of the changes does not matter: GPUs may move from one tenant to another at full
    capacity. Raises SheetRefused with the errors of all changes.
    """
    quotas = _stored({one.change.tenant.pk for one in changes})
    results: dict[int, QuotaChangeResult] = {}
    errors: dict[int, DomainError] = {}
    with unit_of_work(dry_run):
        locks.keep(Tenant, [one.change.tenant.pk for one in changes])
        locks.in_turn(GpuType, [one.change.gpu_type.pk for one in changes])
        for index in _order(changes, quotas):
            change, terms = changes[index].change, changes[index].terms
            try:
                if terms is None:
                    delete_quota(actor, change, agreed=agreed, alone=False)
                else:
                    results[index] = change_quota(
                        actor,
                        change,
                        terms,
                        agreed=agreed,
                        approved=not agreed,
                        alone=False,
                        summed=not in_part,
                    )
            except DomainError as error:
                errors[index] = error
        if errors:
            raise SheetRefused(errors)
        if not in_part:
            records = [result.record for result in results.values() if result.record]
            attach(digest_of_quotas({one.change.key: one.terms for one in changes}), records)
    return results


def _order(changes: Sequence[SheetChange], quotas: dict[tuple[int, int], Quota]) -> list[int]:
    """Put reductions first, from the leaves of the tree upwards, then increases, from the root
    downwards, so that no intermediate sum is broken when the final one holds."""
    parents = parents_by_id()

    def key(index: int) -> tuple[int, int]:
        change, terms = changes[index].change, changes[index].terms
        quota = quotas.get((change.tenant.pk, change.gpu_type.pk))
        less = (terms.guaranteed if terms else 0) < (quota.guaranteed_milli if quota else 0)
        depth = sum(1 for _ in lineage(parents, change.tenant.pk))
        return (0, -depth) if less else (1, depth)

    return sorted(range(len(changes)), key=key)
