"""The history of a cluster's policy: what was changed, by whom and why; and reverting a change."""

import uuid
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from metrics.pages.policies.drafts import draft_of_now
from metrics.pages.policies.effects import effects
from metrics.pages.policies.forms import ReasonForm
from metrics.pages.policies.views import of_cluster
from scheduling.models import Cluster
from scheduling.pages.polled import polled
from scheduling.pages.quotas.quota import shown_version
from scheduling.pages.quotas.revert import Line
from scheduling.pages.refusals import (
    refusal,
    refusal_by_field,
    refusal_of,
    refusal_of_form,
    rehearsed_reason,
)
from scheduling.policy.document import effective, to_policy
from scheduling.policy.settings import settings_of
from scheduling.queries.wording import Difference, policy_differences, setting_name, setting_words
from scheduling.services.policies.changes import changes_of, policy_of, previewed
from scheduling.services.policies.revert import (
    PolicyReversal,
    policy_reversal_of,
    revert_policy_change,
)
from tenants.errors import DomainError, Stale
from tenants.models import AuditRecord
from tenants.permissions import access_of
from tenants.selectors import visible_names
from tenants.services.audit import PAGE
from tenants.services.previews.seen import preview_seen
from tenants.web.pages import actor_of, live_or_whole

PER_PAGE = 25
STALE = (
    "Somebody has changed this policy in the meantime. See below what reverting would do now; "
    "nothing was changed."
)


@dataclass(frozen=True, slots=True)
class ShownPolicyChange:
    """A record, what it changed, and the record that reverted it, if any."""

    record: AuditRecord
    differences: list[Difference]
    reverted_by: AuditRecord | None
    preview: dict[str, Any] | None

    @property
    def may_revert(self) -> bool:
        return bool(self.differences) and self.reverted_by is None


def differences(record: AuditRecord) -> list[Difference]:
    return policy_differences(record.before or {}, record.after or {})


@of_cluster
@require_safe
def policy_changes(request: HttpRequest, cluster: Cluster) -> HttpResponse:
    access = access_of(request.user)
    return polled(request, access, lambda: _policy_changes(request, cluster), alike=True)


def _policy_changes(request: HttpRequest, cluster: Cluster) -> HttpResponse:
    records = changes_of(cluster).select_related("reverts", "preview")
    records = records.prefetch_related("reverted_by")
    visible = visible_names(request.user)
    page = Paginator(records, PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "nav": "operations",
        "cluster": cluster,
        "page": page,
        "takes": ("page",),
        "changes": [
            ShownPolicyChange(
                record,
                differences(record),
                next(iter(record.reverted_by.all()), None),
                preview_seen(record, visible),
            )
            for record in page
        ],
    }
    return render(request, live_or_whole(request, "metrics/policies/policy_changes.html"), context)


# --- reverting a change ---------------------------------------------------------------------------
def lines(record: AuditRecord, found: PolicyReversal) -> list[Line]:
    """Return the settings that the change set."""
    before, after = settings_of(record.before or {}), settings_of(record.after or {})
    then = found.now | found.undone
    return [
        Line(
            setting_name(one.key),
            *(setting_words(one.key, policy.get(one.key)) for policy in (before, after)),
            *(setting_words(one.key, policy.get(one.key)) for policy in (found.now, then)),
        )
        for one in differences(record)
    ]


@of_cluster
@require_http_methods(["GET", "HEAD", "POST"])
def policy_revert(request: HttpRequest, cluster: Cluster, record_id: uuid.UUID) -> HttpResponse:
    record = _record_or_404(cluster, record_id)
    draft_of_now(cluster)  # a policy that cannot be read cannot be reverted
    form = ReasonForm(request.POST or None)
    errors: dict[str, list[str]] = {}
    if request.method == "POST" and form.is_valid() and reverted(request, record, form, errors):
        return redirect("policy-changes", cluster.name)
    context = {
        "nav": "operations",
        "cluster": cluster,
        "record": record,
        "form": form,
        "errors": errors,
        **rehearsed(request, record),
    }
    status = 422 if errors or form.errors else 200
    return render(request, "metrics/policies/policy_revert.html", context, status=status)


@of_cluster
@require_POST
def policy_revert_preview(
    request: HttpRequest, cluster: Cluster, record_id: uuid.UUID
) -> HttpResponse:
    """Preview what the revert would do to jobs from now on; nothing is changed."""
    record = _record_or_404(cluster, record_id)
    form, errors = ReasonForm({"reason": rehearsed_reason(request)}), dict[str, list[str]]()
    if not form.is_valid():
        return refusal_of_form(request, form)
    version = shown_version(request.POST.get("version", ""), errors)
    if version is None:
        return refusal_by_field(request, errors)
    try:
        then = _tried(request, record, version)
    except Stale:
        return refusal(request, STALE)
    except DomainError as error:
        return refusal_of(request, error)
    found = previewed(actor_of(request), cluster, then)
    context = {"title": "What reverting it would do from now on", "effects": found}
    return render(request, "parts/effects.html", context)


def _record_or_404(cluster: Cluster, record_id: uuid.UUID) -> AuditRecord:
    record = changes_of(cluster).filter(pk=record_id).first()
    if record is None:
        raise Http404(f"There is no such change of the policy of “{cluster.name}”.")
    return record


def _tried(request: HttpRequest, record: AuditRecord, version: int) -> dict[str, Any]:
    """Return the whole policy after a revert based on that version of it; nothing is changed.
    Raises as `revert_policy_change`."""
    row = revert_policy_change(
        actor_of(request), record, expected_version=version, source=PAGE, dry_run=True
    )
    return effective(row.document)


def rehearsed(request: HttpRequest, record: AuditRecord) -> dict[str, Any]:
    """Return what reverting the change would do now, or why it is impossible."""
    try:
        found = policy_reversal_of(record)
        then = _tried(request, record, found.version)
    except DomainError as error:
        return {"refused": error.details}
    now = effective(policy_of(found.cluster).document)
    affects = effects(found.cluster, to_policy(now), to_policy(then), found.undone.keys())
    return {"found": found, "lines": lines(record, found), "affects": list(affects)}


def reverted(
    request: HttpRequest, record: AuditRecord, form: ReasonForm, errors: dict[str, list[str]]
) -> bool:
    """Revert the change; return False with `errors` by field ("" = none of them) if that fails."""
    version = shown_version(request.POST.get("version", ""), errors)
    if version is None:
        return False
    try:
        revert_policy_change(
            actor_of(request),
            record,
            expected_version=version,
            reason=form.cleaned_data["reason"],
            source=PAGE,
        )
    except Stale:
        errors[""] = [STALE]
        return False
    except DomainError:
        errors[""] = ["Nothing was changed."]  # the rehearsal says why
        return False
    messages.success(request, "The change of the policy is reverted.", extra_tags="good")
    return True
