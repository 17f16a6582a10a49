"""Change and withdraw quotas, with the checks of sums and rights and the audit record that this
needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import F
from django.utils import timezone

from tenants import facts
from tenants.errors import Invalid, NotAllowed, NotFound, Stale
from tenants.models import AuditRecord, GpuType, Quota, QuotaMode, Tenant, User
from tenants.permissions import Access, access_of
from tenants.selectors import parents_by_id, subtree_ids
from tenants.services import audit, locks
from tenants.services.approval import check_alone
from tenants.services.previews.kept import attach, digest_of_quotas
from tenants.services.quota_sums import Overpromise, excess_of
from tenants.services.quota_terms import QuotaChange, QuotaTerms, as_document, in_words
from tenants.services.transactions import unit_of_work

NAMED_JOBS = 5  # most jobs that a warning names


@dataclass(frozen=True, slots=True)
class QuotaChangeResult:
    """The quota as it is (or would be) now, warnings, and the record of the change. Not `changed`:
    it was already so."""

    quota: Quota
    warnings: tuple[str, ...] = ()
    created: bool = False
    changed: bool = True
    record: AuditRecord | None = None


def change_quota(
    actor: User,
    change: QuotaChange,
    terms: QuotaTerms,
    *,
    overcommit: bool = False,
    agreed: bool = False,
    approved: bool = False,
    alone: bool = True,
    summed: bool = True,
    dry_run: bool = False,
) -> QuotaChangeResult:
    """Set what a tenant is guaranteed of a GPU type, and what it may borrow and lend.

    `overcommit` lets an operator guarantee more than is installed. `agreed`: the actor's rights
    were checked when the change was agreed on. `approved`: the caller checks whether it needs a
    second person. `alone`: it is the whole change that was previewed, if anybody did. `summed`:
    check the sums here. Raises NotFound, NotAllowed, Invalid (fields of the terms, reason), Stale
    and Conflict.
    """
    access = access_of(actor)
    if not agreed:
        may_change(access, change.tenant, overcommit=overcommit)
    if faults := [*terms.faults(), *audit.reason_faults(change.reason)]:
        raise Invalid.fields(faults)
    with unit_of_work(dry_run):
        before = _locked(change)
        warnings: Sequence[str] = ()
        if summed:
            warnings = _check_sums(access, change, terms.guaranteed, overcommit=overcommit)
        if before is not None and QuotaTerms.of(before) == terms:
            return QuotaChangeResult(before, tuple(warnings), changed=False)
        if not (agreed or approved):
            check_alone(abs(terms.guaranteed - (before.guaranteed_milli if before else 0)))
        quota = _stored(before, change, terms)
        record = _record(actor, change, before, quota)
        if alone:
            attach(digest_of_quotas({change.key: terms}), [record])
    return QuotaChangeResult(
        quota,
        (*warnings, *_use_warnings(quota, before)),
        created=before is None,
        record=record,
    )


def delete_quota(
    actor: User,
    change: QuotaChange,
    *,
    agreed: bool = False,
    alone: bool = True,
    dry_run: bool = False,
) -> tuple[str, ...]:
    """Withdraw a quota; running jobs continue. Returns warnings. `agreed`, `alone` and exceptions
    as in `change_quota`."""
    tenant, gpu_type = change.tenant, change.gpu_type
    if not agreed:
        may_change(access_of(actor), tenant)
    if faults := audit.reason_faults(change.reason):
        raise Invalid.fields(faults)
    with unit_of_work(dry_run):
        quota = _locked(change)
        if quota is None:
            raise NotFound(f"Tenant “{tenant.name}” has no quota for {gpu_type.name}.")
        if not agreed:
            check_alone(quota.guaranteed_milli)
        record = _record(actor, change, quota, None)
        if alone:
            attach(digest_of_quotas({change.key: None}), [record])
        Quota.objects.filter(id=quota.pk, version=change.expected_version).delete()
    held = sum(h.milli for h in _holdings(tenant, gpu_type))
    return (f"{tenant.name} still holds {in_words(held)}; its jobs keep running.",) if held else ()


def _record(
    actor: User, change: QuotaChange, before: Quota | None, after: Quota | None
) -> AuditRecord:
    return audit.record(
        actor,
        "quota.deleted" if after is None else "quota.changed",
        change.subject,
        tenant=change.tenant,
        before=as_document(before),
        after=as_document(after),
        reason=change.reason.strip(),
        source=change.source,
        reverts=change.reverts,
    )


def may_change(access: Access, tenant: Tenant, *, overcommit: bool = False) -> None:
    """Raise NotFound or NotAllowed when a holder of these rights may not set the tenant's
    quotas."""
    if not access.may_view(tenant.pk):
        raise NotFound(f"There is no tenant “{tenant.name}” that you may see.")
    if not access.may_administer_from_above(tenant.pk):
        raise NotAllowed(
            f"Only operators and tenant admins of a tenant above “{tenant.name}” can set its quota."
        )
    if overcommit and not access.operator:
        raise NotAllowed("Only operators can guarantee more GPUs than are installed.")


def _locked(change: QuotaChange) -> Quota | None:
    """Return the quota, locked against all other changes for this GPU type.

    The sums span many rows, so locking one of them is not enough: updating the GPU type's row first
    serializes changes of that GPU type on every database.
    """
    tenant, gpu_type = change.tenant, change.gpu_type
    locks.keep(Tenant, [tenant.pk])
    if not GpuType.objects.filter(id=gpu_type.pk).update(name=F("name")):
        raise NotFound(f"GPU type “{gpu_type.name}” was deleted meanwhile.")
    quotas = Quota.objects.select_related("tenant", "gpu_type")
    quota = quotas.filter(tenant=tenant, gpu_type=gpu_type).first()
    version = quota.version if quota else 0
    if version != change.expected_version:
        now = f"is at version {version}" if quota else "does not exist"
        raise Stale(
            f"The quota of “{tenant.name}” for {gpu_type.name} {now}; you expected version "
            f"{change.expected_version}. Read it again.",
            current_version=version,
            current=as_document(quota),
        )
    return quota


def _check_sums(
    access: Access, change: QuotaChange, guaranteed: int, *, overcommit: bool
) -> Sequence[str]:
    gpu_type = change.gpu_type
    rows = Quota.objects.filter(gpu_type=gpu_type).order_by()
    before = dict(rows.values_list("tenant_id", "guaranteed_milli"))
    after = {**before, change.tenant.pk: guaranteed}
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
    remedy = "Guarantee less, or ask an operator to set it over REST with overcommit=true."
    raise Invalid.field("guaranteed", f"{sentence} {remedy}")


def owner_of(excess: Overpromise, access: Access) -> str:
    """Return whose guarantee is too small, for a sentence, without the name of a tenant that the
    actor may not see. "" = the clusters are too small."""
    if excess.over is None:
        return ""
    if not access.may_view(excess.over):
        return "a hidden tenant"
    return f"“{Tenant.objects.get(id=excess.over).name}”"


def excess_sentence(excess: Overpromise, owner: str, gpu_type: str) -> str:
    """Say how much of a GPU type would be guaranteed and how much exists; `owner` comes from
    `owner_of`."""
    if owner:
        exist = f"are guaranteed to {owner} above them"
    else:
        may_come = facts.scheduling().may_come_milli(gpu_type)
        exist = "are installed or can be added by node groups" if may_come else "are installed"
    promised, exists = in_words(excess.promised), in_words(excess.exists)
    return f"{gpu_type}: {promised} would be promised, {exists} {exist}."


def _stored(before: Quota | None, change: QuotaChange, terms: QuotaTerms) -> Quota:
    tenant, gpu_type = change.tenant, change.gpu_type
    if before is None:
        quota = Quota(tenant=tenant, gpu_type=gpu_type, **terms.columns())
        quota.save(force_insert=True)
        return quota
    changed = Quota.objects.filter(id=before.pk, version=before.version).update(
        version=F("version") + 1, updated_at=timezone.now(), **terms.columns()
    )
    after = Quota.objects.select_related("tenant", "gpu_type").filter(id=before.pk).first()
    if not changed or after is None:
        version = after.version if after else 0
        raise Stale(
            f"Somebody else has just changed the quota of “{tenant.name}” for {gpu_type.name}. "
            "Read it again.",
            current_version=version,
            current=as_document(after),
        )
    return after


def _use_warnings(quota: Quota, before: Quota | None) -> Sequence[str]:
    """Return what a smaller quota means for the jobs that hold GPUs now."""
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
        f"{'are' if several else 'is'} over the isolated quota: jobs keep running, but nothing "
        "new starts"
        if quota.mode == QuotaMode.ISOLATED
        else f"{'become' if several else 'becomes'} borrowed and may be reclaimed"
    )
    return (
        f"{quota.tenant.name} uses {in_words(used)} of {quota.gpu_type.name}: {in_words(over)} "
        f"{what} ({word} {jobs}).",
    )


def _holdings(tenant: Tenant, gpu_type: GpuType) -> list[facts.JobHolding]:
    return facts.scheduling().holdings(subtree_ids(tenant.pk), gpu_type.name)
