"""Change several quotas together, all or none: what the matrix of the pages does."""

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
    """The fields that one quota shall have, as `QuotaTerms` has them; `version` 0 = there was no
    quota when it was read."""

    tenant: Tenant
    gpu_type: GpuType
    fields: Mapping[str, Any]
    version: int


class SheetRefused(Exception):
    """Nothing was changed. `errors[i]` is why `edits[i]` cannot be."""

    def __init__(self, errors: dict[int, DomainError]) -> None:
        super().__init__("; ".join(e.detail for e in errors.values()))
        self.errors = errors


def change_quotas(
    actor: User,
    edits: Sequence[QuotaEdit],
    *,
    reason: str,
    source: str,
    dry_run: bool = False,
) -> dict[int, QuotaChangeResult]:
    """Set fields of several quotas in one transaction, keeping all others; whether that needs a
    second person is asked elsewhere.

    The order of the edits does not matter: GPUs may move from one tenant to another at full
    capacity. Raises SheetRefused with the faults of all edits together.
    """
    quotas = _stored({edit.tenant.pk for edit in edits})
    changes = []
    for edit in edits:
        quota = quotas.get((edit.tenant.pk, edit.gpu_type.pk))
        change = QuotaChange(edit.tenant, edit.gpu_type, edit.version, reason, source)
        changes.append(SheetChange(change, with_fields(quota, edit.fields)))
    return _carried_out(actor, changes, quotas, dry_run=dry_run, approved=True)


@dataclass(frozen=True, slots=True)
class SheetChange:
    """`terms` None = the quota is withdrawn."""

    change: QuotaChange
    terms: QuotaTerms | None


def carry_out_as_agreed(actor: User, changes: Sequence[SheetChange]) -> None:
    """Make changes for which nobody needs the right now, since somebody had it when they were
    agreed on. Raises SheetRefused."""
    quotas = _stored({one.change.tenant.pk for one in changes})
    _carried_out(actor, changes, quotas, dry_run=False, agreed=True)


def rehearse_quotas(
    actor: User, wanted: Sequence[tuple[Tenant, GpuType, QuotaTerms]], *, source: str
) -> list[Quota]:
    """The quotas as they would be with these terms, whatever their versions are; nothing is
    changed. Raises SheetRefused."""
    quotas = _stored({tenant.pk for tenant, _, _ in wanted})
    changes = []
    for tenant, gpu_type, terms in wanted:
        quota = quotas.get((tenant.pk, gpu_type.pk))
        version = quota.version if quota else 0
        changes.append(
            SheetChange(QuotaChange(tenant, gpu_type, version, REHEARSED, source), terms)
        )
    results = _carried_out(actor, changes, quotas, dry_run=True, approved=True)
    return [results[at].quota for at in range(len(changes))]


def _stored(tenants: set[int]) -> dict[tuple[int, int], Quota]:
    return {(q.tenant_id, q.gpu_type_id): q for q in Quota.objects.filter(tenant__in=tenants)}


def _carried_out(
    actor: User,
    changes: Sequence[SheetChange],
    quotas: dict[tuple[int, int], Quota],
    *,
    dry_run: bool,
    agreed: bool = False,
    approved: bool = False,
) -> dict[int, QuotaChangeResult]:
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
                        actor, change, terms, agreed=agreed, approved=approved, alone=False
                    )
            except DomainError as error:
                errors[index] = error
        if errors:
            raise SheetRefused(errors)
        records = [result.record for result in results.values() if result.record]
        attach(digest_of_quotas({one.change.key: one.terms for one in changes}), records)
    return results


def _order(changes: Sequence[SheetChange], quotas: dict[tuple[int, int], Quota]) -> list[int]:
    """What is given back first, from the leaves of the tree upwards; then what is given, from
    the root downwards: so no sum is broken on the way to one that holds."""
    parents = parents_by_id()

    def key(index: int) -> tuple[int, int]:
        change, terms = changes[index].change, changes[index].terms
        quota = quotas.get((change.tenant.pk, change.gpu_type.pk))
        less = (terms.guaranteed if terms else 0) < (quota.guaranteed_milli if quota else 0)
        depth = sum(1 for _ in lineage(parents, change.tenant.pk))
        return (0, -depth) if less else (1, depth)

    return sorted(range(len(changes)), key=key)
