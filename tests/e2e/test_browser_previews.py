"""Previews of changes appear beside the form in a browser, and only for what its fields say."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_the_limits_of_a_tenant_are_previewed_by_keyboard_alone(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/tenants/vision/limits/")
    tab.page.focus("#id_max_running")
    tab.page.keyboard.type("1")
    tab.page.get_by_role("button", name="Preview").focus()
    tab.page.keyboard.press("Enter")
    card = tab.page.locator("#effects section")
    expect(card).to_be_focused()
    tab.check_looks()
    tab.page.fill("#id_max_running", "2")
    expect(card).to_have_count(0)


def test_an_answer_to_what_the_fields_said_before_is_thrown_away(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/tenants/vision/place/")
    held = []
    tab.page.route("**/place/preview/", lambda route: held.append(route))
    weight, preview = tab.page.locator("#id_weight"), tab.page.get_by_role("button", name="Preview")
    weight.fill("3")
    with tab.page.expect_request("**/place/preview/"):
        preview.click()
    weight.fill("4")
    with tab.page.expect_response("**/place/preview/"):
        held.pop().continue_()
    with tab.page.expect_request("**/place/preview/"):
        preview.click()
    expect(tab.page.locator("#effects > *")).to_have_count(0)
    held.pop().continue_()
    expect(tab.page.locator("#effects section")).to_have_count(1)


def test_a_change_of_a_job_is_previewed_in_its_dialog(new_tab, address):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open(address("JOB wait-001"))
    tab.page.get_by_role("button", name="Change", exact=True).click()
    tab.page.fill("[name=change-priority]", "50")
    tab.page.locator("#change").get_by_role("button", name="Preview").click()
    card = tab.page.locator("#effects-change section")
    expect(card).to_be_focused()
    assert tab.axe() == []
    assert tab.overflow() == 0
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("button", name="Change", exact=True).click()
    expect(card).to_have_count(0)


def test_another_rank_and_a_hold_of_a_queue_are_previewed(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/queues/vision/default/settings/")
    tab.page.fill("#id_title", "Daily")
    tab.page.get_by_role("button", name="Preview").click()
    told = tab.page.locator("#effects")
    expect(told).to_contain_text(
        "This applies only to new jobs, not to those that wait or run now."
    )
    tab.page.fill("#id_rank", "-3")
    expect(told).to_be_empty()
    tab.page.get_by_role("button", name="Preview").click()
    expect(told.locator("section")).to_be_focused()
    tab.page.get_by_label("Reason").fill("Days come last")
    expect(told.locator("section")).to_have_count(1)  # the reason of a change has no effect on jobs
    tab.check_looks()
    tab.open("/queues/vision/default/")
    tab.page.get_by_role("button", name="Hold", exact=True).click()
    dialog = tab.page.locator("dialog[open]")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("[data-effects] section")).to_be_focused()
    assert tab.axe() == []
    assert tab.overflow() == 0
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("button", name="Hold", exact=True).click()
    expect(dialog.locator("[data-effects]")).to_be_empty()


def test_a_hold_is_previewed_in_the_list_of_queues_of_the_queue_it_is_of(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/queues/")
    openers = tab.page.locator("[data-dialog=state-hold]")
    assert openers.count() > 1
    for at in (1, 0):
        opener = openers.nth(at)
        about = opener.get_attribute("data-about")
        opener.click()
        dialog = tab.page.locator("dialog[open]")
        with tab.page.expect_request("**/hold/preview/") as asked:
            dialog.get_by_role("button", name="Preview").click()
        assert asked.value.url.endswith(f"/queues/{about}/hold/preview/")
        expect(dialog.locator("[data-effects] > *").first).to_be_visible()
        assert tab.axe() == []
        assert tab.overflow() == 0
        tab.page.keyboard.press("Escape")


def test_the_page_that_asks_about_chosen_jobs_tells_what_becomes_of_others(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/jobs/?state=active")
    tab.page.locator("#jobs-live input[name=id]").first.check()
    tab.page.click("button:text-is('Cancel jobs')")
    expect(tab.page.locator("#effects h2")).to_have_text("What it would do to other jobs")
    tab.check_looks()
