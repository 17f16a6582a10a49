"""Every page in a real browser: quiet, accessible, in both themes, wide and narrow."""

import re

import pytest
from playwright.sync_api import expect

from tests.cases import NIGHTLY, paired
from tests.e2e import story
from tests.e2e.conftest import NARROW, WIDE, Tab

# The live part of the table of jobs, whose address names the columns.
JOBS_LIVE = re.compile(r"/jobs/\?columns=")
pytestmark = pytest.mark.browser

PAGES = {
    "/": "erin",
    "/jobs/": "vera",
    "/jobs/?state=waiting&q=nothing-like-this": "vera",
    "/jobs/new/": "erin",
    "/queues/": "operator",
    "/queues/new/": "vera",
    "/queues/vision/nightly/": "vera",
    "/clusters/demo/queue/": "operator",
    "/quotas/": "vera",
    "/quotas/loans/": "vera",
    "/schedulers/": "operator",
    "/quotas/vision/H200/": "vera",
    "/quotas/changes/": "vera",
    "/tenants/": "operator",
    "/tenants/vision/": "operator",
    "/tenants/vision/limits/": "operator",
    "/usage/": "operator",
    "/usage/?since=soon": "erin",
    "/settings/tokens/": "erin",
    "/tenants/vision/members/": "vera",
    "/webhooks/": "vera",
    "/webhooks/new/": "operator",
    f"/webhooks/{story.HOOK}/": "vera",
    "/ops/": "operator",
    "/ops/nodes/": "operator",
    "/ops/nodes/demo/node-005/": "operator",
    "JOB wait-000": "erin",
    "JOB train-000": "operator",
    "JOB head": "erin",
    "LOGS train-000": "operator",
    "LIKE head": "erin",
    "/replays/": "operator",
    "/replays/new/": "operator",
    "REPLAY DONE": "operator",
    "REPLAY RUNNING": "operator",
    "REPLAY FAILED": "operator",
    "TRIED DONE": "operator",
    "/policies/demo/": "operator",
    "/clusters/demo/rules/": "operator",
    "/policies/demo/changes/": "operator",
}
# The templates of other addresses cover these variants of the same pages.
ALIKE = {
    "/queues/?q=nothing-like-this": "vera",
    "/queues/vision/interactive/": "erin",
    "/queues/vision/nightly/settings/": "vera",
    "/clusters/demo/queue/?gpu=H200": "erin",
    "/usage/?since=30d&tenant=research": "vera",
    "/tenants/vision/members/?q=nobody": "erin",
    "/webhooks/?tenant=speech": "vera",
    "/tenants/vision/?q=x": "operator",
    "/ops/?gpu=H200&window=1h": "operator",
    "JOB wait-004": "vera",
    "LIKE gone": "erin",
    "AGAIN DONE": "operator",
    "/clusters/demo/rules/?": "erin",
    f"/webhooks/{story.HOOK}/settings/": "vera",
    f"/jobs/?array={story.ARRAY}": "erin",
}
if NIGHTLY:
    PAGES |= ALIKE


@pytest.fixture(scope="module")
def tab_of(browser, site):
    """Share one tab among all pages of a user, since it has already loaded scripts and styles."""
    tabs = {}

    def tab(username):
        if username not in tabs:
            context = browser.new_context(reduced_motion="reduce")
            tabs[username] = Tab(context.new_page(), site)
            tabs[username].sign_in(username)
        tabs[username].page.set_viewport_size({"width": WIDE, "height": 900})
        tabs[username].page.emulate_media(color_scheme="light")
        return tabs[username]

    yield tab
    for each in tabs.values():
        each.page.context.close()


@pytest.mark.parametrize("page", PAGES)
def test_page_is_quiet_and_accessible(page, tab_of, address):
    tab = tab_of(PAGES[page])
    tab.open(address(page))
    expect(tab.page.locator("h1")).to_have_count(1)
    tab.check_looks()
    assert tab.sideways() == []
    tab.page.goto("about:blank")  # the next page must not inherit faults of this one
    faults, tab.faults = tab.faults, []
    assert faults == []


