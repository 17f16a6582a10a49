"""API tokens: 256 random bits, stored only as a hash."""

import hashlib
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connection
from django.db.models import Q
from django.utils import timezone

from tenants.database import rows
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import ApiToken, Identity, Scope, Tenant, User
from tenants.outage import in_passing
from tenants.permissions import access_of
from tenants.selectors import tenant_by_name
from tenants.services.joined import Joined, nothing_done
from tenants.services.transactions import checked, unit_of_work

PREFIX = "kant_"
# Enough of the secret to tell tokens apart in a list; the remaining bits stay unguessable.
SHOWN = len(PREFIX) + 6
# Valid tokens per user: each is a way in.
MOST_TOKENS = 100
# Without this, a token would cost one write per request.
LAST_USED_PRECISION = timedelta(minutes=1)


class NewToken(NamedTuple):
    """A created token and its secret, which cannot be read again."""

    token: ApiToken
    secret: str


def digest_of(secret: str) -> str:
    """Return SHA-256 in hex. A slow hash adds nothing to a secret of 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(
    actor: User,
    name: str,
    *,
    expires_at: datetime | None = None,
    scopes: Collection[str] | None = None,
    tenant: str | None = None,
    parent: ApiToken | None = None,
    dry_run: bool = False,
) -> NewToken:
    """Create a token that acts as `actor`, within `scopes` (None = all) and, if given, a tenant and
    those below.

    A token created by another one, its `parent`, by default has the parent's limits, and never
    wider ones. Raises Invalid, NotFound, and Conflict when there are already MOST_TOKENS.
    """
    if not name.strip():
        raise Invalid.field("name", "Say what the token is for, e.g. “ci” or “laptop”.")
    if expires_at is not None and expires_at <= timezone.now():
        raise Invalid.field(
            "expires_at", "Is in the past. Give a later time, or null for no expiry."
        )
    with unit_of_work(dry_run):
        # One at a time: so the limit holds, and no token gets a parent that was just revoked.
        User.objects.select_for_update().filter(pk=actor.pk).first()
        if parent is not None:
            parent = ApiToken.objects.filter(_holds(timezone.now()), pk=parent.pk).first()
            if parent is None:
                raise Conflict("The token of this request has expired. Sign in again.")
        _refuse_too_many(actor)
        return _made(actor, name, expires_at, scopes, tenant, parent)


def _made(
    actor: User,
    name: str,
    expires_at: datetime | None,
    scopes: Collection[str] | None,
    tenant: str | None,
    parent: ApiToken | None,
) -> NewToken:
    secret = PREFIX + secrets.token_urlsafe(32)
    token = ApiToken(
        user=actor,
        name=name.strip(),
        prefix=secret[:SHOWN],
        digest=digest_of(secret),
        expires_at=_end(expires_at, parent),
        scopes=_scopes(scopes, parent),
        tenant=_tenant(actor, tenant, parent),
        parent=parent,
    )
    checked(token).save(force_insert=True)
    return NewToken(token, secret)


def _refuse_too_many(actor: User) -> None:
    held = ApiToken.objects.filter(_holds(timezone.now()), user=actor)
    if held.count() >= MOST_TOKENS:
        raise Conflict(
            f"You have {MOST_TOKENS} valid API tokens, which is the limit. Revoke one that you "
            "no longer use, with DELETE /api/v1/tokens/ID or on the page API tokens."
        )


def _end(wanted: datetime | None, parent: ApiToken | None) -> datetime | None:
    most = parent.expires_at if parent is not None else None
    if most is not None and wanted is not None and wanted > most:
        raise Invalid.field(
            "expires_at",
            f"The token of this request expires at {most:%Y-%m-%dT%H:%M:%SZ}, and so does a token "
            "that it creates. Give a time before that, or none.",
        )
    return wanted or most


def _scopes(wanted: Collection[str] | None, parent: ApiToken | None) -> str:
    """Return the scopes as stored."""
    most = parent.scope_names if parent is not None else list(Scope.values)
    if wanted is None:
        return parent.scopes if parent is not None else ""
    if not wanted:
        raise Invalid.field(
            "scopes", f"Give at least one of {', '.join(most)}, or null for all of them."
        )
    for scope in wanted:
        if scope not in Scope.values:
            raise Invalid.field("scopes", f"Choose some of {', '.join(Scope.values)}.")
        if scope not in most:
            raise Invalid.field(
                "scopes",
                f"The token of this request has only {', '.join(most)} and cannot give "
                f"“{scope}”. Leave it out, or sign in.",
            )
    return " ".join(scope for scope in Scope.values if scope in wanted)


def _tenant(actor: User, wanted: str | None, parent: ApiToken | None) -> Tenant | None:
    most = parent.tenant if parent is not None else None
    if wanted is None:
        return most
    try:
        found = tenant_by_name(access_of(actor), wanted)
    except NotFound as error:
        # Also for a tenant above the requesting token's own: that token sees only what it may use.
        raise Invalid.field("tenant", error.detail) from None
    return found


def revoke_token(
    actor: User, token_id: int, *, by: ApiToken | None = None, dry_run: bool = False
) -> None:
    """Revoke a token of one's own (operators: anybody's) and all that it created. Revoking twice
    is no error. `by`: the requesting token; a limited one may revoke only itself and what it
    created."""
    tokens = ApiToken.objects.filter(id=token_id)
    if not actor.is_operator:
        tokens = tokens.filter(user=actor)
    if by is not None and by.is_limited:
        tokens = tokens.filter(pk__in=family(by.pk))
    with unit_of_work(dry_run):
        token = tokens.first()
        if token is None:
            raise NotFound(f"You have no token {token_id}. GET /api/v1/tokens lists yours.")
        User.objects.select_for_update().filter(pk=token.user_id).first()
        ended = ApiToken.objects.filter(pk__in=family(token.pk), revoked_at=None)
        ended.update(revoked_at=timezone.now())


def family(token_id: int) -> set[int]:
    """Return a token, those that it created, those that they created, …"""
    found, latest = {token_id}, {token_id}
    while latest:
        made = ApiToken.objects.filter(parent__in=latest).values_list("pk", flat=True)
        latest = set(made) - found
        found |= latest
    return found


def _holds(now: datetime) -> Q:
    return Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=now))


def forget_ended_tokens() -> int:
    """Delete tokens that were revoked or expired more than KANT_KEEP_DAYS ago; return how many."""
    before = timezone.now() - timedelta(days=settings.KANT_KEEP_DAYS)
    ended = Q(revoked_at__lt=before) | Q(expires_at__lt=before)
    deleted, _ = ApiToken.objects.filter(ended).delete()
    return deleted


class AskedToken(NamedTuple):
    digest: str
    now: datetime


def token_of_secret(secret: str, now: datetime) -> ApiToken | None:
    """Return the token of a secret, with its active user, whose rights are already limited to the
    token's.

    None when the token is unknown, expired or revoked, or when its user has not signed in at the
    OpenID provider for KANT_OIDC_TOKEN_DAYS. One statement serves concurrent calls.
    """
    found = _read(AskedToken(digest_of(secret), now))
    if found is None:
        return None
    token = rows.row(ApiToken, found[0])
    token.user = rows.row(User, found[1])
    if token.expires_at is not None and token.expires_at <= now:
        return None
    if token.last_used_at is None or now - token.last_used_at >= LAST_USED_PRECISION:
        with in_passing():
            ApiToken.objects.filter(id=token.pk).update(last_used_at=now)
    if token.tenant_id is not None:
        token.user.only_in = token.tenant_id, token.user.is_operator
        token.user.is_operator = False
    return token


_TokenRow = list[dict[str, Any]]  # columns of the token, and of its user


def _rows_of(asked: Sequence[AskedToken]) -> list[_TokenRow | None]:
    """Return, for each secret, the row of a token that is not revoked and whose user is active."""
    digests = sorted({one.digest for one in asked})
    # Pad to a power of two with the last digest, so that the database plans few different
    # statements.
    wanted = digests + digests[-1:] * ((1 << (len(digests) - 1).bit_length()) - len(digests))
    params: list[str | int | None] = [*wanted]
    quote = connection.ops.quote_name
    tokens, users, identities = (
        quote(model._meta.db_table) for model in (ApiToken, User, Identity)
    )
    held = f"{tokens} t JOIN {users} u ON u.id = t.user_id "
    may = f"WHERE t.digest IN ({rows.marks(wanted)}) AND t.revoked_at IS NULL AND u.is_active"
    if days := settings.KANT_OIDC_TOKEN_DAYS:
        held += f"LEFT JOIN {identities} i ON i.user_id = u.id "
        may += " AND (i.id IS NULL OR i.signed_in_at > %s)"
        since = max(one.now for one in asked) - timedelta(days=days)
        params.append(connection.ops.adapt_datetimefield_value(since))
    of_both = rows.array(rows.as_json(ApiToken, "t"), rows.as_json(User, "u"))
    found = rows.ask(f"SELECT {rows.listed(of_both, held + may)}", params)
    assert found is not None  # it selects a list
    by_digest = {row[0]["digest"]: row for row in found[0] or []}
    return [by_digest.get(one.digest) for one in asked]


def _row_of(asked: AskedToken) -> _TokenRow | None:
    return _rows_of([asked])[0]


def _read_together(asked: Sequence[AskedToken]) -> list[_TokenRow | None]:
    with nothing_done():
        return _rows_of(asked)


_read = Joined(_row_of, _read_together, 32)
