"""Pages about accounts: sign-in, tenants and members, API tokens, the audit trail."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth import views as auth_views
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from tenants.database.keyset import rows_after
from tenants.errors import Conflict, DomainError, Invalid
from tenants.forms import SignInForm
from tenants.models import AuditRecord, Scope
from tenants.names import tenant_names
from tenants.oidc.config import is_configured
from tenants.permissions import Access, access_of
from tenants.selectors import tokens_of, visible_audit_records, visible_names
from tenants.services.moves.revert import is_reversible
from tenants.services.moves.typed import TITLES as PLACE_TITLES
from tenants.services.previews.seen import preview_seen
from tenants.services.quota_revert import FIELDS, said_of
from tenants.services.tokens import NewToken, create_token, digest_of, revoke_token
from tenants.templatetags.ui import MILLI, gpus, words
from tenants.web import shown_once
from tenants.web.conditional import by_its_text
from tenants.web.pages import (
    UnknownFilter,
    actor_of,
    live_or_whole,
    page_login_required,
    to_sign_in,
    unknown_names,
)

OF_ORDERS = "quota-order."
TOLD_OF_ORDERS = {
    "placed": "Ordered",
    "approved": "Approved",
    "refused": "Refused",
    "cancelled": "Called off",
    "failed": "Not applied",
    "kept": "Kept for good",
    "stayed": "Could not go back",
}
RECORDS_PER_PAGE, RECORD_ORDER = 50, ("-at", "-id")
TOKEN_DAYS = {"30": 30, "90": 90, "365": 365, "never": None}


class SignIn(auth_views.LoginView):
    """Sign-in; whoever mounts it may name demo accounts to show in embedded mode."""

    template_name = "tenants/login.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True
    demo_accounts: Sequence[Any] = ()
    demo_password = ""

    def post(self, request: HttpRequest, *args: str, **kwargs: Any) -> HttpResponse:
        if settings.KANT_PASSWORD_SIGN_IN:
            return super().post(request, *args, **kwargs)
        context = self.get_context_data(form=SignInForm(), refused=True)
        return self.render_to_response(context, status=403)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            passwords=settings.KANT_PASSWORD_SIGN_IN,
            demo_accounts=self.demo_accounts if settings.EMBEDDED else (),
            demo_password=self.demo_password,
            sso=settings.KANT_OIDC_NAME if is_configured() else "",
            **kwargs,
        )


def admin_sign_in(request: HttpRequest) -> HttpResponse:
    """Replace the admin's own form, which knows neither the provider nor the settings."""
    if admin.site.has_permission(request):
        return redirect("admin:index")
    if request.user.is_authenticated:
        raise PermissionDenied("Only accounts with staff status may open these pages.")
    return to_sign_in(request.GET.get(REDIRECT_FIELD_NAME) or reverse("admin:index"))


# --- tokens ---------------------------------------------------------------------------------------
# Session keys: the last token that this session created, until a page has said that its secret is
# not shown again; and that secret, until a page has shown it.
NEW_TOKEN, NEW_SECRET = "new_token", "new_secret"


@page_login_required
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    context: dict[str, Any] = {"days": TOKEN_DAYS, "chosen": "90", "now": timezone.now()}
    user = actor_of(request)
    context["tokens"] = tokens_of(user)
    context |= {"scopes": Scope.choices, "asked": list(Scope.values)}
    context["tenants"] = sorted(visible_names(user))
    context["has_password"] = settings.KANT_PASSWORD_SIGN_IN and user.has_usable_password()
    if request.htmx:  # type: ignore[attr-defined]
        return by_its_text(request, render(request, "tenants/_tokens_live.html", context))
    status = 200
    if request.method == "POST":
        name, lasts = request.POST.get("name", ""), request.POST.get("lasts", "90")
        # A page opened before an update lacks these fields; its form asks for an unlimited token,
        # as before.
        knows = "tenant" in request.POST
        asked = request.POST.getlist("scopes") if knows else list(Scope.values)
        tenant = request.POST.get("tenant", "")
        context |= {"name": name, "chosen": lasts, "asked": asked, "tenant": tenant}
        try:
            return token_made(request, name, lasts, asked, tenant)
        except Invalid as error:
            context["errors"], status = error.by_field, 422
        except Conflict as error:
            context["errors"], status = {"name": error.detail}, 409
    elif request.method == "GET":
        context["created"] = new_token(request)
    response = render(request, "tenants/tokens.html", context, status=status)
    response["Cache-Control"] = "no-store"
    if context.get("created"):
        shown_once.forget(request, response)
    return response


def token_made(
    request: HttpRequest, name: str, lasts: str, scopes: Sequence[str], tenant: str
) -> HttpResponse:
    """Create a token and redirect to the page that shows it; reloading that page creates no other
    token. Raises Invalid."""
    if lasts not in TOKEN_DAYS:
        raise Invalid.field("lasts", f"Choose one of {', '.join(TOKEN_DAYS)}.")
    days = TOKEN_DAYS[lasts]
    ends = timezone.now() + timedelta(days=days) if days else None
    made = create_token(
        actor_of(request),
        name,
        expires_at=ends,
        scopes=None if set(scopes) == set(Scope.values) else scopes,
        tenant=tenant or None,
    )
    response = redirect("tokens")
    shown_once.hand_over(request, response, NEW_SECRET, made.secret)
    request.session[NEW_TOKEN] = made.token.pk
    return response


