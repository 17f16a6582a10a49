"""The table of jobs in a browser: jobs chosen while it updates itself, columns and views kept."""

import re

import pytest
from playwright.sync_api import expect

from tests.e2e.site import PASSWORD

pytestmark = pytest.mark.browser


def test_jobs_that_are_chosen_stay_so_and_are_acted_on_together(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.page.clock.install()
    tab.open("/jobs/?state=waiting&columns=priority,by")
    boxes = tab.page.locator("#jobs-live input[name=id]")
    count = tab.page.locator("[data-chosen-count]")
    tab.page.clock.run_for(100)
    expect(tab.page.locator("[data-chosen-acts]")).to_be_hidden()
    boxes.nth(0).check()
    boxes.nth(1).check()
    expect(count).to_have_text("2 chosen")
    with tab.page.expect_response(lambda answer: "/jobs/" in answer.url):
        tab.page.clock.run_for(11_000)
    expect(boxes.nth(0)).to_be_checked()
    expect(tab.page.locator("#jobs-live input[name=id]:checked")).to_have_count(2)
    tab.page.fill("[name=priority]", "7")
    tab.page.click("text=Set priority")
    expect(tab.page.locator("h1")).to_have_text("Set the priority of 2 jobs to 7?")
    tab.check_looks()
    tab.page.click("text=Set priority 7")
    tab.page.get_by_text("2 jobs are of priority 7 now.").wait_for()
    expect(tab.page.locator("td[data-label=Priority]:text-is('7')")).to_have_count(2)


def test_columns_and_views_are_kept(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/jobs/?state=open")
    tab.page.click("summary:has-text('Columns')")
    tab.page.check("[name=column][value=position]")
    tab.page.uncheck("[name=column][value=by]")
    tab.page.click("text=Show these")
    heads = tab.page.locator("#jobs-live thead")
    expect(heads).to_contain_text("Position")
    expect(heads.get_by_text("By", exact=True)).to_have_count(0)
    tab.page.click("summary:has-text('Keep view')")
    tab.page.fill(".menu-panel [name=name]", "What is open")
    tab.page.click(".menu-panel button:has-text('Keep')")
    tab.page.click(".view a:has-text('What is open')")
    expect(tab.page.locator(".view [aria-current]")).to_have_text("What is open")
    assert re.search(r"columns=.*position", tab.page.url)
    tab.check_looks()
    tab.page.click("[aria-label='Remove the view What is open']")
    expect(tab.page.locator(".view")).to_have_count(0)


def test_columns_are_chosen_by_keyboard_alone(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/jobs/?columns=gpus")
    menu = tab.page.locator("summary:has-text('Columns')")
    menu.focus()
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.press("Tab")
    expect(tab.page.locator("[name=column][value=position]")).to_be_focused()
    assert tab.axe() == []
    tab.page.keyboard.press("Escape")
    expect(menu).to_be_focused()
    expect(tab.page.locator("details.menu[open]")).to_have_count(0)


def test_the_name_of_a_view_outlives_the_sign_in(new_tab):
    tab = new_tab()
    tab.sign_in("vik")
    tab.open("/jobs/?state=waiting")
    tab.page.click("summary:has-text('Keep view')")
    name = tab.page.locator(".menu-panel [name=name]")
    name.fill("What waits")
    tab.page.context.clear_cookies(name="sessionid")
    tab.page.click(".menu-panel button:has-text('Keep')")
    tab.page.fill("#id_username", "vik")
    tab.page.fill("#id_password", PASSWORD)
    tab.page.press("#id_password", "Enter")
    tab.page.get_by_text("Your sign-in ended before this was sent.").wait_for()
    expect(name).to_have_value("What waits")
    tab.page.click(".menu-panel button:has-text('Keep')")
    expect(tab.page.locator(".view [aria-current]")).to_have_count(0)
    tab.page.click(".view a:has-text('What waits')")
    tab.page.click("[aria-label='Remove the view What waits']")
    expect(tab.page.locator(".view")).to_have_count(0)


def test_chips_and_rows_of_the_table_stand_on_one_line(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/jobs/?state=waiting&columns=gpus,by")
    cells = tab.page.locator("#jobs-live td.main:has(.chip ~ .chip)")
    expect(cells.first).to_be_visible()
    tops = "(cells) => cells.map(c => [...c.querySelectorAll('.chip')].map(e => e.offsetTop))"
    assert [each for each in cells.evaluate_all(tops) if len(set(each)) > 1] == []
    # A job of an array has one more link.
    heights = "(rows) => [...new Set(rows.map(r => Math.round(r.getBoundingClientRect().height)))]"
    assert len(tab.page.locator("#jobs-live tbody tr").evaluate_all(heights)) == 1
