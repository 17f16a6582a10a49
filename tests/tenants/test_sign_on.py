"""Single sign-on against a real OpenID provider on loopback: the protocol and its edge cases."""

import logging
import time
from base64 import b64encode
from urllib.parse import parse_qsl, urlsplit

import pytest
from joserfc.jwk import OctKey, RSAKey

from tenants.models import AuditRecord, Identity, Membership, Role, User
from tenants.services.members import set_member
from tenants.services.tokens import create_token
from tests.openid import running

pytestmark = pytest.mark.django_db


@pytest.fixture
def idp(org, settings, tmp_path):
    file = tmp_path / "groups.yaml"
    file.write_text("gpu:\n  vision: engineer\nleads:\n  vision: tenant-admin\n  law: viewer\n")
    settings.KANT_OIDC_GROUPS_FILE = str(file)
    settings.KANT_OIDC_OPERATOR_GROUPS = ["ops"]
    with running(settings) as provider:
        yield provider


def back(client, idp, page=""):
    """Return the address with which the browser comes back from the provider."""
    there = client.get("/login/oidc/", {"next": page})
    assert there.status_code == 302, there.content
    return idp.authorize(dict(parse_qsl(urlsplit(there["Location"]).query)))


def sign_in(client, idp, page=""):
    return client.get(back(client, idp, page))


def signed_in(client):
    return "_auth_user_id" in client.session


def groups(client, idp, *names):
    """Sign in anew as a member of these groups."""
    client.logout()
    idp.claims["groups"] = list(names)
    assert sign_in(client, idp).status_code == 302
    return {m.tenant.name: m.role for m in Membership.objects.filter(user__username="grace")}


def test_who_signs_in_the_first_time_has_an_account_and_what_the_groups_give(client, idp):
    idp.claims |= {"groups": ["gpu"], "given_name": "Grace", "email": "grace@example.com"}
    there = client.get("/login/oidc/", {"next": "/jobs/?state=open"})
    asked = dict(parse_qsl(urlsplit(there["Location"]).query))
    assert asked["code_challenge_method"] == "S256"
    assert asked["scope"] == "openid profile email"
    assert asked["redirect_uri"] == "http://testserver/login/oidc/callback/"
    answer = client.get(idp.authorize(asked))
    assert (answer.status_code, answer["Location"]) == (302, "/jobs/?state=open")
    user = User.objects.get(username="grace")
    assert (user.first_name, user.email) == ("Grace", "grace@example.com")
    assert not user.has_usable_password()
    assert (user.identity.issuer, user.identity.subject) == (idp.issuer, "00u1")
    assert client.session.get_expiry_age() == 12 * 3600
    record = AuditRecord.objects.get(action="member.set")
    assert (record.source, record.after) == ("sign-in", {"role": "engineer"})
    assert "“gpu”" in record.reason


def test_groups_give_and_take_at_each_sign_in_and_leave_alone_what_was_given_by_hand(
    client, idp, org
):
    assert groups(client, idp, "gpu", "leads") == {"vision": Role.TENANT_ADMIN, "law": Role.VIEWER}
    assert groups(client, idp, "gpu") == {"vision": Role.ENGINEER}
    records = AuditRecord.objects.filter(action="member.removed")
    assert [r.before for r in records] == [{"role": "viewer"}]
    set_member(org.users["ops"], org.tenants["law"], "grace", Role.ENGINEER, source="api")
    assert groups(client, idp, "leads") == {"vision": Role.TENANT_ADMIN, "law": Role.ENGINEER}
    assert groups(client, idp) == {"law": Role.ENGINEER}
    count = AuditRecord.objects.count()
    groups(client, idp)
    assert AuditRecord.objects.count() == count


def test_operators_by_group_are_so_until_they_leave_it(client, idp):
    groups(client, idp, "ops")
    assert User.objects.get(username="grace").is_operator
    groups(client, idp)
    assert not User.objects.get(username="grace").is_operator
    records = AuditRecord.objects.filter(action="user.changed").order_by("at")
    assert [r.after for r in records] == [{"is_operator": True}, {"is_operator": False}]
    User.objects.filter(username="grace").update(is_operator=True)  # made by hand
    groups(client, idp)
    assert User.objects.get(username="grace").is_operator


def test_who_is_in_no_group_is_told_whom_to_ask(client, idp):
    sign_in(client, idp)
    assert "You belong to no tenant yet" in client.get("/", follow=True).content.decode()


def test_claims_that_the_id_token_lacks_come_from_userinfo(client, idp):
    idp.claims = {"sub": "00u1"}
    idp.userinfo = {"preferred_username": "grace", "groups": ["gpu"]}
    assert sign_in(client, idp).status_code == 302
    assert Membership.objects.get(user__username="grace").by_group
    client.logout()
    idp.userinfo["sub"] = "somebody else"
    assert sign_in(client, idp).status_code == 502


