"""The form that puts a move of a tenant, or a new weight of its share, into the reader's draft; and
the page that reverts such a change."""

import uuid
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from scheduling.pages.refusals import (
    NOTHING_TO_PREVIEW,
    REHEARSAL,
    refusal,
    refusal_of,
    rehearsed_reason,
)
from tenants.errors import DomainError
from tenants.models import AuditRecord, Tenant
from tenants.permissions import Access, access_of
from tenants.selectors import subtree_ids, visible_audit_records, visible_names, visible_tenants
from tenants.services.audit import PAGE
from tenants.services.drafts.apply import try_draft
from tenants.services.drafts.edits import TenantEdit, edit_draft
from tenants.services.drafts.seen import SeenTenant, own_tenants
from tenants.services.moves.revert import (
    TenantReversal,
    is_reversible,
    revert_tenant_change,
    tenant_reversal,
)
from tenants.services.moves.typed import TITLES, as_typed, typed
from tenants.services.previews.kept import quota_effects
from tenants.services.transactions import unit_of_work
from tenants.web.pages import actor_of, page_login_required


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def place(request: HttpRequest, name: str) -> HttpResponse:
    """Show and edit a tenant's place in the tree and the weight of its share."""
    found, access = _tenant_or_404(request, name), access_of(request.user)
    rows = [row for row in own_tenants(actor_of(request)) if row.tenant_id == found.pk]
    now = as_typed(found)
    values = now | (rows[0].fields if rows else {})
    errors: dict[str, list[str]] = {}
    if request.method == "POST":
        values = _values(request, now)
        fields = dict.fromkeys(TITLES) if "take" in request.POST else values
        if kept(request, _edit(request, found, fields), errors):
            return redirect("quotas")
    context = {
        "nav": "tenants",
        "tenant": found,
        "now": now,
        "values": values,
        "errors": errors,
        "drafted": SeenTenant(rows[0], visible_names(request.user)) if rows else None,
        "choices": choices(request, access, found),
        "may_be_root": access.operator or found.parent_id is None,
    }
    status = 422 if errors else 200
    return render(request, "scheduling/tenants/tenant_place.html", context, status=status)


@page_login_required
@require_POST
def place_preview(request: HttpRequest, name: str) -> HttpResponse:
    """Preview the reader's draft with the form's values; neither is changed."""
    found, actor = _tenant_or_404(request, name), actor_of(request)
    try:
        with unit_of_work(dry_run=True):
            edit_draft(actor, tenants=[_edit(request, found, _values(request, as_typed(found)))])
            tried = try_draft(actor, reason=REHEARSAL, source=PAGE, dry_run=True)
    except DomainError as error:
        return refusal(request, _told(error))
    if tried.refused:
        faults = [*tried.tenant_errors.values(), *tried.errors.values()]
        return refusal(request, *dict.fromkeys(map(_told, faults)))
    if not tried.count:
        return refusal(request, NOTHING_TO_PREVIEW)
    alone = [one.tenant_id for one in tried.tenants] == [found.pk] and not tried.cells
    title = "What this change would do" if alone else "What your draft would do with this change"
    effects = quota_effects(actor, tried.after, tried.planned)
    return render(request, "parts/effects.html", {"title": title, "effects": effects})


def _told(fault: DomainError) -> str:
    """Return the error with the name of its field, if it has one."""
    named = {field.rsplit(".", 1)[-1]: told for field, told in fault.by_field.items()}
    texts = [f"{TITLES[name]}: {' '.join(told)}" for name, told in named.items() if name in TITLES]
    return " ".join(texts) or fault.detail


def _tenant_or_404(request: HttpRequest, name: str) -> Tenant:
    found = visible_tenants(request.user).filter(name=name).first()
    if found is None or not access_of(request.user).may_administer_from_above(found.pk):
        raise Http404("There is no such tenant, or you may not change its place.")
    return found


