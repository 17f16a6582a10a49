"""What is typed into the quota matrix stays, whatever the server answers and however late."""

import itertools
import re
from urllib.parse import parse_qsl

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
    """Answer each check with what it carried, but late, with alternating delays."""
    turns = itertools.cycle(delays_ms)

    def late(route):
        answer = route.fetch()
        tab.page.wait_for_timeout(next(turns))
        route.fulfill(response=answer)

    tab.page.route("**/quotas/check/", late)


# One delay of each kind: answers come while the next cell is half typed, after it was left but
# before its own check was sent (200 ms), and after that. Random histories try many more.
DELAYS_MS = [(0,), (90,), (250,), (600,), (40, 700, 150, 330)]


@pytest.mark.parametrize(
    ("delays_ms", "key_ms"), some(zip(DELAYS_MS, itertools.cycle((15, 140)), strict=False))
)
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


def test_a_whole_table_is_typed_while_answers_come_late(new_tab):
    """Type column by column, as in a spreadsheet: each answer comes while another cell is being
    typed."""
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/quotas/")
    delay_checks(tab, (40, 700, 150, 330, 0))
    fields = tab.page.locator(".matrix input:not([type=hidden])")
    names = fields.evaluate_all("all => all.map((one) => one.name)")
    assert len(names) >= 36
    typed = {name: str(101 + at) for at, name in enumerate(names)}
    columns = len(scene.POOLS)
    for column in range(columns):
        fields.nth(column).focus()
        fields.nth(column).select_text()
        for at in range(column, len(names), columns):
            tab.page.keyboard.type(typed[names[at]], delay=15)
            tab.page.keyboard.press("Enter")
    tab.page.get_by_label("Reason").focus()
    expect(tab.page.locator(".savebar")).to_contain_text(f"{len(names)} changes")
    tab.page.wait_for_timeout(1000)
    now = fields.evaluate_all("all => Object.fromEntries(all.map((o) => [o.name, o.value]))")
    assert now == typed


def test_a_late_answer_never_replaces_a_field_that_was_left(new_tab):
    """The answer carries a half-typed value and arrives after the cell lost its focus."""
    tab = new_tab()
    tab.sign_in("vera")
    tab.open("/quotas/")
    held = []
    tab.page.route("**/quotas/check/", lambda route: held.append(route))
    cell(tab, "nlp H100").fill("40")
    cell(tab, "speech H100").focus()
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type("4")
    half_typed = (cell(tab, "speech H100").get_attribute("name"), "4")
    while not held:
        tab.page.wait_for_timeout(20)
    if half_typed not in parse_qsl(held[0].request.post_data):  # a busy browser has sent it already
        cell(tab, "nlp H100").dispatch_event("change")
        while len(held) == 1:
            tab.page.wait_for_timeout(20)
    check = held[-1]
    assert half_typed in parse_qsl(check.request.post_data)
    check = held[-1]
    answer = check.fetch()
    tab.page.keyboard.type("8")
    # The cell loses its focus without an event that would send a newer check and drop this answer.
    tab.page.evaluate(
        """() => addEventListener("change", (e) => e.stopImmediatePropagation(), true)"""
    )
    tab.page.get_by_label("Reason").focus()
    check.fulfill(response=answer)
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
    # A session of its own, so that the other tests keep theirs.
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
        tab.page.get_by_text("Your sign-in has ended.").wait_for()
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
    tab.page.get_by_text("Your earlier edits are back").wait_for()
    expect(tab.page.locator(".savebar")).to_contain_text("2 changes")
    assert draft_of(tab) == before | lowered
    expect(tab.page.get_by_label("Reason")).to_have_value("Typed before the night")
    tab.page.get_by_role("button", name="Save changes").click()
    tab.page.get_by_text("2 quotas changed.").wait_for()
    assert draft_of(tab) == before | lowered
    expect(tab.page.get_by_text("Your earlier edits are back")).to_be_hidden()
    expect(tab.page.get_by_label("Reason")).to_have_value("")
    # Undo, so that the other tests find what they expect.
    for key in lowered:
        cell(tab, key).fill(before[key])
    tab.page.get_by_label("Reason").fill("Back")
    tab.page.get_by_role("button", name="Save changes").click()
    tab.page.get_by_text("2 quotas changed.").wait_for()


