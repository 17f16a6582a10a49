"""The page of one quota: its guarantee, mode and limits."""

from dataclasses import dataclass

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from scheduling.pages.forms import DAMAGED
from scheduling.pages.refusals import refusal_by_field, rehearsed_reason
from scheduling.queries.quota_use import use_of
from tenants.errors import DomainError, Invalid, Stale
from tenants.models import GpuType, Quota, QuotaMode, Tenant
from tenants.permissions import access_of
from tenants.selectors import visible_names, visible_tenants
from tenants.services.audit import PAGE
from tenants.services.drafts.edits import DraftEdit, edit_draft
from tenants.services.drafts.seen import overtaken, own_cell
from tenants.services.drafts.wanted import TERMS, is_edit, typed_in
from tenants.services.previews.kept import quota_effects
from tenants.services.quota_terms import TITLES, QuotaChange, QuotaTerms
from tenants.services.quotas import QuotaChangeResult, change_quota
from tenants.services.typed_gpus import as_typed, typed_milli
from tenants.web.pages import actor_of, page_login_required

NOTHING_EDITED = "Nothing was edited, so nothing has changed."


def legible_milli(text: str, name: str, errors: dict[str, list[str]]) -> int | None:
    """Parse GPUs from a field; return None and add the reason to `errors` if that fails."""
    try:
        return typed_milli(text)
    except ValueError as error:
        errors.setdefault(name, []).append(str(error))
        return None


def limit_milli(text: str, name: str, errors: dict[str, list[str]]) -> int | None:
    """Parse a limit; empty = no limit."""
    return legible_milli(text, name, errors) if text.strip() else None


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def quota(request: HttpRequest, tenant: str, gpu_type: str) -> HttpResponse:
    """Show and change one quota: its guarantee, mode and limits."""
    owner, kind = _shown(request, tenant, gpu_type)
    stored = Quota.objects.filter(tenant=owner, gpu_type=kind).first()
    use = use_of(owner.name, kind.name)
    typed = {
        "guaranteed": as_typed(stored.guaranteed_milli) if stored else "0",
        "mode": stored.mode if stored else QuotaMode.SHARED.value,
        "borrow_limit": as_typed(stored.borrow_limit_milli) if stored else "",
        "lend_limit": as_typed(stored.lend_limit_milli) if stored else "",
        "version": str(stored.version if stored else 0),
        "reason": "",
    }
    editable = access_of(request.user).may_administer_from_above(owner.pk)
    drafted = own_cell(actor_of(request), owner, kind) if editable else None
    if drafted is not None and is_edit(drafted, stored):
        typed |= {"version": str(drafted.version), **typed_in(drafted)}
    else:
        drafted = None
    errors: dict[str, list[str]] = {}
    if request.method == "POST":
        typed = {name: request.POST.get(name, "") for name in typed}
        keep = draft_quota if "draft" in request.POST else save_quota
        read = TypedQuota.read(owner, kind, typed, errors)
        if read is not None and keep(request, read, errors):
            return redirect("quotas")
    context = {
        "nav": "quotas",
        "tenant": owner,
        "gpu_type": kind,
        "quota": stored,
        "use": use.seen_by(visible_names(request.user)) if use else None,
        "modes": QuotaMode.choices,
        "typed": typed,
        "errors": errors,
        "editable": editable,
        "drafted": drafted,
    }
    return render(request, "scheduling/quotas/quota.html", context, status=422 if errors else 200)


TYPED = ("guaranteed", "mode", "borrow_limit", "lend_limit")


def _shown(request: HttpRequest, tenant: str, gpu_type: str) -> tuple[Tenant, GpuType]:
    """Return the tenant and GPU type of a page; raise Http404."""
    owner = visible_tenants(request.user).filter(name=tenant).first()
    kind = GpuType.objects.filter(name=gpu_type).first()
    if owner is None or kind is None:
        raise Http404("There is no such quota, or it belongs to a tenant that you may not see.")
    return owner, kind


