"""Chosen jobs stay chosen in a real browser, whatever rows the table shows when the reader comes
back to it."""

import sqlite3

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
TICKED = """() => [...document.querySelectorAll("#jobs-live input[name=id]:checked")]
  .map((box) => box.closest("tr").querySelector("a").textContent)"""


@pytest.fixture
def newest(site, tmp_path_factory):
    """Put a job of the site on top of the waiting ones until the test is over."""
    database = next(tmp_path_factory.getbasetemp().glob("site*/site.sqlite3"))
    before = []

    def run(statement, *values):
        with sqlite3.connect(database, timeout=30) as connection:
            return connection.execute(statement, values).fetchone()

    def put(name):
        before.append((name, *run("select submitted_at from scheduling_job where name = ?", name)))
        run("update scheduling_job set submitted_at = '2099-01-01 00:00:00' where name = ?", name)

    yield put
    for name, at in before:
        run("update scheduling_job set submitted_at = ? where name = ?", at, name)


@pytest.fixture
def choosing(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/jobs/?state=waiting")
    names = tab.page.locator("#jobs-live tbody th a:not(.soft)").all_text_contents()
    for name in names[1:3]:
        tab.page.get_by_label(f"Choose {name}", exact=True).check()
    return tab, tab.page, names


def are_chosen(page, names):
    expect(page.locator("[data-chosen-count]")).to_have_text(f"{len(names)} chosen")
    assert page.evaluate(TICKED) == names


@pytest.mark.parametrize("again", ["back", "reload"])
def test_the_same_jobs_are_chosen_where_others_stand_in_their_rows(choosing, newest, again):
    tab, page, names = choosing
    newest(names[-1])
    if again == "back":
        page.goto(f"{tab.site}/tenants/")
        # As after some time, when the browser must load the page again.
        page.context.new_cdp_session(page).send("Network.clearBrowserCache")
        page.go_back()
    else:
        page.reload()
    first = page.locator("#jobs-live tbody th a:not(.soft)").first
    expect(first).to_have_text(names[-1])
    are_chosen(page, names[1:3])
    page.get_by_role("button", name="Hold", exact=True).click()
    expect(page.locator("h1")).to_contain_text("2 jobs")
    for name in names[1:3]:
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
    page.get_by_role("link", name="Back to the jobs").click()
    expect(page.locator("[data-chosen-count]")).to_have_text("Choose jobs to act on them together.")


def test_what_is_chosen_is_kept_while_answers_fail_and_over_a_new_sign_in(choosing):
    tab, page, names = choosing
    tab.allowed = {401, 500}
    page.route("**/jobs/?*", lambda route: route.fulfill(status=500, body="no"))
    expect(page.locator("[data-freshness]")).to_contain_text("connection lost")
    are_chosen(page, names[1:3])
    page.unroute_all(behavior="wait")
    expect(page.locator("[data-freshness]")).to_contain_text("live")
    are_chosen(page, names[1:3])
    session = page.context.cookies()
    page.context.clear_cookies(name="sessionid")
    page.wait_for_url("**/login/**")
    page.context.add_cookies(session)
    page.goto(f"{tab.site}/jobs/?state=waiting")
    are_chosen(page, names[1:3])
