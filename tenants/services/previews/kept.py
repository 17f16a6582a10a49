"""Previews are kept until their change is made, then next to its records in the audit trail.

A preview is found by a digest of the change's content, so it does not matter who looked at it or
how the change is made.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from hashlib import sha256
from typing import Any

from django.utils import timezone

from tenants import facts
from tenants.effects import NO_TENANTS, AffectedJob, Effects, PlannedTenant
from tenants.models import AuditRecord, ChangePreview, Quota, Tenant, User
from tenants.services.quota_terms import QuotaTerms, gpus
from tenants.services.tenant_terms import FELT_BY_JOBS, planned

KEPT = timedelta(days=7)  # when the change is not made
JOBS_KEPT = 5  # of each list
LOANS_KEPT = 10
BORROWERS_KEPT = 50
LONGEST_WHY = 200

QuotaKey = tuple[str, str]  # tenant, GPU type
Document = dict[str, Any]


def quota_effects(
    viewer: User,
    after: Mapping[QuotaKey, Quota | None],
    tenants: Mapping[str, PlannedTenant] = NO_TENANTS,
) -> Effects:
    """Predict what these quotas (None = no quota) and these tenants would do to jobs, and keep the
    prediction for when they are stored."""
    effects = facts.scheduling().quota_effects(viewer, after, tenants)
    terms = {key: QuotaTerms.of(quota) if quota else None for key, quota in after.items()}
    # A tenant may borrow GPUs of every type.
    types = [] if tenants else sorted({gpu_type for _, gpu_type in after})
    keep(viewer, digest_of_change(terms, tenants), effects, gpu_types=types)
    return effects


def tenant_effects(viewer: User, tenant: Tenant, changed: Collection[str]) -> Effects:
    """Predict what a tenant with these changed fields would do to jobs. Fields that do not affect
    existing jobs need no prediction."""
    if FELT_BY_JOBS.isdisjoint(changed):
        return Effects(timezone.now())
    return quota_effects(viewer, {}, {tenant.name: planned(tenant)})


def digest_of_quotas(after: Mapping[QuotaKey, QuotaTerms | None]) -> str:
    """Return the digest of a change of quotas; it depends only on the quotas and their new
    terms."""
    return digest_of(["quotas", _rows(after)])


def digest_of_change(
    after: Mapping[QuotaKey, QuotaTerms | None], tenants: Mapping[str, PlannedTenant]
) -> str:
    """Return the digest of a change of quotas and tenants."""
    if not tenants:
        return digest_of_quotas(after)
    told = [[name, asdict(one)] for name, one in sorted(tenants.items())]
    return digest_of(["quotas and tenants", _rows(after), told])


def _rows(after: Mapping[QuotaKey, QuotaTerms | None]) -> list[Any]:
    return [[*key, asdict(terms) if terms else None] for key, terms in sorted(after.items())]


def digest_of(change: Any) -> str:
    """Return the digest of a change given as JSON."""
    text = json.dumps(change, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def keep(
    viewer: User,
    digest: str,
    effects: Effects,
    *,
    gpu_types: Sequence[str] = (),
    cluster: str = "",
) -> None:
    """Keep what somebody was told about a change of these GPU types, or of a cluster. Without a
    prediction there is nothing to keep."""
    if effects.until is None:
        return
    ChangePreview.objects.update_or_create(
        author=viewer,
        digest=digest,
        changed_at=None,
        defaults={
            "gpu_types": list(gpu_types),
            "cluster": cluster,
            "as_of": effects.as_of,
            "told": told_of(effects),
            "borrowed": borrowed(gpu_types),
        },
    )


def attach(digest: str, records: Sequence[AuditRecord]) -> None:
    """Link the records of a change that was made to its newest preview, if there is one."""
    found = ChangePreview.objects.filter(digest=digest, changed_at=None).order_by("-made_at")
    preview = found.only("pk").first()
    if preview is None or not records:
        return
    AuditRecord.objects.filter(pk__in=[one.pk for one in records]).update(preview=preview)
    ChangePreview.objects.filter(pk=preview.pk).update(changed_at=timezone.now())


def forget_old_previews() -> int:
    """Delete old previews of changes that nobody made; return how many."""
    old = ChangePreview.objects.filter(changed_at=None, made_at__lt=timezone.now() - KEPT)
    return old.delete()[0]


def borrowed(gpu_types: Sequence[str]) -> list[Document]:
    """Return who borrows how many GPUs of these types now, the most first; of all types when none
    is named."""
    uses = facts.scheduling().quota_uses().values()
    rows = [use for use in uses if use.borrowed and (not gpu_types or use.gpu_model in gpu_types)]
    rows.sort(key=lambda use: (-use.borrowed, use.tenant, use.gpu_model))
    return [
        {"tenant": use.tenant, "gpu_type": use.gpu_model, "gpus": gpus(use.borrowed)}
        for use in rows[:BORROWERS_KEPT]
    ]


# --- as it is kept --------------------------------------------------------------------------------
def told_of(effects: Effects) -> Document:
    """Return the counts, and the first few entries of each list."""
    assert effects.until is not None
    return {
        "until": effects.until.isoformat(),
        "counts": asdict(effects.counts),
        "starts": [job_of(job) for job in effects.starts[:JOBS_KEPT]],
        "stops": [
            job_of(one.job) | {"pods": one.pods, "whole": one.whole, "lost_gpu_s": one.lost_gpu_s}
            for one in effects.stops[:JOBS_KEPT]
        ],
        "impossible": [
            job_of(one.job) | {"why": one.why[:LONGEST_WHY]}
            for one in effects.impossible[:JOBS_KEPT]
        ],
        "loans": [
            asdict(loan) | {"before": gpus(loan.before), "after": gpus(loan.after)}
            for loan in effects.loans[:LOANS_KEPT]
        ],
        "troubles": [text[:LONGEST_WHY] for text in effects.troubles[:JOBS_KEPT]],
    }


def job_of(job: AffectedJob) -> Document:
    known = {"job": job.job, "name": job.name, "tenant": job.tenant}
    return known | {"gpus": gpus(job.gpu_milli)}
