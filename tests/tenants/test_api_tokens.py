"""Tokens and sign-in for REST: hashed, shown once, revocable; sessions need a CSRF token."""

from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from tenants.models import ApiToken, AuditRecord, IdempotencyKey

URL = "/api/v1/tokens"


def test_the_secret_is_shown_once_and_stored_nowhere(org):
    eve = org.client("eve")
    made = eve.post(URL, {"name": "laptop"}, format="json", headers={"Idempotency-Key": "k"})
    assert made.status_code == 201
    secret = made.json()["secret"]
    assert secret.startswith("kant_")
    assert len(secret) > 40
    stored = ApiToken.objects.get(id=made.json()["id"])
    assert secret not in str(vars(stored))
    assert secret.startswith(stored.prefix)
    assert secret not in str([vars(k) for k in IdempotencyKey.objects.all()])
    again = eve.post(URL, {"name": "laptop"}, format="json", headers={"Idempotency-Key": "k"})
    assert again.json() == {**made.json(), "secret": None}
    assert secret not in eve.get(URL).content.decode()
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert client.get("/api/v1/me").json()["username"] == "eve"
    assert ApiToken.objects.get(id=stored.pk).last_used_at is not None


def test_me_names_the_roles(org):
    me = org.client("ada").get("/api/v1/me").json()
    assert me["memberships"] == [{"tenant": "vision", "role": "tenant-admin"}]
    assert me["is_operator"] is False


@pytest.mark.parametrize("how", ["revoked", "expired", "inactive", "unknown"])
def test_a_token_that_no_longer_holds(org, how):
    client = org.client("eve")
    tokens = ApiToken.objects.filter(user=org.users["eve"])
    if how == "revoked":
        assert client.delete(f"{URL}/{tokens.get().pk}").status_code == 204
    elif how == "expired":
        tokens.update(expires_at=timezone.now() - timedelta(seconds=1))
    elif how == "inactive":
        org.users["eve"].is_active = False
        org.users["eve"].save()
    else:
        tokens.delete()
    answer = client.get("/api/v1/me")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == 'Bearer realm="kant"'
    assert answer.json()["code"] == "not-signed-in"


@pytest.mark.parametrize("header", ["Bearer", "Basic a2FudA==", "Bearer abc", "Bearer kant_ü", "x"])
def test_authorization_headers_that_are_none(db, header):
    answer = APIClient().get("/api/v1/me", HTTP_AUTHORIZATION=header)
    assert answer.status_code == 401
    assert answer["Content-Type"] == "application/problem+json"


def test_no_credentials_at_all(db):
    answer = APIClient().get("/api/v1/jobs")
    assert answer.status_code == 401
    assert answer["Content-Type"] == "application/problem+json"


def test_tokens_of_others_are_out_of_reach(org):
    joe = org.client("joe")
    token = ApiToken.objects.get(user=org.users["joe"])
    assert org.client("eve").delete(f"{URL}/{token.pk}").status_code == 404
    assert joe.get("/api/v1/me").status_code == 200
    assert org.client("ops").delete(f"{URL}/{token.pk}").status_code == 204
    assert joe.get("/api/v1/me").status_code == 401


def test_wrong_fields(org):
    eve = org.client("eve")
    past = (timezone.now() - timedelta(days=1)).isoformat()
    for body, pointer in (
        ({"name": " "}, "/name"),
        ({}, "/name"),
        ({"name": "x", "expires_at": past}, "/expires_at"),
        ({"name": "x", "expires_at": "soon"}, "/expires_at"),
        ({"name": "x", "scopes": []}, "/scopes"),
    ):
        answer = eve.post(URL, body, format="json")
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert eve.post(f"{URL}?dry_run=true", {"name": "x"}, format="json").status_code == 200
    assert ApiToken.objects.filter(user=org.users["eve"]).count() == 1


def test_a_session_works_but_writes_need_the_csrf_token(org):
    browser = APIClient(enforce_csrf_checks=True)
    browser.force_login(org.users["eve"])
    assert browser.get("/api/v1/me").status_code == 200
    refused = browser.post(URL, {"name": "x"}, format="json")
    assert refused.status_code == 403
    assert "CSRF" in refused.json()["detail"]
    assert not AuditRecord.objects.exists()
