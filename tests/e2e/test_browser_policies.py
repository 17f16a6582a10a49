"""The policy of a cluster is changed in a real browser, tried before it is saved, and reverted."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def look(tab) -> None:
    tab.check_looks()
    assert tab.sideways() == []


def test_a_policy_is_edited_tried_saved_and_reverted(new_tab):
    tab = new_tab()
    tab.allowed = {422}
    tab.sign_in("operator")
    page = tab.page
    tab.open("/ops/")
    page.get_by_role("link", name="Edit the policy of Demo cluster").click()
    share = page.locator(".fields > *").filter(has=page.get_by_label("Usage half life, hours"))
    expect(share).to_contain_text("No effect now. Only with fair share of tenants.")
    bar = page.locator(".savebar")
    expect(bar).to_contain_text("No changes")

    # The marks follow the choice; a half-typed value elsewhere stays.
    page.get_by_label("Fair share: the tenant with the smallest share").check()
    expect(share).not_to_contain_text("No effect now")
    expect(bar).to_contain_text("1 change")
    page.get_by_label("Usage half life, hours").fill("24")
    attempts = page.get_by_label("Max attempts")
    attempts.fill("-1")
    attempts.blur()
    expect(page.locator("#id_max_attempts-error")).to_have_text("Must be from 0 to 1000000.")
    expect(attempts).to_have_attribute("aria-invalid", "true")
    expect(bar).to_contain_text("Correct the marked fields first.")
    look(tab)
    page.get_by_role("button", name="Look at the change").click()
    expect(attempts).to_be_focused()
    expect(page.get_by_label("Usage half life, hours")).to_have_value("24")
    attempts.fill("3")
    page.get_by_role("button", name="Look at the change").click()

    rows = page.get_by_role("region", name="What would be set").get_by_role("row")
    expect(rows).to_have_count(4)
    expect(rows.filter(has_text="Usage half life")).to_contain_text("1 d")
    look(tab)
    page.get_by_label("Reason").fill("Small teams first")
    page.get_by_role("button", name=re.compile("^Replay the last 7 days")).click()
    page.get_by_role("link", name="To the change of the policy").click()
    expect(page.get_by_label("Reason")).to_have_value("Small teams first")
    expect(page.get_by_text("A replay of this change")).to_be_visible()
    page.get_by_role("button", name="Continue editing").click()
    expect(page.get_by_label("Max attempts")).to_have_value("3")
    expect(bar).to_contain_text("3 changes")
    page.get_by_role("button", name="Look at the change").click()
    expect(page.get_by_label("Reason")).to_have_value("Small teams first")
    page.get_by_label("Reason").press("Enter")

    page.get_by_text("The policy of Demo cluster is changed").wait_for()
    newest = page.get_by_role("row").nth(1)
    for text in ("operator", "Fair share", "Small teams first", "page"):
        expect(newest).to_contain_text(text)
    look(tab)
    newest.get_by_role("link", name="Revert").click()
    look(tab)
    page.get_by_label("Reason").fill("Too many complaints")
    page.get_by_role("button", name="Revert the change").click()
    page.get_by_text("The change of the policy is reverted.").wait_for()
    expect(page.get_by_role("row").nth(1)).to_contain_text("reverts the change of operator")


def test_who_was_slower_sees_what_the_other_changed_and_loses_nothing(new_tab):
    slow, fast = new_tab(), new_tab()
    slow.allowed = {422}
    for tab, minutes in ((slow, "7"), (fast, "9")):
        tab.sign_in("operator")
        tab.open("/policies/demo/")
        tab.page.get_by_label("Blame, minutes").fill(minutes)
        tab.page.get_by_role("button", name="Look at the change").click()
        tab.page.get_by_role("heading", name="What the change means").wait_for()
    fast.page.get_by_label("Reason").fill("Nine are better")
    fast.page.get_by_role("button", name="Save the change").click()
    fast.page.get_by_text("The policy of Demo cluster is changed").wait_for()
    slow.page.get_by_label("Reason").fill("Seven are enough")
    slow.page.get_by_role("button", name="Save the change").click()
    notice = slow.page.get_by_role("alert")
    expect(notice).to_contain_text("Nine are better")
    expect(slow.page.get_by_role("row").filter(has_text="Blame")).to_contain_text("7 min")
    expect(slow.page.get_by_label("Reason")).to_have_value("Seven are enough")
    look(slow)
    slow.page.get_by_role("button", name="Save the change").click()
    slow.page.get_by_text("The policy of Demo cluster is changed").wait_for()
    expect(slow.page.get_by_role("row").nth(1)).to_contain_text("Seven are enough")


def test_edits_that_are_not_saved_are_not_lost_by_a_careless_click(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/policies/demo/")
    tab.page.get_by_label("backfill: other jobs may pass").check()
    tab.page.locator(".savebar").get_by_text("1 change").wait_for()
    asked: list[str] = []

    def stay(dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    tab.page.on("dialog", stay)
    with tab.page.expect_event("dialog"):
        tab.page.get_by_role("link", name="Jobs", exact=True).click()
    tab.page.wait_for_timeout(300)
    assert (asked, tab.page.url) == (["beforeunload"], f"{tab.site}/policies/demo/")
    tab.page.get_by_role("link", name="Discard").click()
    expect(tab.page.locator(".savebar")).to_contain_text("No changes")
    assert asked == ["beforeunload"]