def test_a_name_at_the_provider_takes_no_account_over(client, idp, org):
    idp.claims["preferred_username"] = "Eve"
    answer = sign_in(client, idp)
    assert answer.status_code == 409
    assert "already has an account “Eve”" in answer.content.decode()
    assert "“00u1”" in answer.content.decode()
    assert not signed_in(client)
    Identity.objects.create(user=org.users["eve"], issuer=idp.issuer, subject="00u1")
    assert sign_in(client, idp).status_code == 302
    assert client.session["_auth_user_id"] == str(org.users["eve"].pk)


def test_another_name_at_the_provider_is_the_same_account(client, idp):
    sign_in(client, idp)
    client.logout()
    idp.claims["preferred_username"] = "grace.hopper"
    sign_in(client, idp)
    assert User.objects.get(identity__subject="00u1").username == "grace"


def test_a_deactivated_user_stays_out(client, idp):
    sign_in(client, idp)
    User.objects.filter(username="grace").update(is_active=False)
    assert client.get("/jobs/").status_code == 302  # the session ends at once
    client.logout()
    idp.claims["groups"] = ["gpu"]
    answer = sign_in(client, idp)
    assert answer.status_code == 403
    assert "is disabled" in answer.content.decode()
    assert not Membership.objects.filter(user__username="grace").exists()


NOW = int(time.time())  # taken when tests are collected; they may run long after it


@pytest.mark.parametrize(
    ("wrong", "title", "log"),
    [
        ({"nonce": "x"}, "cannot be trusted", "nonce"),
        ({"nonce": None}, "cannot be trusted", "nonce"),
        ({"aud": "other"}, "cannot be trusted", "'aud'"),
        ({"aud": ["other"], "azp": "kant"}, "cannot be trusted", "'aud'"),
        ({"aud": ["kant", "other"], "azp": "other"}, "cannot be trusted", "azp"),
        ({"iss": "https://other.example"}, "cannot be trusted", "'iss'"),
        ({"sub": None}, "cannot be trusted", "sub"),
        ({"exp": NOW - 3600}, "clocks differ", "clock is"),
        ({"iat": NOW + 86_400, "exp": NOW + 90_000}, "clocks differ", "future"),
        ({"exp": None}, "cannot be trusted", "exp"),
        ({"at_hash": "x"}, "cannot be trusted", "at_hash"),
        ({"preferred_username": None}, "Nobody can sign in", "KANT_OIDC_USERNAME_CLAIM"),
        ({"groups": {"a": 1}}, "Nobody can sign in", "no list of names"),
        ({"groups": None, "_claim_names": {"groups": "x"}}, "Nobody can sign in", "more groups"),
        ({"preferred_username": "a b"}, "You were not signed in", "cannot be a Kant user name"),
    ],
)
def test_a_token_that_proves_nothing_signs_nobody_in(client, idp, caplog, wrong, title, log):
    idp.wrong = wrong
    answer = sign_in(client, idp)
    assert answer.status_code in (409, 502)
    assert title in answer.content.decode()
    assert log in caplog.text
    assert not signed_in(client)
    assert not Identity.objects.exists()


def test_clocks_may_differ_by_a_minute(client, idp):
    idp.wrong = {"exp": int(time.time()) - 30}
    assert sign_in(client, idp).status_code == 302


@pytest.mark.parametrize("how", ["other key", "unsigned", "HMAC by the secret"])
def test_a_signature_of_somebody_else_signs_nobody_in(client, idp, caplog, how):
    if how == "other key":
        idp.sign_with = RSAKey.generate_key(2048)
    elif how == "unsigned":
        idp.header = {"alg": "none"}
    else:
        idp.header = {"alg": "HS256", "kid": idp.key.kid}
        idp.sign_with = OctKey.import_key("s3cret-s3cret-s3cret-s3cret-s3cret")
    answer = sign_in(client, idp)
    assert answer.status_code == 502
    assert "cannot be trusted" in answer.content.decode()
    assert not signed_in(client)


def test_a_key_that_was_changed_is_found(client, idp):
    sign_in(client, idp)
    client.logout()
    idp.key = idp.sign_with = RSAKey.generate_key(2048, {"use": "sig"}, auto_kid=True)
    idp.header["kid"] = idp.key.kid
    assert sign_in(client, idp).status_code == 302


def test_an_answer_is_taken_once_and_in_the_browser_that_asked(client, idp):
    address = back(client, idp)
    assert type(client)().get(address).status_code == 400
    assert client.get(address).status_code == 302
    client.get("/login/")
    again = client.get(address)
    assert again.status_code == 400
    assert "started in another browser, is already over" in again.content.decode()