def test_a_page_stays_while_its_sign_in_is_over_and_says_so(new_tab):
    tab = new_tab()
    tab.allowed = {401}
    tab.sign_in("vera")
    tab.open("/quotas/")
    cell(tab, "nlp H100").focus()
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type("4")
    tab.page.context.clear_cookies(name="sessionid")
    with tab.page.expect_response("**/quotas/editors/"):
        tab.page.evaluate("document.getElementById('editors').dispatchEvent(new Event('refresh'))")
    tab.page.get_by_text("Your sign-in has ended.").wait_for()
    tab.page.keyboard.type("8")
    expect(cell(tab, "nlp H100")).to_have_value("48")


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


def test_a_check_that_failed_is_told_until_it_is_made_again(new_tab):
    tab = new_tab()
    tab.allowed = {503}
    tab.sign_in("vera")
    tab.open("/quotas/")
    fails = [True]

    def answer(route):
        if fails[0]:
            route.fulfill(status=503, body="busy")
        else:
            route.continue_()

    tab.page.route("**/quotas/check/", answer)
    cell(tab, "nlp H100").fill("40")
    tab.page.keyboard.press("Tab")
    told = tab.page.get_by_text("Your edits could not be checked")
    told.wait_for()
    # The page polls for other people's edits all the while, and gets answers.
    with tab.page.expect_response("**/quotas/editors/"):
        tab.page.evaluate("document.getElementById('editors').dispatchEvent(new Event('refresh'))")
    expect(told).to_be_visible()
    fails[0] = False
    expect(told).to_be_hidden()
    expect(tab.page.locator(".savebar")).to_contain_text("1 change")
    expect(tab.page.locator("form[data-unsent]")).to_have_count(0)


PASTE = """(field, text) => {
  const held = new DataTransfer();
  held.setData("text/plain", text);
  field.focus();
  const event = new ClipboardEvent("paste", {clipboardData: held, bubbles: true, cancelable: true});
  return field.dispatchEvent(event);
}"""


def paste(tab, key, text):
    with tab.page.expect_response("**/quotas/check/"):
        assert not cell(tab, key).evaluate(PASTE, text), "the browser would paste it into one cell"


def pasted(tab):
    return tab.page.locator("#pasted div").text_content()


def test_a_block_of_a_spreadsheet_fills_cells_and_junk_is_marked_and_kept(new_tab):
    tab = new_tab()
    tab.sign_in("vera")
    tab.open("/quotas/")
    heads = tab.page.locator(".matrix thead th").all_text_contents()[1:]
    tenants = tab.page.locator(".matrix tbody th a").all_text_contents()
    assert {"H100", "H200"} <= {head.strip() for head in heads}
    first, second = heads[0].strip(), heads[1].strip()
    mine = [name for name in tenants if name != "research"]
    paste(tab, f"{mine[0]} {first}", f"3\t1,200\r\n{'x' * 5}\t\r\n")
    assert pasted(tab) == "3 cells are filled; nothing is saved yet."
    assert cell(tab, f"{mine[0]} {first}").input_value() == "3"
    assert cell(tab, f"{mine[0]} {second}").input_value() == "1,200"
    assert cell(tab, f"{mine[1]} {first}").input_value() == "xxxxx"
    junk = tab.page.locator("td", has=cell(tab, f"{mine[0]} {second}"))
    expect(junk).to_contain_text("Write thousands without a separator, e.g. 1200.")
    expect(tab.page.locator("td", has=cell(tab, f"{mine[1]} {first}"))).to_contain_text(
        "Write a number of GPUs in the digits 0 to 9"
    )
    expect(tab.page.locator(".savebar")).to_contain_text("Nothing is saved until you correct")
    # Beyond the last row, and in cells that only others may change.
    paste(tab, f"{mine[-1]} {first}", "5\n6\n7")
    assert pasted(tab).endswith("page has no such cell that you may change: 6, 7.")
    # By names in any order, some of which match nothing here.
    table = f"\t{second}\tQ9\t{first}\n{mine[-1]}\t2\t1\t4\nnobody\t1\t1\t1\nresearch\t9999\t\t"
    paste(tab, f"{mine[0]} {first}", table)
    assert cell(tab, f"{mine[-1]} {second}").input_value() == "2"
    assert cell(tab, f"{mine[-1]} {first}").input_value() == "4"
    assert "mine" not in pasted(tab)
    for name in (f"{mine[-1]} Q9: 1", f"nobody {first}: 1", f"research {second}: 9999"):
        assert name in pasted(tab)
    assert cell(tab, f"{mine[0]} {first}").input_value() == "3"  # one edit more, none less
    tab.check_looks()
    # A single value is pasted as into any field.
    assert cell(tab, f"{mine[0]} {first}").evaluate(PASTE, "8")


