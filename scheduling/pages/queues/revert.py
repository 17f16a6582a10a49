"""The page that reverts a change of a queue, after showing what that means now."""

import uuid
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from scheduling.pages.quotas.quota import shown_version
from scheduling.pages.quotas.revert import Line
from scheduling.pages.refusals import REHEARSAL
from tenants.errors import DomainError, Stale
from tenants.models import AuditRecord
from tenants.selectors import visible_audit_records
from tenants.services.audit import PAGE, Why
from tenants.services.queues.revert import (
    FIELDS,
    QueueReversal,
    queue_reversal_of,
    revert_queue_change,
    said,
)
from tenants.templatetags.ui import words
from tenants.web.pages import actor_of, page_login_required


def lines(record: AuditRecord, found: QueueReversal) -> list[Line]:
    """Return the settings that the change set, and what they would become."""
    now = found.now
    then = {**(now or {}), **(found.undone or {})} if found.undone is not None else None
    rows = [
        Line(
            words(field),
            said(field, record.before),
            said(field, record.after),
            said(field, now),
            said(field, then),
        )
        for field in FIELDS
    ]
    return [row for row in rows if row.before != row.after or row.now != row.then]


def rehearsed(request: HttpRequest, record: AuditRecord) -> dict[str, Any]:
    """Return what reverting the change would do now, or why it is impossible."""
    try:
        found = queue_reversal_of(record)
    except DomainError as error:
        return {"refused": [error.detail]}
    version = found.queue.version if found.queue else 0
    context: dict[str, Any] = {
        "found": found,
        "lines": lines(record, found),
        "version": version,
    }
    try:
        done = revert_queue_change(
            actor_of(request),
            record,
            expected_version=version,
            why=Why(REHEARSAL, PAGE),
            dry_run=True,
        )
    except DomainError as error:
        return context | {"refused": [error.detail]}
    return context | {"warnings": done.warnings if done else ()}


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def queue_revert(request: HttpRequest, record_id: uuid.UUID) -> HttpResponse:
    records = visible_audit_records(request.user).filter(action__startswith="queue.")
    record = records.filter(pk=record_id).first()
    if record is None:
        raise Http404("There is no such change of a queue, or you may not see it.")
    tenant, _, name = record.subject.partition("/")
    errors: dict[str, list[str]] = {}
    if request.method == "POST" and (after := reverted(request, record, errors)):
        return redirect("queue", tenant, name) if after == "there" else redirect("queues")
    context = {
        "nav": "queues",
        "record": record,
        "tenant": tenant,
        "name": name,
        "reason": request.POST.get("reason", ""),
        "errors": errors,
        **rehearsed(request, record),
    }
    status = 422 if errors else 200
    return render(request, "scheduling/queues/queue_revert.html", context, status=status)


def reverted(request: HttpRequest, record: AuditRecord, errors: dict[str, list[str]]) -> str:
    """Revert the change; return whether the queue is then "there" or "gone". On failure return "",
    with `errors` by field ("" = none of them)."""
    version = shown_version(request.POST.get("version", ""), errors)
    reason = request.POST.get("reason", "")
    if not reason.strip():
        errors["reason"] = ["Say why; it is kept in the audit trail."]
    if version is None or errors:
        return ""
    try:
        done = revert_queue_change(
            actor_of(request), record, expected_version=version, why=Why(reason, PAGE)
        )
    except Stale:
        errors[""] = [
            "Somebody has changed this queue in the meantime. See below what reverting would do "
            "now; nothing was changed."
        ]
        return ""
    except DomainError as error:
        # The rehearsal shows the obstacles.
        errors.update(error.by_field or {"": ["Nothing was changed."]})
        return ""
    messages.success(request, f"The change of {record.subject} is reverted.", extra_tags="good")
    for warning in done.warnings if done else ():
        messages.warning(request, warning, extra_tags="wait")
    return "there" if done else "gone"
