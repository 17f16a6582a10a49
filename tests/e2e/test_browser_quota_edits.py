"""What is typed into the quota matrix stays, whatever the server answers and whenever."""

import itertools
import re

import pytest
from playwright.sync_api import expect

from tests.cases import some
from tests.e2e import scene

pytestmark = [pytest.mark.browser]
KEYS = ("vision H200", "speech H200", "nlp H200", "vision H100", "speech H100", "nlp H100")


def cell(tab, key):
    return tab.page.get_by_label(re.compile(rf"^{key} guaranteed GPUs"))


def draft_of(tab):
    return {key: cell(tab, key).input_value() for key in KEYS}


def delay_checks(tab, delays_ms):
    """Each check is answered by what it carried, but later, by turns."""
    turns = itertools.cycle(delays_ms)

    def late(route):
        answer = route.fetch()
        tab.page.wait_for_timeout(next(turns))
        route.fulfill(response=answer)

    tab.page.route("**/quotas/check/", late)


# One delay each: answers come while the next cell is half typed, after it was left but before its
# own check was sent (200 ms), and after that.
DELAYS_MS = [(0,), (90,), (250,), (600,), (40, 700, 150, 330)]


@pytest.mark.parametrize(("delays_ms", "key_ms"), some(itertools.product(DELAYS_MS, (15, 140))))
def test_no_digit_is_lost_however_late_an_answer_comes(new_tab, delays_ms, key_ms):
    tab = new_tab()
    tab.sign_in("vera")
    tab.open("/quotas/")
    delay_checks(tab, delays_ms)
    typed = {key: str(11 + i) for i, key in enumerate(KEYS)}
    for key, text in typed.items():
        cell(tab, key).focus()
        tab.page.keyboard.press("Control+A")
        tab.page.keyboard.type(text, delay=key_ms)
    tab.page.get_by_label("Reason").focus()
    tab.page.keyboard.type("Typed fast", delay=key_ms)
    expect(tab.page.locator(".savebar")).to_contain_text("6 changes")
    tab.page.wait_for_timeout(1000)
    assert draft_of(tab) == typed
    expect(tab.page.get_by_label("Reason")).to_have_value("Typed fast")
    for key, text in typed.items():
        expect(tab.page.locator("td", has=cell(tab, key))).to_contain_text("was")
        assert cell(tab, key).evaluate("e => new FormData(e.form).get(e.name)") == text


def test_a_late_answer_never_replaces_a_field_that_was_left(new_tab):
    """The answer carries a half-typed value and lands after the cell lost its focus."""
    tab = new_tab()
    tab.sign_in("vera")
    tab.open("/quotas/")
    held = []
    tab.page.route("**/quotas/check/", lambda route: held.append(route))
    cell(tab, "nlp H100").fill("40")
    cell(tab, "speech H100").focus()
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type("4")
    tab.page.wait_for_timeout(400)
    assert "4" in held[0].request.post_data
    answer = held[0].fetch()
    tab.page.keyboard.type("8")
    # Focus goes without an event that would send a newer check and drop this answer.
    tab.page.evaluate(
        """() => addEventListener("change", (e) => e.stopImmediatePropagation(), true)"""
    )
    tab.page.get_by_label("Reason").focus()
    held[0].fulfill(response=answer)
    tab.page.locator(".matrix .was").first.wait_for()
    expect(cell(tab, "speech H100")).to_have_value("48")


def test_a_check_does_not_take_the_reason_away(new_tab):
    tab = new_tab()
    tab.allowed = {422}
    tab.sign_in("vera")
    tab.open("/quotas/")
    cell(tab, "vision H200").fill("4000")
    tab.page.get_by_label("Reason").fill("Much more")
    tab.page.get_by_role("button", name="Save changes").click()
    tab.page.get_by_text("Nothing is saved until").wait_for()
    cell(tab, "nlp H200").fill("50")
    with tab.page.expect_response("**/quotas/check/"):
        tab.page.keyboard.press("Enter")
    expect(tab.page.locator(".savebar")).to_contain_text("2 changes")
    expect(tab.page.get_by_label("Reason")).to_have_value("Much more")


