"""Sign-in for REST: bearer tokens, a password to get the first token, and browser sessions (with
CSRF)."""

import base64
import binascii

from django.conf import settings
from django.contrib.auth import authenticate
from django.utils import timezone
from drf_spectacular import authentication as authentication_schemes
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import authentication
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from tenants.api.problems import Problem, too_many
from tenants.models import ApiToken, User
from tenants.services.tokens import PREFIX, token_of_secret
from tenants.sign_in import attempts

SCHEME = "Bearer"
TOKEN = "token"  # the name of API tokens among the security schemes of OpenAPI
PASSWORD = "password"  # the name of HTTP Basic among the security schemes of OpenAPI
CHALLENGE = f'{SCHEME} realm="kant"'


class ApiTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer kant_…`. Without the header the next method is tried; a wrong token →
    401."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        header = request.META.get("HTTP_AUTHORIZATION", "")
        scheme, _, secret = header.strip().partition(" ")
        if not scheme:
            return None
        if scheme.lower() != SCHEME.lower() or not secret.strip().startswith(PREFIX):
            raise AuthenticationFailed(
                f"The Authorization header must read “{SCHEME} {PREFIX}…” with an API token of "
                "Kant."
            )
        # WSGI decodes headers as Latin-1; anything else cannot be a token.
        token = token_of_secret(secret.strip(), timezone.now())
        if token is None:
            raise AuthenticationFailed(
                "This API token is unknown, expired or revoked, or its user is not active"
                f"{_or_absent()}. Create a new one."
            )
        return token.user, token

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002
        return CHALLENGE


class PasswordAuthentication(BaseAuthentication):
    """`Authorization: Basic …`, for POST only: to get the first token.

    Another scheme → the next method is tried. A wrong password, or passwords switched off in the
    settings → 401. Too many wrong passwords → 429.
    """

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        scheme, _, encoded = request.META.get("HTTP_AUTHORIZATION", "").strip().partition(" ")
        if request.method != "POST" or scheme.lower() != "basic":
            return None
        if not settings.KANT_PASSWORD_SIGN_IN:
            raise AuthenticationFailed(
                "Kant accepts no passwords here. Sign in to the pages, create a token on the "
                f"page API tokens, and send it as “{SCHEME} {PREFIX}…”."
            )
        name, password = _credentials(encoded)
        address = attempts.client_address(request._request)
        if attempts.too_many(name, address):
            raise too_many(
                "Too many wrong passwords for this user name, or from this address.",
                attempts.WINDOW_S,
            )
        try:
            with attempts.turn():
                user = authenticate(request._request, username=name, password=password)
        except attempts.Busy:
            raise too_many(
                "Too many people are signing in right now.", int(attempts.TURN_S)
            ) from None
        if not isinstance(user, User):
            raise AuthenticationFailed("The user name or the password is wrong.")
        attempts.forget(name, address)
        return user, None

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002
        # Not Basic: a browser would ask for a password, and then send it with every request.
        return CHALLENGE


class SessionAuthentication(authentication.SessionAuthentication):
    """A browser's session."""

    def enforce_csrf(self, request: Request) -> None:
        try:
            super().enforce_csrf(request)
        except PermissionDenied:
            raise Problem(
                "not-allowed",
                "A write request with a browser session needs the header X-CSRFToken. Reload the "
                "page, or send an API token.",
            ) from None


def _or_absent() -> str:
    days = settings.KANT_OIDC_TOKEN_DAYS
    if not days:
        return ""
    return f" or has not signed in with {settings.KANT_OIDC_NAME} for {days} days"


def _credentials(encoded: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    name, colon, password = text.partition(":")
    if not (name and colon) or "\0" in text:
        raise AuthenticationFailed(
            "The Authorization header must read “Basic ” and the base64 of “user:password” in "
            "UTF-8; curl -u writes it."
        )
    return name, password


class ApiTokenScheme(OpenApiAuthenticationExtension):
    target_class = "tenants.api.authentication.ApiTokenAuthentication"
    name = TOKEN

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:  # noqa: ARG002
        return {"type": "http", "scheme": "bearer", "bearerFormat": f"{PREFIX}…"}


class SessionScheme(authentication_schemes.SessionScheme):
    target_class = "tenants.api.authentication.SessionAuthentication"


class PasswordScheme(OpenApiAuthenticationExtension):
    target_class = "tenants.api.authentication.PasswordAuthentication"
    name = PASSWORD

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:  # noqa: ARG002
        return {"type": "http", "scheme": "basic"}