def test_the_api_reference_has_one_title_and_follows_the_theme(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.page.goto(f"{tab.site}/api/v1/docs/")
    tab.page.locator(".opblock").first.wait_for(timeout=60_000)
    seen = tab.page.locator("h1, h2.title").filter(visible=True)
    expect(seen).to_have_text(["API reference"])
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = tab.page.evaluate(ground)
    tab.page.emulate_media(color_scheme="dark")
    tab.page.locator("html.dark-mode").wait_for()
    assert tab.page.evaluate(ground) != light
    assert tab.overflow() == 0


LONG = "gpu-a100-80gb-pool-7c1f8d33-x9z4.us-central1-c.compute.internal"


@pytest.mark.parametrize(
    ("page", "place"),
    [
        ("/ops/nodes/", "tbody th a"),
        ("/tenants/", "tbody th a"),
        ("/ops/nodes/demo/node-005/", ".kpi .big"),
    ],
)
def test_a_long_name_is_shown_to_its_end_on_a_telephone(new_tab, page, place):
    tab = new_tab(NARROW)
    tab.sign_in("operator")
    tab.open(page)
    clipped = """(places, name) => places.filter((place) => {
      place.textContent = name;
      const box = place.closest(".kpi, th").getBoundingClientRect();
      const text = document.createRange();
      text.selectNodeContents(place);
      return text.getBoundingClientRect().right > box.right;
    }).length"""
    assert tab.page.locator(place).evaluate_all(clipped, LONG) == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_sign_in_page(new_tab, theme):
    tab = new_tab(theme=theme)
    tab.open("/login/")
    assert tab.axe() == []
    tab.page.fill("#id_username", "erin")
    tab.page.fill("#id_password", "wrong")
    tab.page.press("#id_password", "Enter")
    tab.page.get_by_role("alert").wait_for()
    assert tab.axe() == []


def test_errors_are_friendly_pages(new_tab):
    tab = new_tab()
    tab.allowed = {403, 404}
    tab.sign_in("erin")
    for path, heading in (("/ops/", "You may not open this"), ("/nope/", "Page not found")):
        tab.page.goto(f"{tab.site}{path}")
        expect(tab.page.locator("h1")).to_have_text(heading)
        assert tab.axe() == []


def test_theme_is_kept_and_charts_follow_it(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/ops/")

    text = tab.page.locator("[data-chart='/ops/charts/waits.json?'] .legendtext").first
    page = tab.page.locator("html")
    light = text.evaluate("e => getComputedStyle(e).fill")
    tab.page.click("summary:has-text('operator')")
    tab.page.click("[data-theme-choice=dark]")
    expect(page).to_have_attribute("data-bs-theme", "dark")
    expect(text).not_to_have_css("fill", light)
    tab.page.reload()
    expect(page).to_have_attribute("data-bs-theme", "dark")


def test_pages_update_themselves_pause_and_rest_while_hidden(new_tab):
    tab = new_tab()
    tab.sign_in("vera")
    tab.page.clock.install()
    tab.open("/jobs/")
    with tab.page.expect_request(JOBS_LIVE) as asked:
        tab.page.clock.run_for(4000)
    assert asked.value.headers["hx-request"] == "true"
    heard: list[str] = []
    tab.page.click("[data-pause]")
    tab.page.on("request", lambda request: heard.append(request.url))
    tab.page.clock.run_for(30_000)
    expect(tab.page.locator("[data-freshness]")).to_have_text(re.compile("^paused"))
    assert heard == []
    with tab.page.expect_request(JOBS_LIVE), tab.page.expect_request("**/feed/"):
        tab.page.click("[data-pause]")
    tab.page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    heard.clear()
    tab.page.clock.run_for(30_000)
    assert heard == []


def test_a_page_that_is_refused_its_update_says_so(new_tab):
    tab = new_tab()
    tab.allowed = {500}
    tab.sign_in("vera")
    tab.open("/jobs/")
    tab.page.route(JOBS_LIVE, lambda route: route.fulfill(status=500, body="no"))
    expect(tab.page.locator("[data-freshness]")).to_contain_text("connection lost")
    tab.page.unroute(JOBS_LIVE)
    expect(tab.page.locator("[data-freshness]")).to_contain_text("live")


def test_chart_tells_its_finding_and_shows_its_table(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    tab.open("/ops/?gpu=H200")
    figure = tab.page.get_by_role("figure", name="Free GPUs, by how free their nodes are")
    expect(figure.locator("[data-summary]")).to_contain_text("GPUs are free")
    figure.get_by_text("Show as table").click()
    expect(figure.locator("tbody tr")).to_have_count(8)
    # A blurred heat map would show numbers of free GPUs that no node has.
    image = tab.page.locator("[data-chart^='/ops/charts/leaf-map'] svg image").first
    expect(image).to_have_css("image-rendering", "pixelated")
    expect(tab.page.locator("[data-title*='Share'], [data-title*='cloud']")).to_have_count(0)


def test_quotas_are_edited_by_keyboard_alone(new_tab):
    tab = new_tab()
    tab.allowed = {422}
    tab.sign_in("piet")
    tab.open("/quotas/")
    cell = tab.page.get_by_label("search H200 guaranteed GPUs")
    for _ in range(60):
        if cell.evaluate("e => e === document.activeElement"):
            break
        tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type("400")
    tab.page.keyboard.press("Enter")
    error = tab.page.locator(".matrix .error")
    expect(error).to_contain_text("are guaranteed to “products” above them")
    assert tab.axe() == []
    cell.focus()
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type("88")
    tab.page.keyboard.press("Enter")
    error.wait_for(state="detached")
    expect(tab.page.locator(".savebar")).to_have_text(re.compile(r"^\s*1 change"))
    tab.page.get_by_label("Reason").focus()
    tab.page.keyboard.press("Enter")
    tab.page.get_by_text("Say why").wait_for()
    expect(cell).to_have_value("88")
    tab.page.get_by_label("Reason").focus()
    tab.page.keyboard.type("The index moved to CPUs")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_text("1 quota changed.").wait_for()
    tab.open("/quotas/changes/")
    row = tab.page.get_by_role("row").nth(1)
    for text in ("piet", "search / H200", "96", "88", "The index moved to CPUs"):
        expect(row).to_contain_text(text)


@pytest.mark.parametrize(("path", "width"), paired(["/tenants/", "/quotas/"], [WIDE, NARROW]))
def test_a_deep_tree_of_tenants_keeps_its_order_and_its_names(path, width, new_tab):
    tab = new_tab(width)
    tab.sign_in("operator")
    tab.open(path)
    chain = ["research", "speech", *(f"speech-at-level-{i}" for i in range(2, story.DEEPEST + 1))]
    # Read all at one instant, because the page renews its rows.
    links = tab.page.locator("th a").evaluate_all(
        "all => all.map(a => [a.innerText.trim(), a.getBoundingClientRect().toJSON()])"
    )
    boxes = [box for name in chain for text, box in links if text == name]
    assert len(boxes) == len(chain)
    left = [box["x"] for box in boxes]
    assert left == sorted(left)
    assert len(set(left)) >= 6
    # No name is broken within a word.
    assert all(box["width"] >= 80 for box in boxes[2:])


def test_state_and_reason_of_a_job_are_read_without_scrolling_on_a_telephone(new_tab):
    tab = new_tab(NARROW)
    tab.sign_in("erin")
    tab.open("/jobs/?state=waiting")
    # Read all at one instant, because the page renews its rows.
    right = tab.page.locator("#jobs-live .chip").evaluate_all(
        "all => all.map(chip => chip.getBoundingClientRect().right)"
    )
    assert len(right) > 10
    assert max(right) <= NARROW


def test_the_small_link_to_an_array_is_large_enough_for_a_thumb(new_tab):
    tab = new_tab(NARROW)
    tab.sign_in("erin")
    tab.open("/jobs/?q=sweep-0")
    link = tab.page.get_by_role("link", name="array of sweep-0")
    box = link.evaluate("e => e.getBoundingClientRect().toJSON()")
    assert min(box["width"], box["height"]) >= 24


def test_a_long_message_of_a_pod_does_not_push_its_gpus_away(new_tab, address):
    tab = new_tab(WIDE)
    tab.sign_in("operator")
    tab.open(address("JOB train-000"))
    pods = tab.page.get_by_role("region", name="Pods")
    expect(pods).to_contain_text(story.LONG_MESSAGE.strip())
    assert pods.evaluate("e => e.scrollWidth - e.clientWidth") == 0


def test_half_typed_quota_survives_the_check_of_another(new_tab):
    tab = new_tab()
    tab.sign_in("vera")
    tab.open("/quotas/")
    tab.page.get_by_label("nlp H100 guaranteed GPUs").fill("40")
    tab.page.get_by_label("speech H100 guaranteed GPUs").focus()
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type("3")
    tab.page.locator(".matrix .was").first.wait_for()
    tab.page.wait_for_timeout(300)
    expect(tab.page.get_by_label("speech H100 guaranteed GPUs")).to_have_value("3")
    expect(tab.page.get_by_label("speech H100 guaranteed GPUs")).to_be_focused()


def test_a_check_that_is_refused_says_so(new_tab):
    tab = new_tab()
    tab.allowed = {403}
    tab.sign_in("vera")
    tab.open("/quotas/")
    tab.page.route("**/quotas/check/", lambda route: route.fulfill(status=403, body="no"))
    refused = tab.page.get_by_text("Your edits could not be checked")
    expect(refused).to_be_hidden()
    tab.page.get_by_label("nlp H100 guaranteed GPUs").fill("40")
    tab.page.keyboard.press("Enter")
    expect(refused).to_be_visible()
    assert tab.axe() == []
    tab.page.unroute("**/quotas/check/")
    tab.page.get_by_label("nlp H100 guaranteed GPUs").fill("41")
    tab.page.keyboard.press("Enter")
    expect(refused).to_be_hidden()


def test_menus_close_when_the_keyboard_leaves_them(new_tab):
    tab = new_tab()
    tab.sign_in("vera")
    tab.open("/quotas/")
    menu = tab.page.locator("details.menu")
    menu.locator("summary").click()
    menu.get_by_role("button", name="Sign out").focus()
    tab.page.keyboard.press("Tab")
    expect(menu).not_to_have_attribute("open", "")
    tab.page.set_viewport_size({"width": NARROW, "height": 900})
    toggle = tab.page.get_by_role("button", name="Menu", exact=True)
    toggle.click()
    expect(toggle).to_have_attribute("aria-expanded", "true")
    tab.page.keyboard.press("Escape")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    expect(tab.page.get_by_role("navigation", name="Main")).to_be_hidden()


def test_filters_say_what_is_shown_after_going_back(new_tab):
    tab = new_tab()
    tab.sign_in("operator")
    for path, label, value in (("/jobs/", "State", "ended"), ("/ops/", "GPU model", "H200")):
        tab.open(path)
        filter_ = tab.page.get_by_label(label, exact=True)
        filter_.select_option(value)
        tab.page.wait_for_url(lambda url, value=value: value in url)
        tab.page.go_back()
        tab.page.wait_for_url(lambda url, value=value: value not in url)
        expect(filter_).to_have_value("")


def test_a_refused_form_opens_at_its_first_fault(new_tab):
    tab = new_tab()
    tab.allowed = {422}
    tab.sign_in("vera")
    for path, label, button in (
        ("/settings/tokens/", "What is it for?", "Create token"),
        ("/quotas/nlp/H100/", "Reason", "Save"),
    ):
        tab.open(path)
        tab.page.get_by_role("button", name=button).click()
        field = tab.page.get_by_label(label)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_be_focused()