def test_an_answer_that_comes_too_late_is_not_taken(client, idp, caplog):
    address = back(client, idp)
    session = client.session
    for pending in session["oidc"].values():
        pending["at"] -= 601
    session.save()
    assert client.get(address).status_code == 400
    assert "longer than 600 s" in caplog.text


def test_a_code_of_another_sign_in_is_refused_by_its_verifier(client, idp):
    first, second = back(client, idp), back(client, idp)
    stolen = dict(parse_qsl(urlsplit(first).query))["code"]
    state = dict(parse_qsl(urlsplit(second).query))["state"]
    answer = client.get("/login/oidc/callback/", {"code": stolen, "state": state})
    assert answer.status_code == 400
    assert not signed_in(client)


def test_sign_ins_in_several_tabs_do_not_end_each_other(client, idp):
    first = back(client, idp, "/jobs/")
    back(client, idp)
    assert client.get(first)["Location"] == "/jobs/"


@pytest.mark.parametrize("page", ["https://evil.example/", "//evil.example", "javascript:x"])
def test_nobody_is_led_elsewhere(client, idp, page):
    assert sign_in(client, idp, page)["Location"] == "/"


def test_who_cancels_is_told_so_with_the_way_back(client, idp):
    idp.refusal = {"error": "access_denied", "error_description": "<b>Not assigned"}
    answer = sign_in(client, idp, "/jobs/")
    text = answer.content.decode()
    assert answer.status_code == 403
    assert "&lt;b&gt;Not assigned" in text
    assert "/login/oidc/?next=%2Fjobs%2F" in text
    # Text in an address that matches no pending sign-in is not shown.
    forged = client.get("/login/oidc/callback/", {"error": "Call 555", "state": "x"})
    assert "Call 555" not in forged.content.decode()


def test_an_answer_of_another_issuer_is_not_taken(client, idp):
    assert client.get(back(client, idp) + "&iss=https://other.example").status_code == 502


CONFIGURATION = "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("path", "status", "body", "title"),
    [
        (CONFIGURATION, 503, b"", "does not answer"),
        (CONFIGURATION, 404, b"", "Nobody can sign in"),
        (CONFIGURATION, 200, b"<html>", "Nobody can sign in"),
        (CONFIGURATION, 200, b"[]", "Nobody can sign in"),
        (CONFIGURATION, 200, b'{"issuer": "https://other.example"}', "Nobody can sign in"),
        ("/token", 500, b"", "does not answer"),
        ("/token", 200, b"<html>", "Nobody can sign in"),
        ("/token", 200, b"{}", "Nobody can sign in"),
        ("/token", 200, b'{"id_token": "x.y.z"}', "cannot be trusted"),
        ("/keys", 502, b"", "does not answer"),
        ("/keys", 200, b"{}", "cannot be trusted"),
        ("/keys", 200, b'{"keys": [1]}', "cannot be trusted"),
    ],
)
def test_a_provider_that_fails_is_a_page_and_a_line(client, idp, caplog, path, status, body, title):
    if path == CONFIGURATION:
        idp.answers[path] = status, body
        answer = client.get("/login/oidc/")
    else:
        address = back(client, idp)
        idp.answers[path] = status, body
        answer = client.get(address)
    assert answer.status_code == 502
    assert title in answer.content.decode()
    assert f"sign-in by {idp.issuer} failed: " in caplog.text


def test_a_provider_that_is_away_is_told_at_once(client, idp, settings, caplog):
    settings.KANT_OIDC_ISSUER = "http://127.0.0.1:1"
    answer = client.get("/login/oidc/")
    assert (answer.status_code, "does not answer" in answer.content.decode()) == (502, True)
    assert "127.0.0.1:1" in caplog.text


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri"])
def test_an_address_of_the_provider_that_others_can_read_is_not_used(client, idp, caplog, name):
    idp.metadata[name] = "http://id.example.com/"
    assert client.get("/login/oidc/").status_code == 502
    assert name in caplog.text


def test_a_wrong_secret_is_named_in_the_log_and_shown_nowhere(client, idp, settings, caplog):
    settings.KANT_OIDC_CLIENT_SECRET = "mistyped"
    answer = sign_in(client, idp)
    assert answer.status_code == 502
    assert "correct KANT_OIDC_CLIENT_ID or the client's secret" in caplog.text
    assert "mistyped" not in caplog.text + answer.content.decode()


def test_a_broken_file_of_groups_takes_nobody_their_roles(client, idp, settings, tmp_path, caplog):
    assert groups(client, idp, "gpu")
    client.logout()
    (tmp_path / "groups.yaml").write_text("gpu: {vision: enginer}")
    assert client.get("/login/oidc/").status_code == 502
    assert "line 1" in caplog.text
    assert Membership.objects.filter(user__username="grace").exists()


