"""Templates in a real browser: save the form as one and fill the form from it."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_the_form_is_saved_as_a_template_and_filled_in_from_it(new_tab):
    tab = new_tab()
    tab.sign_in("vera")
    tab.open("/jobs/new/")
    tab.page.get_by_label("Name", exact=True).first.fill("eight")
    tab.page.locator("#id_sets-0-count").fill("3")
    tab.page.get_by_role("button", name="Save as template").click()
    expect(tab.page.get_by_label("Name", exact=True)).to_have_value("eight")
    tab.page.get_by_label("Description").fill("Three pods")
    assert tab.axe() == []
    tab.page.get_by_role("button", name="Save template").click()
    tab.page.get_by_text("Template eight is saved.").wait_for()
    assert tab.axe() == []
    tab.open("/jobs/new/")
    expect(tab.page.locator("#id_sets-0-count")).to_have_value("1")
    tab.page.get_by_label("Start from a template").select_option("eight of nlp – Three pods")
    tab.page.get_by_role("button", name="Fill in").click()
    expect(tab.page.locator("#id_sets-0-count")).to_have_value("3")
    expect(tab.page.get_by_label("Name", exact=True).first).to_have_value("")
    assert tab.axe() == []
    tab.page.get_by_role("link", name="All templates").click()
    tab.page.get_by_role("button", name="Delete eight").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    tab.page.get_by_text("Template eight is deleted.").wait_for()
    expect(tab.page.get_by_role("heading", name="No templates yet")).to_be_visible()
