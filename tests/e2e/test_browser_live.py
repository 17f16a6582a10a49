"""Pages update by themselves in a real browser: nothing typed is lost, and nothing is done
twice."""

import sqlite3

import pytest
from playwright.sync_api import expect

from tests.cases import paired, some
from tests.e2e.conftest import NARROW, WIDE

pytestmark = pytest.mark.browser


@pytest.fixture
def write(site, tmp_path_factory):
    """Change the database of the site behind the back of its pages."""
    database = next(tmp_path_factory.getbasetemp().glob("site*/site.sqlite3"))

    def run(statement: str, *values: object) -> None:
        with sqlite3.connect(database, timeout=30) as connection:
            connection.execute(statement, values)

    return run


def job_path(tab, name: str) -> str:
    tab.open(f"/jobs/?q={name}")
    return tab.page.get_by_role("link", name=name, exact=True).get_attribute("href")


@pytest.mark.parametrize(
    ("path", "user"),
    some([("/tenants/", "vera"), ("/tenants/vision/", "vera"), ("/quotas/changes/", "operator")]),
)
def test_a_list_asks_for_its_news(path, user, new_tab):
    tab = new_tab()
    tab.sign_in(user)
    tab.page.clock.install()
    tab.open(path)
    with tab.page.expect_response(f"**{path}") as answered:
        tab.page.clock.run_for(6000)
    assert answered.value.request.headers["hx-request"] == "true"
    assert answered.value.status == 200
    expect(tab.page.locator("[data-freshness]")).to_contain_text("live")


def test_the_page_of_a_tenant_follows_its_jobs(new_tab, write):
    tab = new_tab()
    tab.sign_in("vera")
    tab.open("/tenants/vision/")
    expect(tab.page.get_by_role("link", name="wait-001", exact=True)).to_be_visible()
    write("update scheduling_job set name = 'renamed-001' where name = 'wait-001'")
    expect(tab.page.get_by_role("link", name="renamed-001", exact=True)).to_be_visible()
    write("update scheduling_job set name = 'wait-001' where name = 'renamed-001'")


# What the feed sends to the page, in the order of its fields.
HEARS = """
window.heard = [];
window.EventSource = class extends EventSource {
  constructor(address) {
    super(address);
    for (const kind of ["changed", "same"]) this.addEventListener(kind, () => heard.push(kind));
  }
};
"""


def test_a_page_hears_of_changes(new_tab, write):
    """The page's clock stands still, so only the feed can make it ask."""
    tab, asked = new_tab(), []
    page, clock = tab.page, tab.page.clock
    tab.sign_in("vera")
    page.add_init_script(HEARS)
    clock.install()
    tab.open("/tenants/vision/")
    clock.pause_at(page.evaluate("Date.now()") + 1000)
    page.on("request", lambda request: asked.append(request.url))

    def hear(kind):
        while kind not in page.evaluate("heard.splice(0)"):
            page.wait_for_timeout(20)

    with page.expect_response("**/feed/") as feed:
        clock.run_for(1000)
    assert feed.value.headers["content-type"] == "text/event-stream"
    hear("changed")  # the state when the stream began
    with page.expect_response("**/tenants/vision/") as answered:
        clock.run_for(6000)
    answered.value.finished()
    asked.clear()
    clock.run_for(6000)  # longer than the polling interval, shorter than texts stay fresh
    hear("same")
    assert asked == []
    with page.expect_response("**/tenants/vision/"):
        write("update tenants_tenant set version = version + 1 where name = 'vision'")


def test_token_is_made_once_shown_once_and_revoked(new_tab):
    tab = new_tab()
    tab.sign_in("erin")
    tab.open("/settings/tokens/")
    tab.page.get_by_label("What is it for?").fill("laptop")
    tab.page.get_by_role("button", name="Create token").click()
    secret = tab.page.locator("#secret").text_content()
    assert secret.startswith("kant_")
    assert tab.axe() == []
    with tab.page.expect_response("**/settings/tokens/"):  # its own update keeps it in view
        pass
    expect(tab.page.locator("#secret")).to_have_text(secret)
    tab.page.reload()
    expect(tab.page.get_by_text("The token “laptop” cannot be shown again")).to_be_visible()
    assert secret not in tab.page.content()
    assert tab.axe() == []
    rows = tab.page.get_by_role("row").filter(has_text="laptop")
    expect(rows).to_have_count(1)
    tab.page.go_back()
    assert secret not in tab.page.content()
    tab.open("/settings/tokens/")
    tab.page.get_by_role("button", name="Revoke laptop").click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Revoke “laptop”?")
    assert tab.axe() == []
    dialog.get_by_role("button", name="Revoke").click()
    tab.page.get_by_text("The token is revoked.").wait_for()


