"""Views that send the browser to the provider and take it back."""

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth import login
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET

from tenants.errors import DomainError, NotAllowed
from tenants.models import User
from tenants.oidc import failures
from tenants.oidc.claims import groups_of, person_of
from tenants.oidc.config import NotConfigured, Provider, is_configured, provider
from tenants.services.sign_in import sign_in

log = logging.getLogger(__name__)

# Sign-ins begun by this browser, by state; each ends with its first answer.
PENDING = "oidc"
PENDING_S = 600
MOST_PENDING = 5
# Groups are read at sign-in only, so sign-in must happen at least once a working day.
SESSION_S = 12 * 3600

View = Callable[[HttpRequest], HttpResponse]


def _told(view: View) -> View:
    """Show a page for a failed sign-in, and log a line for the operator."""

    @wraps(view)
    def checked(request: HttpRequest) -> HttpResponse:
        if not is_configured():
            raise Http404("Single sign-on is not set up here.")
        try:
            return view(request)
        except failures.SignInFailed as error:
            log.warning("sign-in by %s failed: %s", settings.KANT_OIDC_ISSUER, error.cause)
            context = {"failure": error, "next": error.next or next_page(request)}
            return render(request, "tenants/sign_in_failed.html", context, status=error.status)

    return checked


@require_GET
@_told
def start(request: HttpRequest) -> HttpResponse:
    """Send the browser to the provider."""
    page = next_page(request)
    if request.user.is_authenticated:
        return redirect(page)
    # Only processes that use it pay for its import.
    from tenants.oidc.protocol import begin

    begun = begin(_provider(), callback_address(request))
    pending = {
        state: one
        for state, one in request.session.get(PENDING, {}).items()
        if time.time() - one["at"] < PENDING_S
    }
    newest = list(pending.items())[-(MOST_PENDING - 1) :]
    request.session[PENDING] = {
        **dict(newest),
        begun.state: {
            "nonce": begun.nonce,
            "verifier": begun.verifier,
            "next": page,
            "at": time.time(),
        },
    }
    return redirect(begun.url)


@require_GET
@_told
def callback(request: HttpRequest) -> HttpResponse:
    """Identify the person whose browser returns, and sign them in."""
    pending = _taken(request)
    try:
        user = _signed_in(request, pending)
    except failures.SignInFailed as error:
        error.next = pending["next"]
        raise
    login(request, user)
    request.session.set_expiry(SESSION_S)
    return redirect(pending["next"])


def _signed_in(request: HttpRequest, pending: dict[str, Any]) -> User:
    """Return the user that the provider's answer is about. Raises SignInFailed."""
    from tenants.oidc.protocol import claims_of

    who = _provider()
    if reason := request.GET.get("error", ""):
        raise failures.refused(
            who.name, reason[:100], request.GET.get("error_description", "")[:300]
        )
    if request.GET.get("iss", who.issuer) != who.issuer:
        cause = f"the answer is of issuer {request.GET['iss']!r}"
        raise failures.not_trusted(who.name, cause)
    claims = claims_of(
        who,
        callback_address(request),
        request.GET.get("code", ""),
        pending["nonce"],
        pending["verifier"],
    )
    try:
        return sign_in(person_of(who, claims), groups_of(who, claims))
    except DomainError as error:
        status = 403 if isinstance(error, NotAllowed) else 409
        title = "You were not signed in"
        raise failures.SignInFailed(status, title, error.detail, error.detail) from error


def _taken(request: HttpRequest) -> dict[str, Any]:
    """Take the pending sign-in that this answer belongs to; each is taken only once."""
    held = request.session.get(PENDING, {})
    pending = held.pop(request.GET.get("state", ""), None)
    if pending is None:
        raise failures.lost("its state is unknown to this browser, or was used before")
    request.session[PENDING] = held
    if time.time() - pending["at"] >= PENDING_S:
        raise failures.lost(f"it took longer than {PENDING_S} s")
    return dict(pending)


def _provider() -> Provider:
    try:
        return provider()
    except NotConfigured as error:
        raise failures.not_set_up(settings.KANT_OIDC_NAME, str(error)) from error


def callback_address(request: HttpRequest) -> str:
    """Return the redirect URI that must be registered at the provider."""
    # Browsers send a secure cookie back only over https, whatever scheme a proxy uses to reach
    # Kant.
    scheme = "https" if settings.SESSION_COOKIE_SECURE else request.scheme
    return f"{scheme}://{request.get_host()}{reverse('oidc-callback')}"


def next_page(request: HttpRequest) -> str:
    """Return the page to continue with; always one of Kant's own."""
    wanted = request.GET.get("next", "")
    here = url_has_allowed_host_and_scheme(
        wanted, {request.get_host()}, require_https=request.is_secure()
    )
    return wanted if here else resolve_url(settings.LOGIN_REDIRECT_URL)