def shown_version(text: str, errors: dict[str, list[str]]) -> int | None:
    """Return the version of the quota that a form was shown with; return None and add the reason to
    `errors` if the form lacks it."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    errors[""] = [DAMAGED]
    return None


def terms_typed(typed: dict[str, str], errors: dict[str, list[str]]) -> QuotaTerms | None:
    """Parse the quota; return None and add the reasons to `errors` if that fails."""
    guaranteed = legible_milli(typed["guaranteed"], "guaranteed", errors)
    shared = typed["mode"] != QuotaMode.ISOLATED
    borrow = limit_milli(typed["borrow_limit"], "borrow_limit", errors) if shared else None
    lend = limit_milli(typed["lend_limit"], "lend_limit", errors) if shared else None
    if errors or guaranteed is None:
        return None
    return QuotaTerms(guaranteed, typed["mode"], borrow, lend)


@dataclass(frozen=True, slots=True)
class TypedQuota:
    """A quota as `typed` in the form, by field, with its meaning."""

    tenant: Tenant
    gpu_type: GpuType
    typed: dict[str, str]
    terms: QuotaTerms
    version: int

    @classmethod
    def read(
        cls,
        tenant: Tenant,
        gpu_type: GpuType,
        typed: dict[str, str],
        errors: dict[str, list[str]],
    ) -> "TypedQuota | None":
        """Parse it; return None and add the reasons to `errors` if that fails."""
        terms, version = terms_typed(typed, errors), shown_version(typed["version"], errors)
        if terms is None or version is None:
            return None
        return cls(tenant, gpu_type, typed, terms, version)


@page_login_required
@require_POST
def quota_preview(request: HttpRequest, tenant: str, gpu_type: str) -> HttpResponse:
    """Preview what one quota as typed would do to jobs; nothing is changed."""
    owner, kind = _shown(request, tenant, gpu_type)
    errors: dict[str, list[str]] = {}
    typed = {name: request.POST.get(name, "") for name in (*TYPED, "version")}
    typed["reason"] = rehearsed_reason(request)
    read = TypedQuota.read(owner, kind, typed, errors)
    tried = None if read is None else changed(request, read, errors, dry_run=True)
    if tried is None:
        return refusal_by_field(request, errors, TITLES)
    effects = quota_effects(actor_of(request), {(owner.name, kind.name): tried.quota})
    title = f"What this would do to {owner.name} and others"
    return render(request, "parts/effects.html", {"title": title, "effects": effects})


def draft_quota(request: HttpRequest, read: TypedQuota, errors: dict[str, list[str]]) -> bool:
    """Save the quota as typed in the draft; return False with `errors` by field if that fails."""
    if faults := read.terms.faults():
        errors |= Invalid.fields(faults).by_field
        return False
    typed = {name: read.typed[name].strip() for name in TYPED}
    shared = typed["mode"] != QuotaMode.ISOLATED
    kept = {name: typed[name] for name in (TERMS if shared else ("mode",))}
    try:
        edit = DraftEdit(read.tenant, read.gpu_type, typed["guaranteed"], read.version, kept)
        edit_draft(actor_of(request), [edit])
    except DomainError as error:
        errors |= error.by_field or {"": [error.detail]}
        return False
    text = (
        "The change is in your draft and not saved yet. Preview and save it with your other edits."
    )
    messages.info(request, text, extra_tags="info")
    return True


def save_quota(request: HttpRequest, read: TypedQuota, errors: dict[str, list[str]]) -> bool:
    """Change the quota to these terms and report it; return False, with `errors` as in `changed`,
    if that fails."""
    result = changed(request, read, errors)
    if result is None:
        return False
    if result.changed:
        text = f"The quota of {read.tenant.name} for {read.gpu_type.name} is changed."
        messages.success(request, text, extra_tags="good")
    else:
        messages.info(request, NOTHING_EDITED, extra_tags="info")
    for warning in result.warnings:
        messages.warning(request, warning, extra_tags="wait")
    return True


def changed(
    request: HttpRequest,
    read: TypedQuota,
    errors: dict[str, list[str]],
    *,
    dry_run: bool = False,
) -> QuotaChangeResult | None:
    """Change the quota as typed, or rehearse that.

    On failure returns None, with `errors` by field ("" = none of them); after a conflict
    `read.typed` has the current version.
    """
    tenant, gpu_type = read.tenant, read.gpu_type
    try:
        return change_quota(
            actor_of(request),
            QuotaChange(tenant, gpu_type, read.version, read.typed["reason"], PAGE),
            read.terms,
            dry_run=dry_run,
        )
    except Stale as error:
        now = Quota.objects.filter(tenant=tenant, gpu_type=gpu_type).first()
        mine = {name: read.typed[name] for name in TYPED}
        found = overtaken(tenant, gpu_type, read.version, now, mine)
        done = "changed" if error.current_version else "removed"
        errors[""] = [
            f"{found.who} {done} this quota meanwhile{found.why}. Your values are kept below; "
            "save again to overwrite, or go back to see theirs.",
            *(one.told for one in found.fields),
        ]
        read.typed["version"] = str(error.current_version)
    except DomainError as error:
        errors |= error.by_field or {"": [error.detail]}
    return None
