"""Queues in a real browser: held from the list, released on their page, with a reason."""

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import NARROW

pytestmark = pytest.mark.browser


def test_a_queue_is_held_in_the_list_and_released_on_its_page(new_tab):
    tab = new_tab()
    tab.sign_in("vera")
    tab.open("/queues/")
    row = tab.page.get_by_role("row", name="nlp / default")
    row.get_by_role("button", name="Hold").click()
    dialog = tab.page.get_by_role("dialog", name="Hold nlp/default?")
    expect(dialog).to_contain_text("None of its waiting jobs starts")
    assert tab.axe() == []
    dialog.get_by_role("button", name="Hold").click()  # without a reason it stays open
    expect(dialog).to_be_visible()
    dialog.get_by_label("Reason").fill("The file server moves")
    dialog.get_by_role("button", name="Hold").click()
    tab.page.get_by_text("Queue nlp/default is held now.").wait_for()
    expect(row).to_contain_text("Held")
    row.get_by_role("link", name="nlp / default").click()
    expect(tab.page.locator("main")).to_contain_text("by vera: The file server moves")
    tab.page.get_by_role("button", name="Release").click()
    dialog = tab.page.get_by_role("dialog", name="Release nlp/default?")
    dialog.get_by_label("Reason").fill("It has moved")
    dialog.get_by_role("button", name="Release").click()
    tab.page.get_by_text("Queue nlp/default is open now.").wait_for()
    expect(tab.page.get_by_role("region", name="Changes of the queue")).to_contain_text("It has")


def test_the_buttons_of_a_queue_follow_its_state_without_a_reload(new_tab):
    tab = new_tab()
    tab.sign_in("vera")
    tab.open("/queues/speech/default/")
    expect(tab.page.get_by_role("button", name="Hold", exact=True)).to_be_visible()
    other = new_tab()
    other.sign_in("vera")
    other.open("/queues/speech/default/")
    for name, state in (("Hold", "held"), ("Release", "open")):
        other.page.get_by_role("button", name=name, exact=True).click()
        other.page.locator("dialog[open] input[name=reason]").fill("x")
        other.page.locator("dialog[open] button[type=submit]").click()
        other.page.get_by_text(f"Queue speech/default is {state} now.").wait_for()
        after = "Release" if name == "Hold" else "Hold"
        expect(tab.page.get_by_role("button", name=after, exact=True)).to_be_visible()


def test_states_and_heads_are_read_without_scrolling_on_a_telephone(new_tab):
    tab = new_tab(NARROW)
    tab.sign_in("operator")
    tab.open("/queues/")
    right = tab.page.locator("#queues-live :is(.chip, .act button)").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert len(right) > 20
    assert max(right) <= NARROW