def test_a_tenant_that_is_not_there_is_left_out(client, idp, tmp_path, caplog):
    (tmp_path / "groups.yaml").write_text("gpu: {vision: engineer, gone: viewer}")
    caplog.set_level(logging.WARNING)
    assert groups(client, idp, "gpu") == {"vision": Role.ENGINEER}
    assert "“gone”" in caplog.text


def test_a_secure_cookie_comes_back_by_https(client, idp, settings):
    settings.SESSION_COOKIE_SECURE = True
    asked = dict(parse_qsl(urlsplit(client.get("/login/oidc/")["Location"]).query))
    assert asked["redirect_uri"] == "https://testserver/login/oidc/callback/"


def test_tokens_outlive_the_sign_in_unless_the_settings_say_for_how_long(
    client, idp, settings, org
):
    sign_in(client, idp)
    user = User.objects.get(username="grace")
    bearer = {"Authorization": f"Bearer {create_token(user, 'ci').secret}"}
    Identity.objects.update(signed_in_at="2020-01-01T00:00:00Z")
    anonymous = type(client)()
    assert anonymous.get("/api/v1/me", headers=bearer).status_code == 200
    settings.KANT_OIDC_TOKEN_DAYS = 30
    refused = anonymous.get("/api/v1/me", headers=bearer)
    assert refused.status_code == 401
    assert "has not signed in with Example ID for 30 days" in refused.json()["detail"]
    assert org.client("eve").get("/api/v1/me").status_code == 200  # a local account
    client.logout()
    sign_in(client, idp)
    assert anonymous.get("/api/v1/me", headers=bearer).status_code == 200


def test_without_settings_there_is_nothing_of_it(client, org):
    assert client.get("/login/oidc/").status_code == 404
    assert client.get("/login/oidc/callback/").status_code == 404
    assert "oidc" not in client.get("/login/").content.decode()


def test_the_button_keeps_the_way_back_and_passwords_go_on(client, idp):
    text = client.get("/login/", {"next": "/jobs/"}).content.decode()
    assert 'href="/login/oidc/?next=%2Fjobs%2F">Sign in with Example ID' in text
    answer = client.post("/login/", {"username": "eve", "password": "x"})
    assert answer.status_code == 302
    assert client.get("/login/oidc/", {"next": "/jobs/"})["Location"] == "/jobs/"


@pytest.fixture
def no_passwords(idp, settings):
    settings.KANT_PASSWORD_SIGN_IN = False


def test_without_passwords_the_page_offers_the_provider_alone(client, idp, org, no_passwords):
    text = client.get("/login/", {"next": "/jobs/"}).content.decode()
    assert "Sign in with Example ID" in text
    assert "password" not in text.lower()
    org.users["eve"].set_password("x")
    org.users["eve"].save()
    answer = client.post("/login/", {"username": "eve", "password": "x"})
    assert answer.status_code == 403
    assert "Passwords do not work here: sign in with Example ID." in answer.content.decode()
    assert not signed_in(client)
    client.force_login(org.users["eve"])
    assert "asks for your password" not in client.get("/settings/tokens/").content.decode()
    client.logout()
    assert sign_in(client, idp).status_code == 302
    assert signed_in(client)


def test_without_passwords_there_is_no_token_for_one(client, org, no_passwords):
    org.users["eve"].set_password("x")
    org.users["eve"].save()
    headers = {"Authorization": f"Basic {b64encode(b'eve:x').decode()}"}
    json = {"content_type": "application/json", "headers": headers}
    answer = client.post("/api/v1/tokens", {"name": "laptop"}, **json)
    assert answer.status_code == 401
    assert "Kant accepts no passwords here" in answer.json()["detail"]
    assert org.client("eve").get("/api/v1/me").status_code == 200  # tokens remain valid


def test_the_admin_pages_have_no_sign_in_of_their_own(client, idp, org):
    for user in ("eve", "root"):
        org.users[user].set_password("x")
        org.users[user].save()
    there = client.get("/admin/tenants/", follow=True)
    assert there.redirect_chain[-1][0] == "/login/?next=/admin/tenants/"
    answer = client.post("/admin/login/", {"username": "root", "password": "x"})
    assert (answer.status_code, answer["Location"]) == (302, "/login/?next=/admin/")
    assert not signed_in(client)
    client.force_login(org.users["eve"])
    assert client.get("/admin/", follow=True).status_code == 403
    client.force_login(User.objects.create_superuser("boss", password="x"))
    assert client.get("/admin/login/")["Location"] == "/admin/"
    assert client.get("/admin/").status_code == 200


def test_who_has_no_password_is_told_how_to_use_the_command_line(client, idp):
    sign_in(client, idp)
    text = client.get("/settings/tokens/").content.decode()
    assert "KANT_URL=http://testserver ./kant whoami" in text
    assert "asks for your password" not in text
