"""Quotas of a replay: those that it changes, and the history of all of them in its period.

A quota as a document: {"tenant", "gpu_type", "guaranteed", "mode", "borrow_limit", "lend_limit"},
with amounts in milli-GPU; a limit of None = no limit.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from scheduling.engine.types import QuotaSpec, Sharing
from tenants import facts
from tenants.errors import FieldError
from tenants.models import AuditRecord, GpuType, Quota, Tenant
from tenants.selectors import parents_by_id
from tenants.services.quota_sums import excess_of
from tenants.services.quota_terms import QuotaTerms
from tenants.services.quotas import excess_sentence
from tenants.templatetags.ui import gpus

Key = tuple[str, str]  # names of tenant and GPU type
Quotas = dict[Key, QuotaSpec]
Document = Mapping[str, Any]

# Records closer than this belong to one change of several quotas; the scheduler sees them as one.
TOGETHER = timedelta(seconds=1)


# --- what is asked for ----------------------------------------------------------------------------
def whole(given: Document) -> dict[str, Any]:
    """Return the full document of a given quota; missing fields have their defaults, as in the
    quota API."""
    return {**given, **asdict(QuotaTerms.given(given))}


def faults_of(changes: Sequence[Document], added: Mapping[str, int]) -> list[FieldError]:
    """Return what is wrong with these quotas in place of the current ones; `added`: GPUs added (or
    removed) by GPU type."""
    tenants = set(Tenant.objects.values_list("name", flat=True))
    types = set(GpuType.objects.values_list("name", flat=True))
    found: list[FieldError] = []
    seen: set[Key] = set()
    for index, one in enumerate(changes):
        key, at = (one["tenant"], one["gpu_type"]), ("quotas", index)
        if key[0] not in tenants:
            detail = f"There is no tenant “{key[0]}”. GET /api/v1/tenants lists them."
            found.append(FieldError((*at, "tenant"), detail))
        if key[1] not in types:
            detail = f"There is no GPU type “{key[1]}”. GET /api/v1/gpu-types lists them."
            found.append(FieldError((*at, "gpu_type"), detail))
        if key in seen:
            detail = f"The quota of {key[0]} for {key[1]} is given twice. Give it once."
            found.append(FieldError((*at, "tenant"), detail))
        seen.add(key)
        faults = QuotaTerms.given(one).faults()
        found += [FieldError((*at, *fault.path), fault.detail) for fault in faults]
    return found or _sum_faults(changes, added)


def _sum_faults(changes: Sequence[Document], added: Mapping[str, int]) -> list[FieldError]:
    """Return guarantees that exceed what they are made from, as in the quota API; all quotas change
    at once."""
    ids = dict(Tenant.objects.values_list("name", "pk"))
    names, parents = {pk: name for name, pk in ids.items()}, parents_by_id()
    by_type: dict[str, dict[str, int]] = {}
    for index, one in enumerate(changes):
        by_type.setdefault(one["gpu_type"], {})[one["tenant"]] = index
    found = []
    for gpu_type, entries in by_type.items():
        rows = Quota.objects.filter(gpu_type__name=gpu_type).order_by()
        before = dict(rows.values_list("tenant_id", "guaranteed_milli"))
        wanted = {ids[name]: changes[index]["guaranteed"] for name, index in entries.items()}
        installed = facts.scheduling().installed_milli(gpu_type)
        if installed is not None:
            installed += 1000 * added.get(gpu_type, 0)
        excess = excess_of(parents, before, {**before, **wanted}, installed)
        if excess is not None:
            raised = [
                index
                for name, index in entries.items()
                if changes[index]["guaranteed"] > before.get(ids[name], 0)
            ]
            owner, remedy = "", "Guarantee less, or have more nodes."
            if excess.over is not None:
                owner, remedy = f"“{names[excess.over]}”", "Guarantee less below, or more above."
            detail = f"{excess_sentence(excess, owner, gpu_type)} {remedy}"
            at = min(raised, default=min(entries.values()))
            found.append(FieldError(("quotas", at, "guaranteed"), detail))
    return found


def of_now(changes: Sequence[Document]) -> list[dict[str, Any]]:
    """Return documents of the current quotas that these would replace, where they exist."""
    now = stored()
    keys = [(one["tenant"], one["gpu_type"]) for one in changes]
    return [document_of(now[key]) for key in keys if key in now]


def document_of(quota: QuotaSpec) -> dict[str, Any]:
    return {
        "tenant": quota.tenant,
        "gpu_type": quota.gpu_model,
        "guaranteed": quota.guaranteed,
        "mode": quota.mode.value,
        "borrow_limit": quota.borrow_limit,
        "lend_limit": quota.lend_limit,
    }


def words(document: Document | None) -> str:
    """Describe a quota in a few words, e.g. "64 GPUs, borrows at most 16"."""
    if document is None:
        return "none"
    parts = [f"{gpus(document['guaranteed'])} GPUs"]
    if document["mode"] == Sharing.ISOLATED:
        parts.append("isolated")
    for name, verb in (("borrow_limit", "borrows"), ("lend_limit", "lends")):
        if document[name] is not None:
            parts.append(f"{verb} at most {gpus(document[name])}")
    return ", ".join(parts)


# --- as they were ---------------------------------------------------------------------------------
def over_time(
    since: datetime, until: datetime, changes: Sequence[Document] = ()
) -> Iterator[tuple[datetime, tuple[QuotaSpec, ...]]]:
    """Yield all quotas as of `since`, then as of each instant before `until` at which they changed,
    from the audit trail. Those of `changes` replace the real ones throughout."""
    tenants = set(Tenant.objects.values_list("name", flat=True))
    fixed = {
        (one["tenant"], one["gpu_type"]): _quota(one["tenant"], one["gpu_type"], one)
        for one in changes
    }
    now, later = stored(), list[tuple[datetime, Key, QuotaSpec | None]]()
    records = AuditRecord.objects.filter(action__startswith="quota.", at__gt=since)
    for record in records.order_by("-at", "-id"):
        tenant, _, gpu_type = record.subject.partition(" / ")
        key = (tenant, gpu_type)
        if tenant in tenants:  # else the tenant was deleted since, and never had a job
            _set(now, key, _recorded(key, record.before))
            later.append((record.at, key, _recorded(key, record.after)))
    later.reverse()

    def told() -> tuple[QuotaSpec, ...]:
        return tuple(quota for _, quota in sorted({**now, **fixed}.items()))

    last, at = told(), since
    yield since, last
    for index, (at, key, quota) in enumerate(later):
        if at >= until:
            break
        _set(now, key, quota)
        if index + 1 < len(later) and later[index + 1][0] - at < TOGETHER:
            continue
        if (found := told()) != last:
            last = found
            yield at, found


def changes_in(since: datetime, until: datetime) -> Counter[Key]:
    """Return how often each quota was changed in the period."""
    records = AuditRecord.objects.filter(
        action__startswith="quota.", at__gt=since, at__lt=until
    ).order_by()
    subjects = (subject.partition(" / ") for subject in records.values_list("subject", flat=True))
    return Counter((tenant, gpu_type) for tenant, _, gpu_type in subjects)


def stored() -> Quotas:
    """Return all quotas as they are now."""
    rows = Quota.objects.order_by().values_list(
        "tenant__name",
        "gpu_type__name",
        "guaranteed_milli",
        "mode",
        "borrow_limit_milli",
        "lend_limit_milli",
    )
    return {
        (tenant, gpu_type): QuotaSpec(tenant, gpu_type, milli, Sharing(mode), borrow, lend)
        for tenant, gpu_type, milli, mode, borrow, lend in rows
    }


def _recorded(key: Key, document: Document | None) -> QuotaSpec | None:
    """Convert a quota from the audit trail, which has GPUs."""
    if document is None:
        return None
    amounts = {
        name: None if document[name] is None else round(1000 * document[name])
        for name in ("guaranteed", "borrow_limit", "lend_limit")
    }
    return _quota(*key, {**document, **amounts})


def _quota(tenant: str, gpu_type: str, document: Document) -> QuotaSpec:
    return QuotaSpec(
        tenant,
        gpu_type,
        document["guaranteed"],
        Sharing(document["mode"]),
        document["borrow_limit"],
        document["lend_limit"],
    )


def _set(quotas: Quotas, key: Key, quota: QuotaSpec | None) -> None:
    if quota is None:
        quotas.pop(key, None)
    else:
        quotas[key] = quota
