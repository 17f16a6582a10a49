"""Bearer tokens. Browsers use their session, which DRF authenticates (with CSRF) itself."""

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from tenants.models import User
from tenants.services.tokens import PREFIX, user_of_secret

SCHEME = "Bearer"


class ApiTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer kant_…`. Absent → the next method is asked; wrong → 401."""

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        header = request.META.get("HTTP_AUTHORIZATION", "")
        scheme, _, secret = header.strip().partition(" ")
        if not scheme:
            return None
        if scheme.lower() != SCHEME.lower() or not secret.strip().startswith(PREFIX):
            raise AuthenticationFailed(
                f"The Authorization header must read “{SCHEME} {PREFIX}…” with an API token of "
                "Kant."
            )
        # WSGI hands headers over as Latin-1; anything else cannot be a token.
        user = user_of_secret(secret.strip(), timezone.now())
        if user is None:
            raise AuthenticationFailed(
                "This API token is unknown, expired or revoked, or its user is not active. "
                "Create a new one."
            )
        return user, None

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002
        return f'{SCHEME} realm="kant"'


class ApiTokenScheme(OpenApiAuthenticationExtension):
    target_class = "tenants.api.authentication.ApiTokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:  # noqa: ARG002
        return {"type": "http", "scheme": "bearer", "bearerFormat": f"{PREFIX}…"}
