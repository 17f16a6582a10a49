"""Single sign-on in a browser leads from a page of Kant to the provider and back to the page."""

import pytest
from playwright.sync_api import expect

from tests.cases import some
from tests.openid import running
from tests.organisation import build

pytestmark = pytest.mark.browser


@pytest.fixture
def idp(transactional_db, settings, tmp_path):
    build()
    file = tmp_path / "groups.yaml"
    file.write_text("gpu: {vision: engineer}")
    settings.KANT_OIDC_GROUPS_FILE = str(file)
    with running(settings) as provider:
        provider.claims["groups"] = ["gpu"]
        yield provider


@pytest.mark.parametrize(("width", "theme"), some([(1280, "light"), (390, "dark")]))
def test_one_button_leads_to_the_provider_and_back(idp, live_server, new_tab, width, theme):
    tab = new_tab(width, theme, at=live_server.url)
    tab.also = {idp.issuer}
    page = tab.page
    page.goto(f"{live_server.url}/tenants/vision/")
    assert tab.axe() == []
    assert tab.overflow() == 0
    page.get_by_role("link", name="Sign in with Example ID").click()
    expect(page.get_by_role("heading", name="Vision")).to_be_visible()
    assert page.url == f"{live_server.url}/tenants/vision/"
    expect(page.locator("tr", has_text="grace")).to_contain_text("by group")
    assert tab.axe() == []


def test_who_is_refused_may_try_again(idp, live_server, new_tab):
    tab = new_tab(390, at=live_server.url)
    tab.also, tab.allowed = {idp.issuer}, {403}
    page = tab.page
    idp.refusal = {"error": "access_denied"}
    page.goto(f"{live_server.url}/tenants/vision/")
    page.get_by_role("link", name="Sign in with Example ID").click()
    expect(page.get_by_role("heading", name="You were not signed in")).to_be_visible()
    assert (tab.axe(), tab.overflow()) == ([], 0)
    idp.refusal = {}
    page.get_by_role("link", name="Try again").click()
    expect(page.get_by_role("heading", name="Vision")).to_be_visible()