def test_what_is_typed_stays_while_the_tokens_follow(new_tab):
    here, there = new_tab(), new_tab()
    for tab in (here, there):
        tab.sign_in("vera")
        tab.open("/settings/tokens/")
    field = here.page.get_by_label("What is it for?")
    field.focus()
    here.page.keyboard.type("half a na")
    there.page.get_by_label("What is it for?").fill("pipeline")
    there.page.get_by_role("button", name="Create token").click()
    expect(here.page.get_by_role("row").filter(has_text="pipeline")).to_be_visible()
    expect(field).to_have_value("half a na")
    expect(field).to_be_focused()
    # The page's only dialog revokes the row that came by itself.
    here.page.get_by_role("button", name="Revoke pipeline").click()
    expect(here.page.get_by_role("dialog")).to_contain_text("Revoke “pipeline”?")
    there.open("/settings/tokens/")
    with here.page.expect_response("**/settings/tokens/"):
        pass
    expect(here.page.get_by_role("dialog")).to_be_visible()
    here.page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    here.page.get_by_text("The token is revoked.").wait_for()


def test_the_dialog_shows_what_is_so_now_not_what_was_typed(new_tab, write):
    tab = new_tab()
    tab.allowed = {422}
    tab.sign_in("erin")
    path = job_path(tab, "held")
    write("update scheduling_job set priority = 0, declared_s = 5400 where name = 'held'")
    tab.open(path)
    change = tab.page.get_by_role("button", name="Change", exact=True)
    dialog = tab.page.get_by_role("dialog")
    change.click()
    dialog.get_by_label("Priority").fill("77")
    dialog.get_by_label("Run time, minutes").fill("")
    dialog.get_by_role("button", name="Leave it").click()
    change.click()
    expect(dialog.get_by_label("Priority")).to_have_value("0")
    expect(dialog.get_by_label("Run time, minutes")).to_have_value("90")
    # A refusal that was dismissed is not shown again either.
    dialog.get_by_label("Priority").fill("9999999")
    dialog.get_by_role("button", name="Change job").click()
    expect(dialog).to_contain_text("Must be from -1000000 to 1000000.")
    dialog.get_by_role("button", name="Leave it").click()
    write("update scheduling_job set priority = 3 where name = 'held'")
    expect(tab.page.locator("#change-now")).to_have_attribute("data-change-priority", "3")
    change.click()
    expect(dialog).not_to_contain_text("Must be from")
    expect(dialog.get_by_text("Higher goes first")).to_be_visible()
    expect(dialog.get_by_label("Priority")).to_have_value("3")
    # The server compares what is sent with what was shown: only fields that were touched change.
    dialog.get_by_label("Run time, minutes").fill("30")
    dialog.get_by_role("button", name="Change job").click()
    tab.page.get_by_text("held is changed.").wait_for()
    expect(tab.page.locator("#change-now")).to_have_attribute("data-change-priority", "3")


def test_the_dialog_asks_only_for_what_can_still_be_changed(new_tab, write):
    tab = new_tab(NARROW)
    tab.sign_in("erin")
    state = "update scheduling_job set state = '{}' where name = 'held'"
    tab.open(job_path(tab, "held"))
    change = tab.page.get_by_role("button", name="Change", exact=True)
    dialog = tab.page.get_by_role("dialog")
    change.click()
    expect(dialog).to_contain_text("helps it start sooner")
    expect(dialog.get_by_label("Priority")).to_be_visible()
    write(state.format("RUNNING"))
    # An open dialog shows the change; a reopened one does not request more.
    expect(dialog).to_contain_text("only its times can be changed. Its run time tells")
    expect(dialog).not_to_contain_text("start sooner")
    dialog.get_by_role("button", name="Leave it").click()
    change.click()
    expect(dialog.get_by_label("Run time, minutes")).to_be_visible()
    expect(dialog.get_by_label("Priority")).to_be_hidden()
    assert tab.axe() == []
    dialog.get_by_label("Run-time limit, minutes").fill("5000")
    dialog.get_by_role("button", name="Change job").click()
    tab.page.get_by_text("held is changed.").wait_for()
    write(state.format("PENDING"))
    expect(tab.page.locator("#change-effect")).to_contain_text("start sooner")
    write("update scheduling_job set run_limit_s = null where name = 'held'")


@pytest.mark.parametrize(
    ("filtered", "width"),
    paired(
        [
            ("/jobs/?tenant=law&q=wait", "Tenant", "/jobs/?q=wait"),
            ("/ops/nodes/?show=asleep", "Which nodes", "/ops/nodes/?"),
        ],
        [WIDE, NARROW],
    ),
)
def test_an_unknown_filter_is_named_and_left_out(filtered, width, new_tab):
    path, label, left = filtered
    tab = new_tab(width)
    tab.sign_in("operator")
    tab.open(path)
    chosen = tab.page.get_by_label(label, exact=True).locator("option:checked")
    expect(chosen).to_contain_text("(unknown)")
    assert tab.axe() == []
    assert tab.overflow() == 0
    tab.page.get_by_role("link", name="Leave this filter out").click()
    tab.page.wait_for_url(f"{tab.site}{left}")
    expect(chosen).to_contain_text("All")