@pytest.mark.parametrize("found_out_by", some(["check", "save", "reload"]))
def test_edits_outlive_the_sign_in(new_tab, found_out_by):
    tab = new_tab()
    tab.allowed = {401}
    # A session of its own: others go on with theirs.
    tab.page.goto(f"{tab.site}/login/")
    sign_in(tab)
    tab.page.wait_for_url(lambda url: "/login/" not in url)
    tab.open("/quotas/")
    before = draft_of(tab)
    lowered = {"vision H100": "7", "nlp H100": "6.5"}
    for key, text in lowered.items():
        with tab.page.expect_response("**/quotas/check/"):
            cell(tab, key).fill(text)
            tab.page.keyboard.press("Enter")
    tab.page.get_by_label("Reason").fill("Typed before the night")
    tab.page.context.clear_cookies(name="sessionid")
    if found_out_by == "check":
        cell(tab, "nlp H100").fill("6")
        lowered["nlp H100"] = "6"
        tab.page.keyboard.press("Enter")
        tab.page.get_by_text("Your sign-in is over.").wait_for()
        assert draft_of(tab) == before | lowered
        assert tab.axe() == []
        tab.page.get_by_role("link", name="Sign in again").click()
    elif found_out_by == "save":
        tab.page.get_by_role("button", name="Save changes").click()
    else:
        tab.page.on("dialog", lambda dialog: dialog.accept())
        tab.page.reload()
    tab.page.locator("#id_username").wait_for()
    sign_in(tab)
    tab.page.get_by_text("Your edits from before are back").wait_for()
    expect(tab.page.locator(".savebar")).to_contain_text("2 changes")
    assert draft_of(tab) == before | lowered
    expect(tab.page.get_by_label("Reason")).to_have_value("Typed before the night")
    tab.page.get_by_role("button", name="Save changes").click()
    tab.page.get_by_text("2 quotas changed.").wait_for()
    assert draft_of(tab) == before | lowered
    expect(tab.page.get_by_text("Your edits from before are back")).to_be_hidden()
    expect(tab.page.get_by_label("Reason")).to_have_value("")
    # And back, so that the other tests find what they expect.
    for key in lowered:
        cell(tab, key).fill(before[key])
    tab.page.get_by_label("Reason").fill("Back")
    tab.page.get_by_role("button", name="Save changes").click()
    tab.page.get_by_text("2 quotas changed.").wait_for()


def sign_in(tab):
    tab.page.fill("#id_username", "vera")
    tab.page.fill("#id_password", scene.PASSWORD)
    tab.page.press("#id_password", "Enter")


def test_a_preview_shows_beside_the_edits_until_they_are_others(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/quotas/")
    cell(tab, "nlp H100").fill("1")
    cell(tab, "vision H200").fill("40")
    tab.page.get_by_label("Reason").focus()
    expect(tab.page.locator(".savebar")).to_contain_text("2 changes")
    tab.page.get_by_role("button", name="Preview").click()
    shown = tab.page.get_by_role("region", name="What these 2 changes would do")
    expect(shown).to_be_in_viewport(timeout=20_000)
    expect(shown).to_contain_text("Who borrows from whom")
    assert cell(tab, "nlp H100").input_value() == "1"
    tab.check_looks()
    cell(tab, "nlp H100").fill("2")
    expect(shown).to_have_count(0)
    tab.open("/quotas/vision/H200/")
    tab.page.get_by_label("Guaranteed GPUs").fill("40")
    tab.page.get_by_role("button", name="Preview").click()
    one = tab.page.get_by_role("region", name="What this would do to vision and others")
    expect(one).to_be_in_viewport(timeout=20_000)
    tab.check_looks()