def _values(request: HttpRequest, now: dict[str, str]) -> dict[str, str]:
    return {field: request.POST.get(field, now[field]) for field in TITLES}


def _edit(request: HttpRequest, found: Tenant, fields: Mapping[str, str | None]) -> TenantEdit:
    """Overwrite other people's changes only if the form showed them."""
    seen = {field: request.POST.get(f"now-{field}") for field in TITLES}
    return TenantEdit(found, fields, over=seen == as_typed(found))


def kept(request: HttpRequest, edit: TenantEdit, errors: dict[str, list[str]]) -> bool:
    """Write it into the draft; return False with `errors` by field ("" = none of them) if that
    fails."""
    try:
        edit_draft(actor_of(request), tenants=[edit])
    except DomainError as error:
        by_field = error.by_field or {"": [error.detail]}
        errors |= {field.rsplit(".", 1)[-1]: told for field, told in by_field.items()}
        return False
    text = (
        "The change is in your draft and not saved yet. Preview and save it with your other edits."
    )
    messages.info(request, text, extra_tags="info")
    return True


def choices(request: HttpRequest, access: Access, tenant: Tenant) -> list[str]:
    """Return the tenants that it may be moved below, including its current parent."""
    below = subtree_ids(tenant.pk)
    names = {
        one.name
        for one in visible_tenants(request.user)
        if one.pk not in below and access.may_administer(one.pk)
    }
    if tenant.parent:
        names.add(tenant.parent.name)
    return sorted(names)


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def tenant_revert(request: HttpRequest, record_id: uuid.UUID) -> HttpResponse:
    """Show what reverting a change of place or weight means now; POST reverts it."""
    record = _record_or_404(request, record_id)
    errors: dict[str, list[str]] = {}
    reason = request.POST.get("reason", "")
    if request.method == "POST":
        try:
            revert_tenant_change(actor_of(request), record, reason=reason, source=PAGE)
        except DomainError as error:
            errors = error.by_field if "reason" in error.by_field else {"": [error.detail]}
        else:
            text = f"The change of {record.subject} is reverted."
            messages.success(request, text, extra_tags="good")
            return redirect("quota-changes")
    context: dict[str, Any] = {
        "nav": "quotas",
        "record": record,
        "reason": reason,
        "errors": errors,
    }
    try:
        found = tenant_reversal(record)
        context["lines"] = lines(found)
        revert_tenant_change(actor_of(request), record, reason=REHEARSAL, source=PAGE, dry_run=True)
    except DomainError as error:
        context["refused"] = error.details
    status = 422 if errors else 200
    return render(request, "scheduling/tenants/tenant_revert.html", context, status=status)


def lines(found: TenantReversal) -> list[dict[str, str]]:
    """Return each field that is set back, with its current and its future value."""
    then = typed(found.fields.get("parent"), found.fields.get("weight", 1.0))
    return [
        {"name": title, "now": found.base[field] or "none", "then": then[field] or "none"}
        for field, title in TITLES.items()
        if field in found.fields
    ]


@page_login_required
@require_POST
def tenant_revert_preview(request: HttpRequest, record_id: uuid.UUID) -> HttpResponse:
    """Preview what the revert would do to jobs; nothing is changed."""
    record = _record_or_404(request, record_id)
    actor = actor_of(request)
    try:
        reason = rehearsed_reason(request)
        done = revert_tenant_change(actor, record, reason=reason, source=PAGE, dry_run=True)
    except DomainError as error:
        return refusal_of(request, error)
    effects = quota_effects(actor, {}, {done.tenant.name: done.planned})
    context = {"title": "What reverting it would do", "effects": effects}
    return render(request, "parts/effects.html", context)


def _record_or_404(request: HttpRequest, record_id: uuid.UUID) -> AuditRecord:
    record = visible_audit_records(request.user).filter(pk=record_id).first()
    if record is None or not is_reversible(record):
        raise Http404("There is no such change of a tenant, or you may not see it.")
    return record
