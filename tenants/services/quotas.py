"""Change and withdraw quotas, with the sums, the rights and the audit record they need."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import F
from django.utils import timezone

from tenants import facts
from tenants.errors import FieldError, Invalid, NotAllowed, NotFound, Stale
from tenants.models import MAX_MILLI, AuditRecord, GpuType, Quota, QuotaMode, Tenant, User
from tenants.permissions import Access, access_of
from tenants.selectors import parents_by_id, subtree_ids
from tenants.services import audit
from tenants.services.quota_sums import Excess, excess_of
from tenants.services.transactions import unit_of_work

NAMED_JOBS = 5  # of those a warning speaks of


@dataclass(frozen=True, slots=True)
class QuotaChangeResult:
    """The quota as it is (or would be) now, and sentences worth reading before it is. Not
    `changed`: it was so before."""

    quota: Quota
    warnings: tuple[str, ...] = ()
    created: bool = False
    changed: bool = True


def change_quota(
    actor: User,
    tenant: Tenant,
    gpu_type: GpuType,
    *,
    guaranteed_milli: int,
    mode: str,
    borrow_limit_milli: int | None,
    lend_limit_milli: int | None,
    expected_version: int,
    reason: str,
    source: str,
    overcommit: bool = False,
    reverts: AuditRecord | None = None,
    dry_run: bool = False,
) -> QuotaChangeResult:
    """Set what a tenant is guaranteed of a GPU type, and what it may borrow and lend.

    Limits: None = unlimited. `expected_version` 0 = there is no quota yet. `overcommit` lets an
    operator promise more than is installed. `reverts`: the change that this one takes back.
    Raises NotFound, NotAllowed, Invalid (fields guaranteed, mode, borrow_limit, lend_limit,
    reason) and Stale.
    """
    access = _may_change(actor, tenant, overcommit=overcommit)
    faults = value_faults(guaranteed_milli, mode, borrow_limit_milli, lend_limit_milli)
    if faults := [*faults, *_reason_faults(reason)]:
        raise Invalid.fields(faults)
    values = {
        "guaranteed_milli": guaranteed_milli,
        "mode": str(mode),
        "borrow_limit_milli": borrow_limit_milli,
        "lend_limit_milli": lend_limit_milli,
    }
    with unit_of_work(dry_run):
        before = _locked(tenant, gpu_type, expected_version)
        warnings = _check_sums(access, tenant, gpu_type, guaranteed_milli, overcommit=overcommit)
        if before is not None and all(getattr(before, n) == v for n, v in values.items()):
            return QuotaChangeResult(before, tuple(warnings), changed=False)
        quota = _stored(before, tenant, gpu_type, values)
        audit.record(
            actor,
            "quota.changed",
            f"{tenant.name} / {gpu_type.name}",
            tenant=tenant,
            before=as_document(before),
            after=as_document(quota),
            reason=reason.strip(),
            source=source,
            reverts=reverts,
        )
    return QuotaChangeResult(
        quota, (*warnings, *_use_warnings(quota, before)), created=before is None
    )


def delete_quota(
    actor: User,
    tenant: Tenant,
    gpu_type: GpuType,
    *,
    expected_version: int,
    reason: str,
    source: str,
    reverts: AuditRecord | None = None,
    dry_run: bool = False,
) -> tuple[str, ...]:
    """Withdraw a quota; running jobs go on. Returns warnings; raises as `change_quota`."""
    _may_change(actor, tenant, overcommit=False)
    _check_reason(reason)
    with unit_of_work(dry_run):
        quota = _locked(tenant, gpu_type, expected_version)
        if quota is None:
            raise NotFound(f"Tenant “{tenant.name}” has no quota for {gpu_type.name}.")
        before = as_document(quota)
        Quota.objects.filter(id=quota.pk, version=expected_version).delete()
        audit.record(
            actor,
            "quota.deleted",
            f"{tenant.name} / {gpu_type.name}",
            tenant=tenant,
            before=before,
            reason=reason.strip(),
            source=source,
            reverts=reverts,
        )
    held = sum(h.milli for h in _holdings(tenant, gpu_type))
    return (f"{tenant.name} still holds {_gpus(held)}; its jobs go on.",) if held else ()


def as_document(quota: Quota | None) -> dict[str, Any] | None:
    """A quota in the audit trail: GPUs, not milli-GPUs; null limits are unlimited."""
    if quota is None:
        return None
    return {
        "guaranteed": quota.guaranteed_milli / 1000,
        "mode": str(quota.mode),
        "borrow_limit": _or_none(quota.borrow_limit_milli),
        "lend_limit": _or_none(quota.lend_limit_milli),
        "version": quota.version,
    }


def _may_change(actor: User, tenant: Tenant, *, overcommit: bool) -> Access:
    access = access_of(actor)
    if not access.may_view(tenant.pk):
        raise NotFound(f"There is no tenant “{tenant.name}” that you may see.")
    if not access.may_administer_from_above(tenant.pk):
        raise NotAllowed(
            f"The quota of “{tenant.name}” is set by operators and by tenant admins of a tenant "
            "above it."
        )
    if overcommit and not access.operator:
        raise NotAllowed("Only operators may promise more GPUs than are installed.")
    return access


def value_faults(
    guaranteed: int, mode: str, borrow: int | None, lend: int | None
) -> list[FieldError]:
    """What is wrong with the values of a quota by themselves, in milli-GPU; limits: None =
    unlimited."""
    faults: list[FieldError] = []
    amounts = {"guaranteed": guaranteed, "borrow_limit": borrow, "lend_limit": lend}
    for name, milli in amounts.items():
        if milli is not None and not 0 <= milli <= MAX_MILLI:
            detail = f"Must be from 0 to {MAX_MILLI // 1000} GPUs."
            faults.append(FieldError((name,), detail))
    if mode not in QuotaMode.values:
        faults.append(FieldError(("mode",), f"Choose {' or '.join(QuotaMode.values)}."))
    if mode == QuotaMode.ISOLATED:
        faults += [
            FieldError(
                (name,), "An isolated quota neither borrows nor lends. Leave it out, or share."
            )
            for name in ("borrow_limit", "lend_limit")
            if amounts[name] is not None
        ]
    elif lend is not None and lend > guaranteed:
        detail = f"{_gpus(lend)} is more than the guaranteed {_gpus(guaranteed)}."
        faults.append(FieldError(("lend_limit",), f"{detail} Lend at most what is guaranteed."))
    return faults


def _check_reason(reason: str) -> None:
    if faults := _reason_faults(reason):
        raise Invalid.fields(faults)


def _reason_faults(reason: str) -> list[FieldError]:
    if not reason.strip():
        return [FieldError(("reason",), "Say why; it is kept in the audit trail.")]
    if len(reason) > 2000 or "\0" in reason:
        return [FieldError(("reason",), "Use at most 2,000 characters of plain text.")]
    return []


def _locked(tenant: Tenant, gpu_type: GpuType, expected_version: int) -> Quota | None:
    """The quota as it is, with all other changes for this GPU type kept waiting.

    The sums span many rows, so a guard on one of them is not enough: touching the GPU type's row
    first makes changes of one GPU type follow each other on every database.
    """
    if not GpuType.objects.filter(id=gpu_type.pk).update(name=F("name")):
        raise NotFound(f"GPU type “{gpu_type.name}” was deleted meanwhile.")
    quotas = Quota.objects.select_related("tenant", "gpu_type")
    quota = quotas.filter(tenant=tenant, gpu_type=gpu_type).first()
    version = quota.version if quota else 0
    if version != expected_version:
        now = f"is at version {version}" if quota else "does not exist"
        raise Stale(
            f"The quota of “{tenant.name}” for {gpu_type.name} {now}; you expected version "
            f"{expected_version}. Read it again.",
            current_version=version,
            current=as_document(quota),
        )
    return quota


def _check_sums(
    access: Access, tenant: Tenant, gpu_type: GpuType, guaranteed: int, *, overcommit: bool
) -> Sequence[str]:
    rows = Quota.objects.filter(gpu_type=gpu_type).order_by()
    before = dict(rows.values_list("tenant_id", "guaranteed_milli"))
    after = {**before, tenant.pk: guaranteed}
    installed = facts.scheduling().installed_milli(gpu_type.name)
    excess = excess_of(parents_by_id(), before, after, installed)
    if excess is None:
        return ()
    owner = owner_of(excess, access)
    sentence = excess_sentence(excess, owner, gpu_type.name)
    if owner:
        raise Invalid.field("guaranteed", f"{sentence} Guarantee less below, or more to {owner}.")
    if overcommit:
        return (sentence,)
    remedy = "Guarantee less, or let an operator do it over REST, with ?overcommit=true."
    raise Invalid.field("guaranteed", f"{sentence} {remedy}")


def owner_of(excess: Excess, access: Access) -> str:
    """Whose guarantee is too small, for a sentence; not by name to whoever may not see the tenant.
    "" = the clusters are too small."""
    if excess.over is None:
        return ""
    if not access.may_view(excess.over):
        return "a hidden tenant"
    return f"“{Tenant.objects.get(id=excess.over).name}”"


def excess_sentence(excess: Excess, owner: str, gpu_type: str) -> str:
    """What of a GPU type would be promised, and what there is of it; `owner` as of `owner_of`."""
    exist = f"are guaranteed to {owner} above them" if owner else "are installed"
    promised, exists = _gpus(excess.promised), _gpus(excess.exists)
    return f"{gpu_type}: {promised} would be promised, {exists} {exist}."


def _stored(
    before: Quota | None, tenant: Tenant, gpu_type: GpuType, values: dict[str, Any]
) -> Quota:
    if before is None:
        quota = Quota(tenant=tenant, gpu_type=gpu_type, **values)
        quota.save(force_insert=True)
        return quota
    changed = Quota.objects.filter(id=before.pk, version=before.version).update(
        version=F("version") + 1, updated_at=timezone.now(), **values
    )
    after = Quota.objects.select_related("tenant", "gpu_type").filter(id=before.pk).first()
    if not changed or after is None:
        version = after.version if after else 0
        raise Stale(
            f"Somebody else changed the quota of “{tenant.name}” for {gpu_type.name} just now. "
            "Read it again.",
            current_version=version,
            current=as_document(after),
        )
    return after


def _use_warnings(quota: Quota, before: Quota | None) -> Sequence[str]:
    """What a smaller quota means for the jobs that hold GPUs now."""
    if before is None or quota.guaranteed_milli >= before.guaranteed_milli:
        return ()
    held = _holdings(quota.tenant, quota.gpu_type)
    used = sum(h.milli for h in held)
    over = used - quota.guaranteed_milli
    if over <= 0:
        return ()
    names, covered = [], 0
    for holding in held:
        if covered >= over:
            break
        covered += holding.milli
        names.append(holding.name)
    jobs = ", ".join(names[:NAMED_JOBS]) + (" and more" if len(names) > NAMED_JOBS else "")
    word = "job" if len(names) == 1 else "jobs"
    several = over > 1000
    what = (
        f"{'are' if several else 'is'} over the isolated quota: jobs go on, but nothing new starts"
        if quota.mode == QuotaMode.ISOLATED
        else f"{'become' if several else 'becomes'} borrowed and may be reclaimed"
    )
    return (
        f"{quota.tenant.name} uses {_gpus(used)} of {quota.gpu_type.name}: {_gpus(over)} {what} "
        f"({word} {jobs}).",
    )


def _holdings(tenant: Tenant, gpu_type: GpuType) -> list[facts.Holding]:
    return facts.scheduling().holdings(subtree_ids(tenant.pk), gpu_type.name)


def _gpus(milli: int) -> str:
    return f"{milli / 1000:,.10g} GPU{'s' if milli > 1000 or not milli else ''}"


def _or_none(milli: int | None) -> float | None:
    return None if milli is None else milli / 1000
