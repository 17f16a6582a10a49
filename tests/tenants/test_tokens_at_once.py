"""Tokens of simultaneous requests are looked up together, with the same result as one by one."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenants.models import ApiToken, Identity, User
from tenants.services import tokens
from tenants.services.tokens import AskedToken, create_token, digest_of, token_of_secret


@pytest.fixture
def secrets(org):
    """{what is asked: a secret}."""
    made = {
        "eve": create_token(org.users["eve"], "a"),
        "less": create_token(org.users["eve"], "b", scopes=["read"]),
        "ops": create_token(org.users["ops"], "c"),
        "ops in vision": create_token(org.users["ops"], "d", tenant="vision"),
        "revoked": create_token(org.users["eve"], "e"),
        "over": create_token(org.users["eve"], "f"),
        "gone": create_token(org.users["joe"], "g"),
        "seldom": create_token(org.users["vic"], "h"),
        "often": create_token(org.users["lex"], "i"),
    }
    now = timezone.now()
    ended = {"revoked": {"revoked_at": now}, "over": {"expires_at": now - timedelta(seconds=1)}}
    for name, columns in ended.items():
        ApiToken.objects.filter(pk=made[name].token.pk).update(**columns)
    User.objects.filter(username="joe").update(is_active=False)
    for name, days in (("vic", 40), ("lex", 1)):
        at = now - timedelta(days=days)
        Identity.objects.create(
            user=org.users[name], issuer="https://id", subject=name, signed_in_at=at
        )
    return {name: token.secret for name, token in made.items()} | {"unknown": "kant_none"}


def told(token):
    if token is None:
        return None
    user = token.user
    return token.name, token.scope_names, user.username, user.is_operator, user.only_in


@pytest.mark.parametrize("days", [0, 30])
def test_each_is_answered_as_if_it_came_alone(secrets, settings, monkeypatch, days):
    settings.KANT_OIDC_TOKEN_DAYS = days
    now = timezone.now()
    asked = [AskedToken(digest_of(secret), now) for secret in [*secrets.values()] * 2]
    with CaptureQueriesContext(connection) as statements:
        rows = tokens._read_together(asked)
    assert len(statements) == 1
    found = dict(zip(asked, rows, strict=True))
    alone = {name: told(token_of_secret(secret, now)) for name, secret in secrets.items()}
    monkeypatch.setattr(tokens, "_read", found.__getitem__)
    both = [token_of_secret(secrets["eve"], now) for _ in range(2)]
    assert both[0].user is not both[1].user
    together = {name: told(token_of_secret(secret, now)) for name, secret in secrets.items()}
    assert together == alone
    without = {name for name, token in alone.items() if token is None}
    assert without == {"revoked", "over", "gone", "unknown"} | ({"seldom"} if days else set())
    assert alone["ops"][3:] == (True, None)
    assert alone["ops in vision"][3] is False


@pytest.mark.parametrize("many", [1, 2, 3, 9, 32])
def test_few_texts_are_planned_for_any_number_of_them(org, many):
    now = timezone.now()
    secrets = [create_token(org.users["eve"], str(i)).secret for i in range(many)]
    asked = [AskedToken(digest_of(secret), now) for secret in secrets]
    with CaptureQueriesContext(connection) as statements:
        names = [row[0]["name"] for row in tokens._rows_of(asked)]
    assert names == [str(i) for i in range(many)]
    [statement] = statements.captured_queries
    # Each digest is written into the text, or has a placeholder there.
    places = statement["sql"].split("digest IN (")[1].split(")")[0].count(",") + 1
    assert places in (1, 2, 4, 16, 32)
