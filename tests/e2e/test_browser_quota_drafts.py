"""A draft of quota changes is there in another browser, visible to others, and applied as a
whole."""

import re

import pytest
from playwright.sync_api import expect

from tests.cases import some
from tests.e2e.test_browser_quota_edits import paste, pasted

pytestmark = [pytest.mark.browser]
CHECK = re.compile("/quotas/check/")


def cell(tab, key):
    return tab.page.get_by_label(re.compile(rf"^{key} guaranteed GPUs"))


def write(tab, key, text):
    with tab.page.expect_response(CHECK):
        cell(tab, key).fill(text)
        tab.page.keyboard.press("Enter")


def test_a_draft_is_found_in_another_browser_and_seen_by_others(new_tab):
    mine, other, elsewhere = new_tab(), new_tab(), new_tab(width=390, theme="dark")
    mine.sign_in("vera")
    mine.open("/quotas/")
    before = cell(mine, "vision H200").input_value()
    write(mine, "vision H200", "100")
    write(mine, "nlp H100", "junk")
    with mine.page.expect_response(CHECK):
        mine.page.get_by_label("Reason").fill("Season")
        mine.page.keyboard.press("Tab")
    # Nothing can be lost any more, so the page does not ask before leaving.
    assert mine.page.evaluate("document.querySelector('[data-unsent]')") is None

    other.sign_in("operator")
    other.open("/quotas/")
    told = other.page.locator("#editors")
    expect(told).to_contain_text("vera is editing nlp H100 to junk, vision H200 to 100")
    theirs = other.page.locator("td", has=cell(other, "vision H200"))
    expect(theirs).to_contain_text("vera is editing this: 100")
    assert cell(other, "vision H200").input_value() == before
    other.check_looks()

    elsewhere.sign_in("vera")
    elsewhere.open("/quotas/")
    expect(elsewhere.page.get_by_text("Your earlier edits are back")).to_be_visible()
    expect(cell(elsewhere, "vision H200")).to_have_value("100")
    expect(elsewhere.page.get_by_label("Reason")).to_have_value("Season")
    junk = elsewhere.page.locator("td", has=cell(elsewhere, "nlp H100"))
    expect(junk).to_contain_text("Write a number of GPUs")
    elsewhere.check_looks()
    write(elsewhere, "nlp H100", "47")

    # The first browser shows an older draft and does not apply edits that it has not shown.
    mine.allowed = {422}
    write(mine, "nlp H100", "48")
    write(elsewhere, "speech H100", "31")
    mine.page.get_by_role("button", name="Save changes").click()
    expect(mine.page.get_by_text("your draft has 1 more edit")).to_be_visible()
    expect(cell(mine, "speech H100")).to_have_value("31")
    mine.page.get_by_role("button", name="Discard").click()
    expect(mine.page.get_by_text("Your edits are discarded.")).to_be_visible()
    expect(cell(mine, "vision H200")).to_have_value(before)
    # A person who watches is told that the draft is gone.
    expect(told).not_to_contain_text("vera")
    expect(theirs).not_to_contain_text("vera is editing")


def test_edits_of_several_pages_are_applied_together(new_tab):
    tab = new_tab()
    tab.sign_in("vera")
    tab.open("/quotas/?tenant=vision")
    before = cell(tab, "vision H100").input_value()
    write(tab, "vision H100", "63")
    tab.open("/quotas/?tenant=nlp")
    expect(tab.page.locator(".savebar")).to_contain_text("1 on other pages")
    was = cell(tab, "nlp H100").input_value()
    write(tab, "nlp H100", "47")
    expect(tab.page.locator(".savebar")).to_contain_text("2 changes")
    tab.page.get_by_role("button", name="Preview").click()
    shown = tab.page.get_by_role("region", name="What these 2 changes would do")
    expect(shown).to_be_in_viewport(timeout=20_000)
    tab.page.get_by_role("link", name="1 on other pages").click()
    expect(tab.page.locator(".matrix tbody tr")).to_have_count(2)
    expect(cell(tab, "vision H100")).to_have_value("63")
    expect(cell(tab, "nlp H100")).to_have_value("47")
    for texts in (("63", "47"), (before, was)):
        cell(tab, "vision H100").fill(texts[0])
        cell(tab, "nlp H100").fill(texts[1])
        tab.page.get_by_label("Reason").fill("Both")
        tab.page.get_by_role("button", name="Save changes").click()
        tab.page.get_by_text("2 quotas changed.").wait_for()
        tab.open("/quotas/")
        expect(tab.page.locator(".savebar")).to_contain_text("No changes")


