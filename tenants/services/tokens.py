"""API tokens: 256 random bits, of which only a hash is kept."""

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from tenants.errors import Invalid, NotFound
from tenants.models import ApiToken, User
from tenants.services.transactions import checked, unit_of_work

PREFIX = "kant_"
# Enough of the secret to tell tokens apart in a list; the remaining bits stay unguessable.
SHOWN = len(PREFIX) + 6
# A used token would otherwise cost one write per request.
LAST_USED_PRECISION = timedelta(minutes=1)


class NewToken(NamedTuple):
    """A created token and its secret, which nobody can read again."""

    token: ApiToken
    secret: str


def digest_of(secret: str) -> str:
    """SHA-256 in hex. A slow hash adds nothing to a secret of 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(
    actor: User, name: str, *, expires_at: datetime | None = None, dry_run: bool = False
) -> NewToken:
    """A token that acts as `actor`. Raises Invalid for an empty name or a past expiry."""
    if not name.strip():
        raise Invalid.field("name", "Say what the token is for, e.g. “ci” or “laptop”.")
    if expires_at is not None and expires_at <= timezone.now():
        raise Invalid.field("expires_at", "Lies in the past. Give a later time, or null for none.")
    secret = PREFIX + secrets.token_urlsafe(32)
    token = ApiToken(
        user=actor,
        name=name.strip(),
        prefix=secret[:SHOWN],
        digest=digest_of(secret),
        expires_at=expires_at,
    )
    with unit_of_work(dry_run):
        checked(token).save(force_insert=True)
    return NewToken(token, secret)


def revoke_token(actor: User, token_id: int, *, dry_run: bool = False) -> None:
    """End a token of one's own (operators: anybody's). Revoking twice is no error."""
    tokens = ApiToken.objects.filter(id=token_id)
    if not actor.is_operator:
        tokens = tokens.filter(user=actor)
    with unit_of_work(dry_run):
        if not tokens.exists():
            raise NotFound(f"You have no token {token_id}. GET /api/v1/tokens lists yours.")
        tokens.filter(revoked_at=None).update(revoked_at=timezone.now())


def forget_ended_tokens() -> int:
    """Delete tokens that were revoked or expired more than KANT_KEEP_DAYS ago; returns how many."""
    before = timezone.now() - timedelta(days=settings.KANT_KEEP_DAYS)
    ended = Q(revoked_at__lt=before) | Q(expires_at__lt=before)
    deleted, _ = ApiToken.objects.filter(ended).delete()
    return deleted


def user_of_secret(secret: str, now: datetime) -> User | None:
    """The active user a secret stands for; None when unknown, expired or revoked, or when its user
    has not signed in at the OpenID provider for KANT_OIDC_TOKEN_DAYS."""
    tokens = ApiToken.objects.select_related("user").filter(
        digest=digest_of(secret), revoked_at=None, user__is_active=True
    )
    if days := settings.KANT_OIDC_TOKEN_DAYS:
        local = Q(user__identity=None)
        recent = Q(user__identity__signed_in_at__gt=now - timedelta(days=days))
        tokens = tokens.filter(local | recent)
    token = tokens.first()
    if token is None or (token.expires_at is not None and token.expires_at <= now):
        return None
    if token.last_used_at is None or now - token.last_used_at >= LAST_USED_PRECISION:
        ApiToken.objects.filter(id=token.pk).update(last_used_at=now)
    return token.user
