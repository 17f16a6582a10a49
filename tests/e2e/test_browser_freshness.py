"""In a real browser a page shows how old its data are, also while answers for its parts are
late."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
JOBS = re.compile(r"/jobs/(\?.*)?$")
OVERVIEW = re.compile(r"^[^?]*//[^/]*/$")
AS_OF = re.compile(r"shown as of [0-9]+ s ago$")

LISTEN = """() => {
  const label = document.querySelector("[data-freshness]");
  window.said = [];
  new MutationObserver(() => window.said.push(label.textContent)).observe(label, {childList: true});
}"""


class Held:
    """Requests of a page that get no answer until `release`."""

    def __init__(self, page, address):
        self.page, self.routes, self.is_over = page, [], False
        page.route(address, self.asked)

    def asked(self, route):
        if self.is_over:
            route.continue_()
        else:
            self.routes.append(route)

    def wait(self):
        while not self.routes:
            self.page.wait_for_timeout(20)

    def release(self):
        self.is_over = True
        for route in self.routes:
            route.continue_()


@pytest.fixture
def opened(new_tab):
    def make(user, path):
        tab = new_tab()
        tab.allowed = {500}
        tab.sign_in(user)
        tab.page.clock.install()
        tab.open(path)
        return tab.page, tab.page.locator("[data-freshness]")

    return make


def test_a_page_whose_question_gets_no_answer_says_so_and_recovers(opened):
    page, label = opened("vera", "/jobs/")
    held = Held(page, JOBS)
    page.clock.run_for(12_000)
    held.wait()
    page.clock.run_for(12_000)
    expect(label).to_have_text(AS_OF)
    expect(label).to_contain_text("no answer yet")
    expect(label).to_have_attribute("data-state", "lost")
    # "No change" is no news for a page that still waits for an earlier change.
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(6000)
    expect(label).to_contain_text("no answer yet")
    held.release()
    expect(label).to_contain_text("live")


def test_a_part_that_fails_is_not_forgotten_over_those_that_do_not(opened):
    page, label = opened("erin", "/")
    page.route("**/can-start/", lambda route: route.fulfill(status=500, body="no"))
    with page.expect_response("**/can-start/"):
        page.clock.run_for(16_000)
    expect(label).to_contain_text("connection lost")
    page.evaluate(LISTEN)
    with page.expect_response(OVERVIEW) as answered:
        page.clock.run_for(12_000)
    answered.value.finished()
    page.clock.run_for(2000)
    said = page.evaluate("window.said")
    assert [text for text in said if not AS_OF.search(text)] == []
    assert said
    page.unroute_all(behavior="wait")
    with page.expect_response("**/can-start/"):
        page.clock.run_for(16_000)
    expect(label).to_contain_text("live")


def test_an_older_answer_of_the_whole_leaves_a_newer_one_of_its_part(opened):
    page, _ = opened("erin", "/")
    expect(page.locator("#can-start")).not_to_contain_text("being worked out")
    held = Held(page, OVERVIEW)
    page.clock.run_for(12_000)
    held.wait()
    page.route("**/can-start/", lambda route: route.fulfill(body="<p>It is later now.</p>"))
    page.clock.run_for(16_000)
    expect(page.locator("#can-start")).to_have_text("It is later now.")
    page.unroute("**/can-start/")
    Held(page, "**/can-start/")  # this test does not cover the requests that follow
    answer = held.routes[0].fetch()
    held.routes[0].fulfill(response=answer, body=f"{answer.text()}<p id=came>It came.</p>")
    expect(page.locator("#came")).to_be_visible()
    assert page.locator("#can-start").text_content() == "It is later now."


def test_a_chart_is_asked_for_again_only_when_it_has_answered(opened):
    page, label = opened("operator", "/ops/?gpu=H200")
    held = Held(page, "**/charts/**")
    page.clock.run_for(16_000)
    held.wait()
    asked = [route.request.url for route in held.routes]
    assert len(asked) == len(set(asked))
    page.clock.run_for(31_000)
    expect(label).to_contain_text("no answer yet")
    again = [route.request.url for route in held.routes]
    assert len(again) == len(set(again))
    held.release()
    expect(label).to_contain_text("live")
