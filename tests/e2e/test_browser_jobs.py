"""Jobs in a real browser: submitted, changed, held and cancelled by hand."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_job_is_submitted_with_two_pod_sets_and_cancelled_after_asking(new_tab):
    tab = new_tab()
    tab.sign_in("erin")
    tab.open("/jobs/new/")
    tab.page.get_by_label("Name", exact=True).first.fill("two-sets")
    tab.page.get_by_role("button", name="Add pod set").click()
    tab.page.locator("#id_sets-1-count").fill("2")
    curl = tab.page.locator("#curl")
    expect(curl).to_contain_text('"count": 2')
    expect(curl).to_contain_text('"name": "two-sets"')
    tab.page.get_by_text("Would start now", exact=True).wait_for()
    tab.page.get_by_role("button", name="Submit job", exact=True).click()
    tab.page.get_by_text("two-sets is submitted.").wait_for()
    expect(tab.page.locator("#job-live")).to_contain_text("Why it is waiting")
    tab.page.get_by_role("button", name="Cancel job").click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("no work is lost")
    assert tab.axe() == []
    dialog.get_by_role("button", name="Keep it").click()
    tab.page.get_by_role("button", name="Cancel job").click()
    dialog.get_by_role("button", name="Cancel job").click()
    tab.page.get_by_text("two-sets is cancelled.").wait_for()
    expect(tab.page.locator("#job-live")).to_contain_text("Cancelled")


def test_what_would_start_now_is_applied_to_the_form(new_tab):
    tab = new_tab()
    tab.sign_in("erin")
    tab.open("/jobs/new/")
    tab.page.get_by_label("Name", exact=True).first.fill("too-large")
    count, model = tab.page.locator("#id_sets-0-count"), tab.page.locator("#id_sets-0-gpu_type")
    model.select_option("H200")
    tab.page.locator("#id_sets-0-gpus").fill("8")
    count.fill("9")
    fewer = tab.page.locator("#preview [data-apply][data-count]")
    fewer.wait_for()
    pods = fewer.get_attribute("data-count")
    fewer.click()
    expect(count).to_have_value(pods)
    expect(count).to_be_focused()
    tab.page.get_by_text("Would start now", exact=True).wait_for()
    assert tab.axe() == []


def test_folded_settings_open_with_what_they_hold(new_tab):
    tab = new_tab()
    tab.allowed = {422}
    tab.sign_in("erin")
    tab.open("/jobs/new/")
    tab.page.get_by_label("Name", exact=True).first.fill("with-volumes")
    environment = tab.page.get_by_label("Environment", exact=True)
    expect(environment).to_be_hidden()
    tab.page.get_by_text("More settings").last.focus()
    tab.page.keyboard.press("Enter")
    environment.fill("A=1\nB=2")
    first = tab.page.get_by_role("group", name="Volume 1")
    first.get_by_label("Name").fill("datasets")
    first.get_by_label("Mounted at").fill("/data")
    first.get_by_label("Read-only").check()
    tab.page.get_by_role("button", name="Add volume").click()
    second = tab.page.get_by_role("group", name="Volume 2")
    expect(second.get_by_label("Volume 2")).to_be_focused()
    expect(first.get_by_label("Read-only")).to_be_checked()
    second.get_by_label("Name").fill("runs")
    second.get_by_label("Mounted at").fill("/data")
    expect(tab.page.locator("#preview")).to_contain_text("Volume 2, Mounted at: Volume 'volume-1'")
    tab.page.get_by_role("button", name="Submit job", exact=True).click()
    wrong = second.get_by_label("Mounted at")
    expect(wrong).to_have_attribute("aria-invalid", "true")
    expect(wrong).to_be_focused()
    tab.check_looks()
    wrong.fill("/runs")
    tab.page.get_by_role("button", name="Submit job", exact=True).click()
    tab.page.get_by_text("with-volumes is submitted.").wait_for()
    expect(tab.page.locator("#job-live")).to_contain_text("/data: claim datasets, read-only")
    tab.page.get_by_role("button", name="Cancel job").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    tab.page.get_by_text("with-volumes is cancelled.").wait_for()


def test_an_open_page_learns_that_its_job_was_cancelled_elsewhere(new_tab, address):
    here, there = new_tab(), new_tab()
    for tab in (here, there):
        tab.sign_in("erin")
        tab.open(address("JOB wait-002"))
    here.page.get_by_role("button", name="Cancel job").click()
    there.page.get_by_role("button", name="Cancel job").click()
    there.page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    there.page.get_by_text("wait-002 is cancelled.").wait_for()
    dialog = here.page.get_by_role("dialog")
    expect(dialog).to_contain_text("The job is already over; there is nothing left to cancel.")
    dialog.get_by_role("button", name="Keep it").click()
    for name in ("Change", "Hold", "Cancel job"):
        expect(here.page.get_by_role("button", name=name, exact=True)).to_have_count(0)


def test_a_waiting_job_is_changed_and_held_and_its_array_cancelled(new_tab, address):
    tab = new_tab()
    tab.allowed = {422}
    tab.sign_in("erin")
    tab.open(address("JOB sweep-3"))
    dialog = tab.page.get_by_role("dialog")
    tab.page.get_by_role("button", name="Change", exact=True).click()
    expect(dialog.get_by_label("Priority")).to_have_accessible_description("Higher goes first")
    dialog.get_by_label("Priority").fill("9999999")
    dialog.get_by_role("button", name="Change job").click()
    expect(dialog).to_contain_text("Must be from -1000000 to 1000000.")
    assert tab.axe() == []
    dialog.get_by_label("Priority").fill("5")
    dialog.get_by_role("button", name="Change job").click()
    tab.page.get_by_text("sweep-3 is changed.").wait_for()
    tab.page.get_by_role("button", name="Hold", exact=True).click()
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("[data-effects] section")).to_be_focused()
    assert tab.axe() == []
    assert tab.overflow() == 0
    dialog.get_by_role("button", name="Hold job").click()
    expect(tab.page.locator("#job-live")).to_contain_text("On hold.")
    tab.page.get_by_role("button", name="Release", exact=True).click()
    dialog.get_by_role("button", name="Release job").click()
    tab.page.get_by_text("sweep-3 is released.").wait_for()
    tab.page.get_by_role("link", name="all jobs of its array").click()
    # Until its script has run, the page also offers to hold chosen jobs.
    tab.page.locator("#array-actions").get_by_role("button", name="Hold").click()
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("[data-effects] section")).to_be_focused()
    dialog.get_by_role("button", name="Hold array").click()
    tab.page.get_by_text("The waiting jobs of sweep are on hold.").wait_for()
    assert tab.axe() == []
    tab.page.get_by_role("button", name="Cancel array").click()
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("[data-effects] section")).to_be_focused()
    expect(dialog.locator("[data-effects] h2")).to_have_text("What it would do to other jobs")
    assert tab.axe() == []
    assert tab.overflow() == 0
    dialog.get_by_role("button", name="Cancel array").click()
    tab.page.get_by_text("that were not over are cancelled.").wait_for()


def test_a_long_log_scrolls_where_the_keyboard_reaches_it(new_tab, address):
    tab = new_tab()
    tab.sign_in("erin")
    tab.open(address("LOGS train-000"))
    tab.page.evaluate(
        """() => {
          document.getElementById("logs-live").innerHTML =
            '<div class="code log" tabindex="0" role="region" aria-label="Log"><pre></pre></div>';
          document.querySelector(".log pre").textContent = "a line of a log\\n".repeat(500);
        }"""
    )
    scrolls = "e => e.scrollHeight > e.clientHeight && getComputedStyle(e).overflowY !== 'visible'"
    assert tab.page.locator(".log").evaluate(scrolls)
    assert not tab.page.locator(".log pre").evaluate(scrolls)
    for theme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=theme)
        assert tab.axe() == []
