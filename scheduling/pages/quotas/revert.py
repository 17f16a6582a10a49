"""The page that reverts a change of a quota, after showing what that means now."""

import uuid
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from scheduling.pages.quotas.quota import shown_version
from scheduling.pages.refusals import (
    REHEARSAL,
    refusal,
    refusal_by_field,
    refusal_of,
    rehearsed_reason,
)
from scheduling.queries.quota_use import use_of
from tenants.errors import DomainError, Stale
from tenants.models import AuditRecord, User
from tenants.permissions import access_of
from tenants.selectors import visible_audit_records
from tenants.services.audit import PAGE
from tenants.services.previews.kept import quota_effects
from tenants.services.quota_revert import (
    FIELDS,
    Reversal,
    Reverted,
    reversal_of,
    revert_quota_change,
    said,
)
from tenants.services.quota_terms import QuotaTerms
from tenants.web.pages import actor_of, page_login_required

STALE = (
    "Somebody has changed this quota in the meantime. See below what reverting would do now; "
    "nothing was changed."
)


@dataclass(frozen=True, slots=True)
class Line:
    """One field of a quota, or setting of a policy: before and after the change, its current value,
    and its value after the revert."""

    name: str
    before: str
    after: str
    now: str
    then: str


def lines(record: AuditRecord, found: Reversal) -> list[Line]:
    """Return the fields that the change set, and any others that the revert would set."""
    rows = [
        Line(
            title,
            said(field, record.before),
            said(field, record.after),
            said(field, found.now),
            said(field, found.then),
        )
        for field, title in FIELDS.items()
    ]
    return [row for row in rows if row.before != row.after or row.now != row.then]


def tried(actor: User, record: AuditRecord, version: int, reason: str = REHEARSAL) -> Reverted:
    """Return what reverting the change would give for a quota at that version; nothing is changed.
    Raises as `revert_quota_change`."""
    return revert_quota_change(
        actor, record, expected_version=version, reason=reason, source=PAGE, dry_run=True
    )


def rehearsed(request: HttpRequest, record: AuditRecord) -> dict[str, Any]:
    """Return what reverting the change would do now, or why it is impossible."""
    try:
        found = reversal_of(record)
    except DomainError as error:
        return {"refused": [error.detail]}
    use = use_of(found.tenant.name, found.gpu_type.name)
    guaranteed = QuotaTerms.in_gpus(found.then).guaranteed if found.then else 0
    context: dict[str, Any] = {
        "found": found,
        "lines": lines(record, found),
        "use": use,
        "guaranteed": guaranteed,
        "over": max(0, use.used - guaranteed) if use else 0,
    }
    try:
        context["warnings"] = tried(actor_of(request), record, found.version).warnings
    except DomainError as error:
        context["refused"] = error.details
    return context


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def quota_revert(request: HttpRequest, record_id: uuid.UUID) -> HttpResponse:
    record = _record_or_404(request, record_id)
    errors: dict[str, list[str]] = {}
    if request.method == "POST" and reverted(request, record, errors):
        return redirect("quota-changes")
    context = {
        "nav": "quotas",
        "record": record,
        "editable": access_of(request.user).may_administer_from_above(record.tenant_id or 0),
        "reason": request.POST.get("reason", ""),
        "errors": errors,
        **rehearsed(request, record),
    }
    status = 422 if errors else 200
    return render(request, "scheduling/quotas/quota_revert.html", context, status=status)


@page_login_required
@require_POST
def quota_revert_preview(request: HttpRequest, record_id: uuid.UUID) -> HttpResponse:
    """Preview what reverting a change would do to jobs; nothing is changed."""
    record = _record_or_404(request, record_id)
    actor = actor_of(request)
    errors: dict[str, list[str]] = {}
    version = shown_version(request.POST.get("version", ""), errors)
    if version is None:
        return refusal_by_field(request, errors)
    try:
        found = reversal_of(record)
        after = tried(actor, record, version, rehearsed_reason(request)).quota
    except Stale:
        return refusal(request, STALE)
    except DomainError as error:
        return refusal_of(request, error)
    effects = quota_effects(actor, {(found.tenant.name, found.gpu_type.name): after})
    context = {"title": "What reverting it would do", "effects": effects}
    return render(request, "parts/effects.html", context)


def _record_or_404(request: HttpRequest, record_id: uuid.UUID) -> AuditRecord:
    records = visible_audit_records(request.user).filter(action__startswith="quota.")
    record = records.filter(pk=record_id).first()
    if record is None:
        raise Http404("There is no such change of a quota, or you may not see it.")
    return record


def reverted(request: HttpRequest, record: AuditRecord, errors: dict[str, list[str]]) -> bool:
    """Revert the change; return False with `errors` by field ("" = none of them) if that fails."""
    version = shown_version(request.POST.get("version", ""), errors)
    if version is None:
        return False
    try:
        warnings = revert_quota_change(
            actor_of(request),
            record,
            expected_version=version,
            reason=request.POST.get("reason", ""),
            source=PAGE,
        ).warnings
    except Stale:
        errors[""] = [STALE]
        return False
    except DomainError as error:
        # The rehearsal shows all obstacles except a missing reason.
        errors["reason"] = error.by_field.get("reason", [])
        if not errors["reason"]:
            errors[""] = ["Nothing was changed."]
        return False
    text = f"The change of {record.subject} is reverted."
    messages.success(request, text, extra_tags="good")
    for warning in warnings:
        messages.warning(request, warning, extra_tags="wait")
    return True
