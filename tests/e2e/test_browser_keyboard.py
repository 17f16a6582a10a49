"""The main tasks work without a mouse: submit a job, drain a node. `test_browser_pages` covers
editing quotas by keyboard."""

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Tab

pytestmark = pytest.mark.browser
MOST_STOPS = 120


def go_to(tab: Tab, place: Locator) -> None:
    """Press Tab until the element has the focus, and check that the focus is visible."""
    for _ in range(MOST_STOPS):
        if place.evaluate("e => e === document.activeElement"):
            break
        tab.page.keyboard.press("Tab")
    expect(place).to_be_focused()
    outline = place.evaluate(
        "e => { const s = getComputedStyle(e); return s.outlineStyle + s.boxShadow }"
    )
    assert outline != "nonenone"


def press(tab: Tab, name: str) -> None:
    button = tab.page.get_by_role("button", name=name, exact=True).filter(visible=True)
    go_to(tab, button.last)
    tab.page.keyboard.press("Enter")


def test_a_job_is_submitted_as_form_and_text_by_keyboard_alone(new_tab):
    tab = new_tab()
    tab.allowed = {422}
    tab.sign_in("erin")
    tab.open("/jobs/new/")
    go_to(tab, tab.page.locator("#id_name"))
    tab.page.keyboard.type("by-keys")
    tab.page.locator("body").evaluate("e => document.activeElement.blur()")
    press(tab, "YAML")
    text = tab.page.get_by_label("The job as YAML")
    expect(text).to_be_focused()
    assert text.input_value().startswith("name: by-keys\n")
    tab.page.keyboard.press("Control+End")
    tab.page.keyboard.type("labels: {team: a}\nimags: none\n")
    faults = tab.page.locator("#preview li")
    expect(faults).to_contain_text("imags: ")
    tab.check_looks()
    press(tab, "Submit job")
    alert = tab.page.get_by_role("alert")
    expect(alert).to_contain_text("Line ")
    expect(alert).to_contain_text("imags: ")
    expect(text).to_be_focused()
    assert tab.axe() == []
    tab.page.keyboard.press("Control+End")
    for _ in range(len("imags: none\n")):
        tab.page.keyboard.press("Backspace")
    expect(faults).to_have_count(0)
    tab.page.locator("body").evaluate("e => document.activeElement.blur()")
    press(tab, "Form")
    expect(tab.page.locator(".notice.info")).to_contain_text("Kept, though this form cannot show")
    expect(tab.page.locator("#id_name")).to_have_value("by-keys")
    assert tab.axe() == []
    press(tab, "Submit job")
    tab.page.get_by_text("by-keys is submitted.").wait_for()


def test_a_node_is_drained_and_taken_back_by_keyboard_alone(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/ops/nodes/demo/node-040/")
    go_to(tab, tab.page.get_by_role("link", name="Take out of service"))
    tab.page.keyboard.press("Enter")
    ways = tab.page.get_by_role("radio")
    expect(ways.first).to_be_visible()
    go_to(tab, tab.page.locator("[name=way]:checked"))
    tab.page.keyboard.press("ArrowDown")
    expect(tab.page.get_by_label("Drain by a deadline")).to_be_checked()
    go_to(tab, tab.page.get_by_label("Reason"))
    tab.page.keyboard.type("new fans")
    press(tab, "Preview")
    tab.page.locator("#effects h2, #effects .notice").first.wait_for()
    assert tab.axe() == []
    go_to(tab, tab.page.get_by_label("Reason"))
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("main")).to_contain_text("new fans")
    press(tab, "Stop the drain")
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(tab.page.get_by_role("button", name="Stop the drain")).to_be_focused()
    tab.page.keyboard.press("Enter")
    go_to(tab, dialog.get_by_label("Reason"))
    tab.page.keyboard.type("fans are in")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("link", name="Take out of service").wait_for()