def new_token(request: HttpRequest) -> NewToken | None:
    """Return the token just created: the first time with its secret, then once without; None
    otherwise."""
    token_id = request.session.pop(NEW_TOKEN, None)
    if token_id is None:
        return None
    secret = shown_once.take(request, NEW_SECRET)
    token = tokens_of(actor_of(request)).filter(pk=token_id, revoked_at=None).first()
    if token is None:
        return None
    if secret is None or digest_of(secret) != token.digest:
        return NewToken(token, "")
    request.session[NEW_TOKEN] = token_id
    return NewToken(token, secret)


@require_POST
@page_login_required
def token_revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    try:
        revoke_token(actor_of(request), token_id)
    except DomainError:
        raise Http404("You have no such token.") from None
    messages.success(request, "The token is revoked.", extra_tags="good")
    return redirect("tokens")


# --- audit ----------------------------------------------------------------------------------------
@require_GET
@page_login_required
def quota_changes(request: HttpRequest) -> HttpResponse:
    """List changes of quotas and of tenants, in the tenants that the reader administers, newest
    first."""
    access = access_of(request.user)
    records = (
        visible_audit_records(request.user)
        .filter(
            Q(action__startswith="quota.")
            | Q(action="tenant.changed")
            | Q(action__startswith=OF_ORDERS)
        )
        .select_related("reverts")
        .prefetch_related("reverted_by")
    )
    wanted, unknown = request.GET.get("tenant", ""), unknown_names(request, ("tenant",), "before")
    if wanted and wanted not in (known := tenant_names(request.user)):
        unknown["tenant"] = UnknownFilter("tenant", wanted, known.none_such(wanted))
    if wanted:
        records = records.filter(tenant__name=wanted)
    before = request.GET.get("before", "")
    if before:
        last = records.filter(pk=_uuid_or_404(before)).first()
        if last is None:
            raise Http404("This page of changes does not exist. Start again from the newest.")
        records = records.filter(rows_after(RECORD_ORDER, (last.at, last.pk)))
    if unknown:
        records = records.none()
    page = list(records.order_by(*RECORD_ORDER)[: RECORDS_PER_PAGE + 1])
    shown = page[:RECORDS_PER_PAGE]
    visible = visible_names(request.user)
    context = {
        "nav": "quotas",
        "changes": [shown_change(record, access, visible) for record in shown],
        "older": shown[-1].pk if len(page) > RECORDS_PER_PAGE else None,
        "newest": not before,
        "tenant": wanted,
        "unknown": unknown,
    }
    answer = render(request, live_or_whole(request, "tenants/quota_changes.html"), context)
    return by_its_text(request, answer)


@dataclass(frozen=True, slots=True)
class ShownChange:
    """A record, what it changed, and which follow-ups exist or are open to the reader. `told`: for
    an order that was itself no change, what became of it."""

    record: AuditRecord
    told: str
    differences: list["FieldDifference"]
    reverted_by: AuditRecord | None
    may_revert: bool
    preview: dict[str, Any] | None = None


def shown_change(record: AuditRecord, access: Access, visible: frozenset[str]) -> ShownChange:
    if record.action.startswith(OF_ORDERS):
        return ShownChange(record, _told_of_order(record), [], None, may_revert=False)
    changed = differences(record)
    reverted_by = next(iter(record.reverted_by.all()), None)
    allowed = access.may_administer_from_above(record.tenant_id or 0)
    return ShownChange(
        record,
        "",
        changed,
        reverted_by,
        bool(changed)
        and reverted_by is None
        and allowed
        and (not is_of_tenant(record) or is_reversible(record)),
        preview_seen(record, visible),
    )


def is_of_tenant(record: AuditRecord) -> bool:
    return record.action == "tenant.changed"


def _told_of_order(record: AuditRecord) -> str:
    """Describe what was ordered and what became of it."""
    after = record.after or {}
    when = [
        f" {word} {after[name][:16].replace('T', ' ')} UTC"
        for word, name in (("from", "starts_at"), ("until", "ends_at"))
        if name in after
    ]
    what = TOLD_OF_ORDERS[record.action.removeprefix(OF_ORDERS)]
    beside = "".join(f", {text}" for text in said_of(after))
    if "guaranteed" not in after:
        told = [f"{PLACE_TITLES[n]} {_said(n, after)}" for n in PLACE_TITLES if n in after]
        return f"{what}: {', '.join(told)}{''.join(when)}"
    return f"{what}: {_said('guaranteed', after)}{beside}{''.join(when)}"


def _uuid_or_404(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise Http404("This page of changes does not exist. Start again from the newest.") from None


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One field of a change as people read it."""

    name: str
    before: str
    after: str


def differences(record: AuditRecord) -> list[FieldDifference]:
    """Return the fields that a record changed, without versions and ids: people do not need
    them."""
    before, after = record.before or {}, record.after or {}
    names = [n for n in dict.fromkeys([*before, *after]) if n not in ("version", "id")]
    return [
        FieldDifference((FIELDS | PLACE_TITLES).get(n, words(n)), _said(n, before), _said(n, after))
        for n in names
        if before.get(n) != after.get(n)
    ]


def _said(name: str, values: dict[str, Any]) -> str:
    value = values.get(name)
    if value is None:
        return "no limit" if name.endswith("_limit") and name in values else "–"
    return gpus(round(MILLI * value)) if isinstance(value, int | float) else str(value)
