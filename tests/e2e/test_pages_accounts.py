"""Pages of accounts and tenants without a browser: tokens, and what follows by itself."""

import re

import pytest
from django.contrib.sessions.models import Session

from tenants.models import ApiToken
from tenants.web.shown_once import COOKIE

URL = "/settings/tokens/"


def made(client, name: str = "ci") -> tuple[str, str]:
    """Create a token with the form; return its secret and the page that shows it."""
    answer = client.post(URL, {"name": name, "lasts": "30"})
    assert (answer.status_code, answer["Location"]) == (302, URL)
    page = client.get(URL)
    assert "no-store" in page["Cache-Control"]
    text = page.content.decode()
    return re.search(r'id="secret"[^>]*>(kant_[^<]+)<', text)[1], text


def test_a_wrong_token_is_told_beside_its_field(as_user):
    client = as_user("erin")
    empty = client.post(URL, {"name": " ", "lasts": "30"})
    assert empty.status_code == 422
    assert "Say what the token is for" in empty.content.decode()
    assert client.post(URL, {"name": "ci", "lasts": "eternity"}).status_code == 422
    assert not ApiToken.objects.exists()


def test_a_secret_is_shown_once_and_kept_nowhere(as_user):
    client = as_user("erin")
    secret, _ = made(client)
    again = client.get(URL).content.decode()
    assert secret not in again
    assert "The token “ci” cannot be shown again" in again
    token = ApiToken.objects.get()  # reloading the page created no other
    assert token.expires_at
    assert secret not in str(vars(token))
    assert "cannot be shown again" not in client.get(URL).content.decode()
    assert as_user("vera").post(f"{URL}{token.pk}/revoke/").status_code == 404
    as_user("erin").post(f"{URL}{token.pk}/revoke/")
    token.refresh_from_db()
    assert token.revoked_at


def test_on_its_way_to_the_page_a_secret_is_nowhere_in_plain_text(as_user):
    client = as_user("erin")
    answer = client.post(URL, {"name": "ci", "lasts": "30"})
    token = ApiToken.objects.get()
    cookie = answer.cookies[COOKIE]
    assert (cookie["path"], cookie["httponly"], cookie["samesite"]) == (URL, True, "Strict")
    held = [str(s.get_decoded()) for s in Session.objects.all()]
    beginning = token.prefix.encode()
    for text in (*held, answer["Location"], answer.cookies.output()):
        assert token.prefix not in text
        assert beginning.hex() not in text
    shown = client.get(URL)
    assert token.prefix in shown.content.decode()
    assert (shown.cookies[COOKIE].value, shown.cookies[COOKIE]["path"]) == ("", URL)


@pytest.mark.parametrize("half", [None, "", "x", "00", "00" * 48])
def test_a_secret_of_which_a_half_is_lost_is_not_shown(as_user, half):
    client = as_user("erin")
    client.post(URL, {"name": "ci", "lasts": "30"})
    if half is None:
        del client.cookies[COOKIE]
    else:
        client.cookies[COOKIE] = half
    text = client.get(URL).content.decode()
    assert 'id="secret"' not in text
    assert "The token “ci” cannot be shown again" in text


def test_what_updates_itself_leaves_the_secret_to_the_page(as_user):
    client = as_user("erin")
    client.post(URL, {"name": "ci", "lasts": "30"})
    fragment = client.get(URL, headers={"HX-Request": "true"}).content.decode()
    assert ">ci</th>" in fragment
    client.head(URL)
    assert 'id="secret"' in client.get(URL).content.decode()


def test_a_token_that_was_revoked_meanwhile_is_not_shown(as_user):
    client = as_user("erin")
    client.post(URL, {"name": "ci", "lasts": "30"})
    client.post(f"{URL}{ApiToken.objects.get().pk}/revoke/")
    text = client.get(URL).content.decode()
    assert 'id="secret"' not in text
    assert "cannot be shown again" not in text


@pytest.mark.parametrize(
    "path",
    ["/tenants/", "/tenants/vision/", "/quotas/changes/", "/quotas/changes/?tenant=vision", URL],
)
def test_lists_follow_by_themselves(as_user, path):
    client = as_user("vera")
    page = client.get(path).content.decode()
    assert "data-freshness" in page
    assert f'hx-get="{path}" hx-trigger="refresh" hx-swap="innerMorph" data-poll=' in page
    fragment = client.get(path, headers={"HX-Request": "true"})
    text = fragment.content.decode()
    assert fragment.status_code == 200
    assert "<html" not in text
    assert "<dialog" not in text  # the next update would close an open dialog
    # Numbers above the list update as a part of their own.
    assert re.split(r"</dl>\s*</div>", text)[-1].strip()[:60] in page
