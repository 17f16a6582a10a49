"""Filters apply themselves in a real browser, and a slow server loses nothing that was typed."""

import pytest
from playwright.sync_api import expect

from tests.cases import some
from tests.e2e.conftest import NARROW, WIDE

pytestmark = pytest.mark.browser


# Playwright does nothing in a page that is about to be left, so the page types by itself.
TYPE_ON = """([name, text]) => document.addEventListener("submit", () => setTimeout(async () => {
  document.querySelector(`form[data-autosubmit] [name=${name}]`).focus();
  document.execCommand("insertText", false, text);
  await fetch("/has-typed-on");
}), {once: true})"""


class Slow:
    """Hold the answer to the next form until something was typed after it was sent."""

    def __init__(self, page, field, text):
        self.waiting, self.has_typed = [], False
        page.evaluate(TYPE_ON, [field, text])
        page.route("**/has-typed-on", self.typed)
        page.route(lambda address: "?" in address, self.asked)
        self.page = page

    def asked(self, route):
        if not route.request.is_navigation_request() or self.has_typed:
            route.continue_()
        else:
            self.waiting.append(route)

    def typed(self, route):
        self.has_typed = True
        route.fulfill()
        for one in self.waiting:
            one.continue_()

    def arrived(self, address):
        self.page.wait_for_url(address)
        self.page.unroute_all(behavior="wait")


@pytest.fixture
def opened(new_tab):
    def make(path, width=WIDE):
        tab = new_tab(width)
        tab.sign_in("operator")
        tab.open(path)
        return tab.page

    return make


@pytest.mark.parametrize("width", some([WIDE, NARROW]))
def test_what_is_typed_while_the_answer_is_under_way_is_in_the_page_that_comes(opened, width):
    page = opened("/jobs/?state=waiting", width)
    page.get_by_text("More filters").click()
    slow = Slow(page, "min_gpus", "8")
    reason = page.get_by_label("Waits because")
    reason.select_option(index=1)
    slow.arrived("**reason=**")
    typed = page.get_by_label("GPUs from")
    expect(typed).to_have_value("8")
    expect(typed).to_be_focused()
    page.keyboard.type("0")
    page.keyboard.press("Tab")
    page.wait_for_url("**min_gpus=80**")
    assert "reason=" in page.url
    assert "user=" not in page.url  # empty filters are not in the address
    expect(typed).to_have_value("80")
    expect(page.get_by_label("to", exact=True)).to_be_focused()


def test_what_was_typed_is_applied_when_the_field_is_left(opened):
    page = opened("/jobs/")
    page.get_by_text("More filters").click()
    slow = Slow(page, "queue", "night")
    page.get_by_label("State", exact=True).select_option("waiting")
    slow.arrived("**state=waiting**")
    expect(page.get_by_role("textbox", name="Queue")).to_have_value("night")
    page.get_by_role("textbox", name="Queue").blur()
    page.wait_for_url("**queue=night**")


def test_a_search_that_is_being_typed_stays_and_waits_for_its_button(opened):
    page = opened("/jobs/")
    slow = Slow(page, "q", "wait-0")
    page.get_by_label("State", exact=True).select_option("waiting")
    slow.arrived("**state=waiting**")
    search = page.get_by_role("searchbox")
    expect(search).to_have_value("wait-0")
    expect(search).to_be_focused()
    page.keyboard.type("01")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=wait-001**")
    assert "state=waiting" in page.url


def test_who_comes_back_finds_the_filters_of_what_is_shown(opened, site):
    page = opened("/jobs/?state=waiting")
    state = page.get_by_label("State", exact=True)
    state.select_option("open")
    page.wait_for_url("**state=open**")
    page.go_back()
    page.wait_for_url("**state=waiting**")
    expect(state).to_have_value("waiting")
    page.get_by_role("searchbox").fill("not sent")
    page.goto(f"{site}/tenants/")
    page.go_back()
    expect(state).to_have_value("waiting")
    expect(page.get_by_role("searchbox")).to_have_value("")
    # Values of a page that was left are not filled into a later one.
    assert page.evaluate("sessionStorage.getItem('kant-filters')") is None
