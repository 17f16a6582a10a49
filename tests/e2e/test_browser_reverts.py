"""A quota change is reverted in a real browser after a preview of the effect."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def save(tab, guaranteed: str, reason: str) -> None:
    tab.open("/quotas/ads/L40S/")
    tab.page.get_by_label("Guaranteed GPUs").fill(guaranteed)
    tab.page.get_by_label("Reason").fill(reason)
    tab.page.get_by_role("button", name="Save").click()
    tab.page.get_by_text("The quota of ads for L40S is changed.").wait_for()


def test_a_change_is_looked_at_and_reverted(new_tab):
    tab = new_tab()
    tab.allowed = {422}
    tab.sign_in("piet")
    save(tab, "8", "Fewer adverts")
    tab.open("/quotas/changes/")
    tab.check_looks()
    assert tab.sideways() == []
    tab.page.get_by_role("link", name="Revert the change of ads / L40S by piet").first.click()
    row = tab.page.get_by_role("row").filter(has_text="Guaranteed")
    expect(row).to_contain_text("8")
    expect(row.get_by_role("cell").last).to_have_text("16")
    tab.check_looks()
    assert tab.sideways() == []
    tab.page.get_by_role("button", name="Revert the change").click()
    expect(tab.page.get_by_text("Say why; it is kept in the audit trail.")).to_be_visible()
    expect(tab.page.get_by_label("Reason")).to_be_focused()
    tab.page.keyboard.type("Adverts are back")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_text("The change of ads / L40S is reverted.").wait_for()
    newest = tab.page.get_by_role("row").nth(1)
    for text in ("Adverts are back", "reverts the change of piet"):
        expect(newest).to_contain_text(text)
    tab.check_looks()
    assert tab.sideways() == []


def test_a_change_that_others_went_on_from_says_why_it_stays(new_tab):
    tab = new_tab()
    tab.sign_in("piet")
    save(tab, "9", "A ninth")
    save(tab, "10", "A tenth")
    tab.open("/quotas/changes/")
    ninth = tab.page.get_by_role("row").filter(has_text="A ninth")
    ninth.get_by_role("link", name="Revert").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("was set to 9 by this change and is 10")
    expect(tab.page.get_by_role("button", name="Revert the change")).to_have_count(0)
    tab.check_looks()
    assert tab.sideways() == []
