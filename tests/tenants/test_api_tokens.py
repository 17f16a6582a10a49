"""Tokens and sign-in for REST: hashed, shown once, revocable. Sessions need a CSRF token."""

import base64
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.core.cache.backends.redis import RedisCache
from django.utils import timezone
from rest_framework.test import APIClient

from kant.celery import app
from tenants.models import ApiToken, AuditRecord, IdempotencyKey, User
from tenants.sign_in import attempts

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


# --- the first token, by password -----------------------------------------------------------------
def basic(credentials, **extra):
    encoded = base64.b64encode(credentials.encode()).decode()
    return APIClient(REMOTE_ADDR="10.0.0.1", **extra, HTTP_AUTHORIZATION=f"Basic {encoded}")


@pytest.fixture
def no_attempts():
    cache.clear()
    yield
    cache.clear()


@pytest.mark.usefixtures("no_attempts")
def test_a_password_gives_the_first_token_as_curl_sends_it(org):
    made = basic("eve:x").post(
        URL, '{"name": "readme"}', content_type="application/x-www-form-urlencoded"
    )
    assert made.status_code == 201, made.json()
    client = APIClient(HTTP_AUTHORIZATION=f"Bearer {made.json()['secret']}")
    assert client.get("/api/v1/me").json()["username"] == "eve"
    assert basic("eve:x").post(URL, {"name": "json"}, format="json").status_code == 201
    assert (
        basic("eve:x").post(f"{URL}?dry_run=true", {"name": "a"}, format="json").status_code == 200
    )
    key = {"Idempotency-Key": "k"}
    first = basic("eve:x").post(
        URL, "{}", content_type="application/x-www-form-urlencoded", headers=key
    )
    assert (first.status_code, first.json()["errors"][0]["pointer"]) == (422, "/name")
    torn = basic("eve:x").post(URL, "name=a", content_type="application/x-www-form-urlencoded")
    assert (torn.status_code, torn.json()["code"]) == (400, "not-json")


@pytest.mark.usefixtures("no_attempts")
def test_a_password_is_good_for_nothing_else(org):
    eve = basic("eve:x")
    for answer in (
        eve.get(URL),
        eve.get("/api/v1/me"),
        eve.post("/api/v1/jobs", {}, format="json"),
        eve.delete(f"{URL}/1"),
    ):
        assert answer.status_code == 401
        assert answer["WWW-Authenticate"] == 'Bearer realm="kant"'


@pytest.mark.usefixtures("no_attempts")
@pytest.mark.parametrize("who", ["eve:wrong", "nobody:x", "gone:x", "eve", ":x", "", "e\0e:x"])
def test_wrong_passwords(org, who):
    User.objects.create_user("gone", password="x", is_active=False)
    answer = basic(who).post(URL, {"name": "a"}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (401, "not-signed-in")
    for header in ("Basic", "Basic %%%", "Basic /w=="):
        client = APIClient(HTTP_AUTHORIZATION=header)
        assert client.post(URL, {"name": "a"}, format="json").status_code == 401
    assert not ApiToken.objects.exists()


@pytest.mark.usefixtures("no_attempts")
def test_guessing_is_throttled_per_user_name_and_address(org):
    for _ in range(9):
        assert basic("eve:guess").post(URL, {"name": "a"}, format="json").status_code == 401
    assert basic("eve:x").post(URL, {"name": "a"}, format="json").status_code == 201
    for _ in range(10):  # the correct password restarted the count
        assert basic("eve:guess").post(URL, {"name": "a"}, format="json").status_code == 401
    refused = basic("eve:x").post(URL, {"name": "a"}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (429, "throttled")
    assert refused["Retry-After"] == "300"
    assert "user name" in refused.json()["detail"]
    assert basic("joe:x").post(URL, {"name": "a"}, format="json").status_code == 201
    elsewhere = basic("eve:x")
    elsewhere.defaults["REMOTE_ADDR"] = "10.0.0.2"
    assert elsewhere.post(URL, {"name": "a"}, format="json").status_code == 201
    assert org.client("eve").post(URL, {"name": "a"}, format="json").status_code == 201


@pytest.mark.usefixtures("no_attempts")
def test_the_sign_in_page_and_rest_count_guesses_together(org, client):
    wrong = {"username": "eve", "password": "guess"}
    right = {"username": "eve", "password": "x"}
    client.defaults["REMOTE_ADDR"] = "10.0.0.1"
    for _ in range(9):
        assert "The user name or the password is wrong." in text(client.post("/login/", wrong))
    client.post("/login/", {"username": "eve", "password": ""})  # not a guess
    assert client.post("/login/", right).status_code == 302
    client.post("/logout/")
    for _ in range(5):  # the correct password restarted the count
        client.post("/login/", wrong)
        client.post("/login/", {**wrong, "username": " eve "})  # the same name, as forms read it
    refused = "Too many wrong passwords for this user name, or from this address. Try again in 5"
    assert refused in text(client.post("/login/", right))
    assert basic("eve:x").post(URL, {"name": "a"}, format="json").status_code == 429
    assert client.post("/login/", {"username": "joe", "password": "x"}).status_code == 302


def test_people_sign_in_while_redis_is_away(org, client, monkeypatch, caplog):
    monkeypatch.setattr(attempts, "cache", RedisCache("redis://127.0.0.1:1/0", {}))
    assert basic("eve:guess").post(URL, {"name": "a"}, format="json").status_code == 401
    assert basic("eve:x").post(URL, {"name": "a"}, format="json").status_code == 201
    wrong = client.post("/login/", {"username": "eve", "password": "guess"})
    assert "The user name or the password is wrong." in text(wrong)
    assert client.post("/login/", {"username": "eve", "password": "x"}).status_code == 302
    assert caplog.text.count("meanwhile wrong passwords are not counted") == 1


def text(answer):
    return answer.content.decode()


def test_tokens_that_ended_long_ago_are_forgotten_every_hour(org, settings):
    settings.KANT_KEEP_DAYS = 30
    now, eve = timezone.now(), org.users["eve"]
    ended = {
        "used": {},
        "lasts": {"expires_at": now + timedelta(days=1)},
        "expired": {"expires_at": now - timedelta(days=29)},
        "revoked": {"revoked_at": now - timedelta(days=29)},
        "expired long ago": {"expires_at": now - timedelta(days=31)},
        "revoked long ago": {"revoked_at": now - timedelta(days=31)},
    }
    for name, values in ended.items():
        ApiToken.objects.create(user=eve, name=name, digest=name, **values)
    entry = app.conf.beat_schedule["tokens"]
    assert entry["schedule"] == 3600
    app.loader.import_default_modules()  # as a worker does
    app.tasks[entry["task"]]()
    kept = set(ApiToken.objects.filter(user=eve).values_list("name", flat=True))
    assert kept == {"used", "lasts", "expired", "revoked"}
