"""A move of a tenant is drafted, previewed together with a quota, saved and taken back."""

import re

import pytest
from playwright.sync_api import expect

from tests.cases import some
from tests.e2e.test_browser_quota_drafts import write

pytestmark = [pytest.mark.browser]


@pytest.mark.parametrize(("width", "theme"), some([(1440, "light"), (390, "dark")]))
def test_a_tenant_is_moved_with_a_quota_and_back(new_tab, width, theme):
    tab = new_tab(width=width, theme=theme)
    tab.sign_in("vera")
    tab.open("/tenants/speech/")
    tab.page.locator("section", has_text="Place in the tree").get_by_role("link").click()
    tab.check_looks()
    tab.page.get_by_label("Tenant above").select_option("vision")
    tab.page.get_by_label("Weight of its share").fill("2")
    tab.page.get_by_role("button", name="Keep in my draft").click()
    mine = tab.page.get_by_role("region", name="Tenants in your draft")
    expect(mine).to_contain_text("moves below vision, weight 1 → 2")
    tab.check_looks()
    write(tab, "nlp H200", "90")
    expect(tab.page.locator("#savebar")).to_contain_text("2 changes")
    tab.page.get_by_role("button", name="Preview").click()
    expect(tab.page.locator("#effects")).to_contain_text("What these 2 changes would do")
    for shown in (1440, 390):
        tab.page.set_viewport_size({"width": shown, "height": 900})
        tab.page.locator("#effects").scroll_into_view_if_needed()
        assert tab.axe() == []
        assert tab.overflow() == 0
    # The links beside the fields are large enough to hit, even close to another target.
    sizes = [link.bounding_box() for link in tab.page.locator(".matrix .more").all()]
    assert len(sizes) > 8
    assert min(min(one["width"], one["height"]) for one in sizes) >= 24
    tab.page.locator("#reason").fill("Season")
    tab.page.get_by_role("button", name="Save changes").click()
    expect(tab.page.get_by_text("1 quota and 1 tenant changed.")).to_be_visible()
    tab.open("/quotas/changes/")
    name = re.compile("Revert the change of speech by vera")
    tab.page.get_by_role("link", name=name).first.click()
    tab.page.get_by_label("Reason").fill("Back")
    tab.check_looks()
    tab.page.get_by_role("button", name="Revert the change").click()
    expect(tab.page.get_by_text("The change of speech is reverted.")).to_be_visible()
    tab.open("/quotas/")
    write(tab, "nlp H200", "96")
    tab.page.locator("#reason").fill("Back")
    tab.page.get_by_role("button", name="Save changes").click()
    expect(tab.page.get_by_text("1 quota changed.")).to_be_visible()


def weigh(tab, text):
    """Draft another weight for nlp."""
    tab.open("/tenants/nlp/place/")
    tab.page.get_by_label("Weight of its share").fill(text)
    tab.page.get_by_role("button", name="Keep in my draft").click()
    expect(tab.page.get_by_role("region", name="Tenants in your draft")).to_contain_text("weight")


def save_weight(tab, text):
    weigh(tab, text)
    tab.page.locator("#reason").fill("Theirs")
    tab.page.get_by_role("button", name="Save changes").click()
    expect(tab.page.get_by_text("1 tenant changed.")).to_be_visible()


def test_theirs_is_taken(new_tab):
    mine, other = new_tab(), new_tab()
    mine.sign_in("vera")
    other.sign_in("operator")
    weigh(mine, "2")
    save_weight(other, "3")
    # The page reports it by itself when it opens.
    mine.open("/quotas/")
    placed = mine.page.get_by_role("region", name="Tenants in your draft")
    expect(placed).to_contain_text("Weight: theirs 3, yours 2, 1 when you began.")
    mine.check_looks()
    placed.get_by_role("button", name="Take theirs").click()
    expect(placed).to_have_count(0)
    expect(mine.page.locator("#savebar")).to_contain_text("No changes")
    save_weight(other, "1")