def save(tab, reason):
    tab.page.get_by_label("Reason").fill(reason)
    tab.page.get_by_role("button", name="Save changes").click()
    tab.page.get_by_text(re.compile(r"\d quotas? changed\.")).wait_for()


@pytest.mark.parametrize(("width", "theme"), some([(1440, "light"), (390, "dark")]))
def test_a_pasted_block_has_modes_and_limits_and_goes_around_as_it_is(new_tab, width, theme):
    above, tab = new_tab(), new_tab(width=width, theme=theme)
    above.sign_in("operator")
    above.open("/quotas/")
    of_all = cell(above, "research H200").input_value()
    write(above, "research H200", f"{of_all} borrow 4")
    save(above, "Limit")
    tab.sign_in("vera")
    tab.open("/quotas/")
    keys = ("vision H200", "speech H200", "nlp H200")
    was = {key: cell(tab, key).input_value() for key in keys}
    block = f"\tH200\nvision\t{was['vision H200']} shared borrow 4 lend 2\n"
    block += f"speech\t{was['speech H200']} isolated\nnlp\t90 isolatd\n"
    paste(tab, "vision H200", block)
    assert pasted(tab) == "3 cells are filled; nothing is saved yet."
    wrong = tab.page.locator("td", has=cell(tab, "nlp H200"))
    expect(wrong).to_contain_text("“isolatd” cannot be read here.")
    expect(wrong).to_contain_text("e.g. 8 shared borrow 4 lend any")
    expect(cell(tab, "nlp H200")).to_have_attribute("aria-invalid", "true")
    right = tab.page.locator("td", has=cell(tab, "vision H200"))
    expect(right).to_contain_text("May borrow 4, Lends 2")
    expect(right.locator(".error")).to_have_count(0)
    expect(tab.page.locator(".savebar")).to_contain_text("3 changes")
    tab.check_looks()
    tab.open("/quotas/")
    expect(cell(tab, "nlp H200")).to_have_value("90 isolatd")
    write(tab, "nlp H200", was["nlp H200"])
    save(tab, "Season")
    assert {key: cell(tab, key).input_value() for key in keys} == was
    expect(tab.page.locator("td", has=cell(tab, "speech H200"))).to_contain_text("isolated")
    # The page's whole CSV, including rows that only others may change, imports as the current
    # state.
    with tab.page.expect_download() as download:
        tab.page.get_by_role("link", name="CSV", exact=True).click()
    table = download.value.path().read_text()
    assert f"{was['vision H200']} shared borrow 4 lend 2" in table
    assert f"{of_all} shared borrow 4" in table
    with tab.page.expect_response(CHECK):
        tab.page.get_by_label("Fill from CSV").set_input_files(download.value.path())
    assert pasted(tab).endswith("cells are filled; nothing is saved yet.")
    assert "Not filled" not in pasted(tab)
    expect(tab.page.locator(".savebar")).to_contain_text("No changes")
    expect(tab.page.locator(".matrix .edited")).to_have_count(0)
    # Undo, for the other tests.
    write(tab, "vision H200", f"{was['vision H200']} borrow any lend any")
    write(tab, "speech H200", f"{was['speech H200']} shared")
    save(tab, "Back")
    write(above, "research H200", f"{of_all} borrow any")
    save(above, "Back")