def test_the_csv_of_the_page_is_changed_in_a_spreadsheet_and_taken_back(new_tab, tmp_path):
    tab = new_tab(width=390, theme="dark")
    tab.sign_in("vera")
    tab.open("/quotas/")
    before = draft_of(tab)
    with tab.page.expect_download() as download:
        tab.page.get_by_role("link", name="CSV", exact=True).click()
    text = download.value.path().read_text()
    assert text.startswith("tenant,")
    rows = [line.split(",") for line in text.splitlines()]
    at = rows[0].index("H200")
    for row in rows:
        if row[0] == "nlp":
            row[at] = "41"
    file = tmp_path / "changed.csv"
    file.write_text("\ufeff" + "\r\n".join(";".join(row) for row in rows))
    field = tab.page.get_by_label("Fill from CSV")
    with tab.page.expect_response("**/quotas/check/"):
        field.set_input_files(file)
    assert draft_of(tab) == before | {"nlp H200": "41"}
    assert pasted(tab).endswith("nothing is saved yet.")
    expect(tab.page.locator(".savebar")).to_contain_text("1 change")
    tab.check_looks()
    file.write_text("a,b\n1,2\n")
    field.set_input_files(file)
    expect(tab.page.locator("#pasted")).to_contain_text("names no GPU type of this table")
    assert draft_of(tab) == before | {"nlp H200": "41"}


def test_a_cell_that_somebody_else_changed_is_given_up_alone(new_tab):
    mine, other = new_tab(), new_tab()
    mine.sign_in("vera")
    mine.open("/quotas/")
    other.sign_in("operator")
    other.open("/quotas/")
    was = draft_of(mine)["speech H200"]
    cell(other, "speech H200").fill("63")
    other.page.get_by_label("Reason").fill("Theirs")
    other.page.get_by_role("button", name="Save changes").click()
    other.page.get_by_text("1 quota changed.").wait_for()
    cell(mine, "nlp H200").fill("95")
    cell(mine, "speech H200").fill("62")
    with mine.page.expect_response("**/quotas/check/"):
        mine.page.get_by_label("Reason").fill("Mine")
    told = mine.page.locator("td", has=cell(mine, "speech H200"))
    expect(told).to_contain_text("operator set it to 63 meanwhile (“Theirs”); you wrote 62.")
    expect(told).to_contain_text(f"It was {was} when you began.")
    mine.check_looks()
    with mine.page.expect_response("**/quotas/check/"):
        mine.page.get_by_role("button", name="Take theirs").click()
    expect(mine.page.locator(".savebar")).to_contain_text("1 change")
    expect(mine.page.get_by_role("button", name="Take theirs")).to_have_count(0)
    assert cell(mine, "speech H200").input_value() == "63"
    assert cell(mine, "nlp H200").input_value() == "95"
    with mine.page.expect_response("**/quotas/check/"):
        cell(mine, "speech H200").fill(was)
        mine.page.keyboard.press("Enter")
    expect(mine.page.locator(".savebar")).to_contain_text("2 changes")
    assert "meanwhile" not in told.text_content()
    cell(mine, "nlp H200").fill("96")
    mine.page.get_by_role("button", name="Save changes").click()
    mine.page.get_by_text("1 quota changed.").wait_for()  # undo, for the other tests
