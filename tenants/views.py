"""Pages about accounts: sign-in, tenants and members, API tokens, the audit trail."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import views as auth_views
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from tenants.errors import DomainError, Invalid
from tenants.models import ApiToken, AuditRecord
from tenants.selectors import visible_audit_records
from tenants.services.tokens import create_token, revoke_token
from tenants.templatetags.ui import MILLI, gpus, words
from tenants.web import actor_of, page_login_required

RECORDS_PER_PAGE = 50
TOKEN_DAYS = {"30": 30, "90": 90, "365": 365, "never": None}


class SignIn(auth_views.LoginView):
    """Sign-in; whoever mounts it may name demo accounts to show in the embedded mode."""

    template_name = "tenants/login.html"
    redirect_authenticated_user = True
    demo_accounts: Sequence[Any] = ()
    demo_password = ""

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            demo_accounts=self.demo_accounts if settings.EMBEDDED else (),
            demo_password=self.demo_password,
            **kwargs,
        )


# --- tokens ---------------------------------------------------------------------------------------
@page_login_required
def tokens(request: HttpRequest) -> HttpResponse:
    context: dict[str, Any] = {"days": TOKEN_DAYS, "chosen": "90"}
    status = 200
    if request.method == "POST":
        name, lasts = request.POST.get("name", ""), request.POST.get("lasts", "90")
        context |= {"name": name, "chosen": lasts}
        try:
            if lasts not in TOKEN_DAYS:
                raise Invalid.field("lasts", f"Choose one of {', '.join(TOKEN_DAYS)}.")
            days = TOKEN_DAYS[lasts]
            ends = timezone.now() + timedelta(days=days) if days else None
            # Shown in this very answer: the secret is kept nowhere, not even in the session.
            context["created"] = create_token(actor_of(request), name, expires_at=ends)
            context["name"] = ""
        except Invalid as error:
            context["errors"], status = error.by_field, 422
    context["tokens"] = ApiToken.objects.filter(user=actor_of(request))
    context["now"] = timezone.now()
    response = render(request, "tenants/tokens.html", context, status=status)
    response["Cache-Control"] = "no-store"
    return response


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
    """Quota changes of the tenants the reader administers, newest first."""
    records = visible_audit_records(request.user).filter(action__startswith="quota.")
    wanted = request.GET.get("tenant", "")
    if wanted:
        records = records.filter(tenant__name=wanted)
    before = request.GET.get("before", "")
    if before:
        last = records.filter(pk=_uuid_or_404(before)).first()
        if last is None:
            raise Http404("This page of changes does not exist. Start again from the newest.")
        records = records.filter(at__lt=last.at)
    page = list(records.order_by("-at", "-id")[: RECORDS_PER_PAGE + 1])
    shown = page[:RECORDS_PER_PAGE]
    context = {
        "nav": "quotas",
        "records": [(record, differences(record)) for record in shown],
        "older": shown[-1].pk if len(page) > RECORDS_PER_PAGE else None,
        "newest": not before,
        "tenant": wanted,
    }
    return render(request, "tenants/quota_changes.html", context)


def _uuid_or_404(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise Http404("This page of changes does not exist. Start again from the newest.") from None


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of a change as people read it."""

    name: str
    before: str
    after: str


FIELD_NAMES = {"borrow_limit": "May borrow", "lend_limit": "Lends"}


def differences(record: AuditRecord) -> list[Difference]:
    """The fields that a record changed; versions are of no interest to people."""
    before, after = record.before or {}, record.after or {}
    names = [n for n in dict.fromkeys([*before, *after]) if n not in ("version", "id")]
    return [
        Difference(FIELD_NAMES.get(n, words(n)), _said(n, before), _said(n, after))
        for n in names
        if before.get(n) != after.get(n)
    ]


def _said(name: str, values: dict[str, Any]) -> str:
    value = values.get(name)
    if value is None:
        return "no limit" if name.endswith("_limit") and name in values else "–"
    return gpus(round(MILLI * value)) if isinstance(value, int | float) else str(value)
