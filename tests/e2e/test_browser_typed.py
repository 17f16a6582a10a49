"""Input is restored when a form did not arrive: the session had ended, the server was busy or
broken, or the connection was lost."""

import json
import re
import time

import pytest
from django.template.loader import render_to_string
from playwright.sync_api import expect

from tenants.outage import AWAY
from tests.cases import NIGHTLY, some
from tests.e2e import scene, story

pytestmark = [pytest.mark.browser]
# Page, user, form. What is saved stays on the site for later tests: the limits belong to a tenant
# that submits no jobs.
FORMS = [
    ("/jobs/new/", "erin", "#job-form"),
    ("/quotas/vision/H200/", "vera", "main form[data-once]"),
    ("/policies/demo/", "operator", "#policy-form"),
    ("/queues/new/", "vera", "main form[data-once]"),
    ("/queues/vision/nightly/settings/", "vera", "main form[data-once]"),
    (f"/tenants/speech-at-level-{story.DEEPEST}/limits/", "operator", "main form[data-once]"),
    ("/clusters/demo/rules/", "operator", "main form[data-once]"),
    ("/webhooks/new/", "vera", "main form[data-once]"),
    (f"/webhooks/{story.HOOK}/settings/", "vera", "main form[data-once]"),
    ("/ops/nodes/demo/node-005/drain/", "operator", "main form[data-once]"),
    ("/settings/tokens/", "erin", "main form[data-once]"),
    ("/replays/new/", "operator", "main form[data-once]"),
    ("/tenants/vision/members/", "vera", "main form:has(#id_username)"),
]
BACK, UNDONE = "What you typed is in the form again.", "Do it again if you still want it."
UNSURE = "It is not known whether what you sent last has arrived."
FIELDS = (
    "input:is([type=text], [type=number], [type=url], :not([type])):visible:enabled"
    ":not([readonly]),"
    "textarea:visible:enabled"
)


def fresh(new_tab, who):
    """Open a tab with a session of its own, so that the others keep theirs."""
    tab = new_tab()
    tab.allowed = {401, 403, 422}
    tab.page.on("dialog", lambda dialog: dialog.accept())
    tab.page.goto(f"{tab.site}/login/")
    sign_in(tab, who)
    return tab


def sign_in(tab, who):
    tab.page.fill("#id_username", who)
    tab.page.fill("#id_password", scene.PASSWORD)
    tab.page.press("#id_password", "Enter")
    tab.page.wait_for_url(lambda url: "/login/" not in url)


def end_session(tab):
    tab.page.context.clear_cookies(name="sessionid")


def typed_into(form):
    fields = form.locator(FIELDS)
    return {f.get_attribute("name"): f.input_value() for f in fields.all()}


def fill(form):
    for index, field in enumerate(form.locator(FIELDS).all()):
        field.fill(f"{index + 3}")
    for box in form.locator("input[type=checkbox]:visible:enabled").all()[:2]:
        box.click()
    return typed_into(form), checked_in(form)


def checked_in(form):
    boxes = form.locator("input:is([type=checkbox], [type=radio]):visible")
    return [(b.get_attribute("name"), b.is_checked()) for b in boxes.all()]


SENT_TOO_LATE = FORMS if NIGHTLY else FORMS[::6]


@pytest.mark.parametrize(("page", "who", "form"), SENT_TOO_LATE, ids=[f[0] for f in SENT_TOO_LATE])
def test_a_form_that_was_sent_too_late_comes_back_as_it_was(new_tab, page, who, form):
    tab = fresh(new_tab, who)
    tab.open(page)
    at = tab.page.locator(form).first
    before = fill(at)
    assert before[0]
    end_session(tab)
    at.locator("button[type=submit].btn-main").first.click()
    tab.page.locator("#id_username").wait_for()
    sign_in(tab, who)
    expect(tab.page.get_by_text(BACK)).to_be_visible()
    assert (typed_into(at), checked_in(at)) == before
    assert tab.axe() == []
    # Once only.
    assert tab.page.evaluate("sessionStorage.getItem('kant-typed')") is None
    tab.page.goto(f"{tab.site}/jobs/")
    tab.open(page)
    expect(tab.page.get_by_text(BACK)).to_have_count(0)


def busy(route):
    route.fulfill(
        status=503,
        content_type="text/html",
        body=render_to_string("503.html", {"trouble": AWAY}),
    )


def broken(route):
    route.fulfill(status=500, content_type="text/html", body=render_to_string("500.html"))


def gateway(route):
    route.fulfill(status=502, content_type="text/plain", body="Bad gateway")


def dropped(route):
    route.abort("connectionreset")


def broken_late(route):
    """The fault comes after the page that sent the form has loaded."""
    time.sleep(1.0)
    broken(route)


FAILURES = [busy, broken, gateway, dropped]
EACH = [(*form, fault) for form in FORMS for fault in FAILURES]
# By day try each failure once, on forms other than those sent too late.
FAILED = EACH if NIGHTLY else [(*f, one) for f, one in zip(FORMS[2::3], FAILURES, strict=True)]


def fail_next_post(tab, fault):
    """Make the next form that this tab sends meet the fault; later ones arrive."""

    met = []

    def meet(route):
        request = route.request
        if met or request.method != "POST" or not request.is_navigation_request():
            route.fallback()
            return
        met.append(request.url)
        fault(route)

    tab.page.route("**/*", meet)


def send(tab, button, fault):
    """Press the button; return once the page that replaces the answer is there."""
    fail_next_post(tab, fault)
    if fault is not dropped:
        with tab.page.expect_response(lambda one: one.status >= 500):
            button.click()
        tab.page.locator("main[data-failed], body > pre").wait_for()
        tab.page.wait_for_load_state()
    else:
        with tab.page.expect_event("requestfailed"):
            button.click()
        tab.page.wait_for_url("chrome-error://**")


@pytest.mark.parametrize(
    ("page", "who", "form", "fault"), FAILED, ids=[f"{f[0]} {f[3].__name__}" for f in FAILED]
)
def test_a_form_that_met_a_failure_comes_back_as_it_was(new_tab, page, who, form, fault):
    tab = new_tab()
    tab.allowed = {401, 422, 500, 502, 503}
    tab.sign_in(who)
    tab.open(page)
    at = tab.page.locator(form).first
    before = fill(at)
    assert before[0]
    send(tab, at.locator("button[type=submit].btn-main").first, fault)
    if fault in (busy, broken):
        tab.page.get_by_role("link", name="Back to the form").click()
    else:
        tab.page.goto(f"{tab.site}{page}")
    expect(tab.page.get_by_text(BACK)).to_be_visible()
    expect(tab.page.get_by_text(UNSURE)).to_be_visible()
    assert (typed_into(at), checked_in(at)) == before
    # Once only; the page does not restore a form that the server has judged.
    assert tab.page.evaluate("sessionStorage.getItem('kant-typed')") is None
    at.locator("button[type=submit].btn-main").first.click()
    tab.page.wait_for_load_state()
    tab.open("/jobs/")
    tab.open(page)
    expect(tab.page.get_by_text(BACK)).to_have_count(0)


@pytest.mark.parametrize("again", [broken, broken_late])
def test_a_text_comes_back_though_drawing_it_again_fails_too(new_tab, again):
    tab = new_tab()
    tab.allowed = {422, 500, 503}
    tab.sign_in("erin")
    tab.open("/jobs/new/")
    tab.page.get_by_role("button", name="YAML", exact=True).click()
    text = tab.page.get_by_label("The job as YAML")
    text.fill("name: [half")
    send(tab, tab.page.get_by_role("button", name="Submit job"), busy)
    back = tab.page.get_by_role("link", name="Back to the form")
    send(tab, back, again)
    back.click()
    expect(text).to_have_value("name: [half")
    expect(tab.page.get_by_text(BACK)).to_be_visible()
    assert tab.page.evaluate("sessionStorage.getItem('kant-typed')") is None


def test_a_check_that_follows_the_form_is_not_taken_for_it(new_tab):
    """The check is about fields that were typed just before the form was sent."""
    tab = new_tab()
    tab.allowed = {422, 500}
    tab.sign_in("erin")
    tab.open("/jobs/new/")
    name = tab.page.locator("#id_name")
    name.fill("typed")
    tab.page.evaluate(
        """() => {
          const [form, name] = ["job-form", "id_name"].map((id) => document.getElementById(id));
          const type = () => name.dispatchEvent(new Event("input", {bubbles: true}));
          form.addEventListener("submit", () => setTimeout(type));
        }"""
    )
    held = []
    fail_next_post(tab, held.append)
    with tab.page.expect_response(is_numbered_check):
        tab.page.get_by_role("button", name="Submit job").click(no_wait_after=True)
    (route,) = held
    broken(route)
    tab.page.get_by_role("link", name="Back to the form").click()
    expect(tab.page.get_by_text(BACK)).to_be_visible()
    expect(name).to_have_value("typed")


def is_numbered_check(response):
    request = response.request
    return request.url.endswith("/preview/") and "arrival" in (request.post_data or "")


def test_a_button_of_which_no_answer_came_is_told(new_tab):
    tab = new_tab()
    tab.allowed = {405}
    tab.sign_in("vera")
    tab.open(f"/webhooks/{story.HOOK}/")
    send(tab, tab.page.get_by_role("button", name="Send a test"), dropped)
    tab.open(f"/webhooks/{story.HOOK}/")
    expect(tab.page.get_by_text(f"{UNSURE} Look whether it was done")).to_be_visible()
    tab.open(f"/webhooks/{story.HOOK}/")
    expect(tab.page.get_by_text(UNSURE)).to_have_count(0)


@pytest.mark.parametrize("fault", some(FAILURES))
def test_quotas_that_were_not_saved_are_in_their_cells_with_reason_and_times(new_tab, fault):
    tab = new_tab()
    tab.allowed = {500, 502, 503}
    tab.page.on("dialog", lambda dialog: dialog.accept())
    tab.sign_in("vera")
    tab.open("/quotas/")
    label = re.compile("^vision H200 guaranteed GPUs")
    cell, reason = tab.page.get_by_label(label), tab.page.get_by_label("Reason")
    starts = tab.page.get_by_label("From, UTC")
    tab.page.get_by_text("Apply later, or only for a while").click()
    starts.fill("2040-01-31T18:00")
    reason.fill("Season")
    before = cell.input_value()
    cell.fill(f"{before} shared lend 3")
    # No check has sent the last cell to the server yet, and none will.
    send(tab, tab.page.get_by_role("button", name="Save changes"), fault)
    tab.open("/quotas/")
    expect(tab.page.get_by_text("Your earlier edits are back")).to_be_visible()
    expect(cell).to_have_value(f"{before} shared lend 3")
    expect(reason).to_have_value("Season")
    expect(starts).to_have_value("2040-01-31T18:00")
    # An applied value does not return as an edit, though its cell now shows an older one.
    starts.fill("")
    for text in (f"{before} shared lend 3", f"{before} shared lend any"):
        reason.fill("Season")
        cell.fill(text)
        tab.page.get_by_role("button", name="Save changes").click()
        tab.page.get_by_text("1 quota changed.").wait_for()
        expect(cell).to_have_value(before)
        expect(reason).to_have_value("")
        expect(tab.page.get_by_text("Your earlier edits are back")).to_be_hidden()
        assert tab.page.evaluate("document.querySelector('[data-unsent]')") is None


def test_the_page_that_confirms_a_policy_comes_back_as_its_form(new_tab):
    tab = fresh(new_tab, "operator")
    tab.open("/policies/demo/")
    tab.page.get_by_label("Max attempts").fill("7")
    tab.page.get_by_role("button", name="Look at the change").click()
    tab.page.get_by_label("Reason").fill("Typed at night")
    end_session(tab)
    tab.page.get_by_role("button", name="Save the change").click()
    tab.page.locator("#id_username").wait_for()
    sign_in(tab, "operator")
    expect(tab.page.get_by_text(BACK)).to_be_visible()
    expect(tab.page.get_by_label("Max attempts")).to_have_value("7")
    tab.page.get_by_role("button", name="Look at the change").click()
    expect(tab.page.get_by_label("Reason")).to_have_value("Typed at night")


def test_pod_sets_and_volumes_of_a_job_come_back(new_tab):
    tab = fresh(new_tab, "erin")
    tab.open("/jobs/new/")
    tab.page.get_by_role("button", name="Add pod set").click()
    tab.page.locator("[name=sets-1-image]").fill("host/second:1")
    tab.page.locator("details.more").last.locator("summary").click()
    tab.page.locator("[name=sets-1-volumes-0-mount_path]").fill("/data")
    end_session(tab)
    tab.page.get_by_role("button", name="Submit job").click()
    tab.page.locator("#id_username").wait_for()
    sign_in(tab, "erin")
    expect(tab.page.get_by_text(BACK)).to_be_visible()
    expect(tab.page.locator("[name=sets-1-image]")).to_have_value("host/second:1")
    expect(tab.page.locator("[name=sets-1-volumes-0-mount_path]")).to_have_value("/data")


def test_what_was_typed_and_not_sent_comes_back_after_a_reload(new_tab):
    tab = fresh(new_tab, "vera")
    tab.open("/webhooks/new/")
    field = tab.page.locator("main form[data-once]").locator(FIELDS).first
    field.fill("typed")
    end_session(tab)
    tab.page.reload()
    tab.page.locator("#id_username").wait_for()
    sign_in(tab, "vera")
    expect(tab.page.get_by_text(BACK)).to_be_visible()
    expect(field).to_have_value("typed")


def test_a_button_that_came_too_late_is_told(new_tab):
    tab = fresh(new_tab, "vera")
    tab.open(f"/webhooks/{story.HOOK}/")
    end_session(tab)
    tab.page.get_by_role("button", name="Send a test").click()
    tab.page.locator("#id_username").wait_for()
    sign_in(tab, "vera")
    expect(tab.page.get_by_text(UNDONE)).to_be_visible()


def test_passwords_and_tokens_are_not_kept_and_nobody_else_gets_the_rest(new_tab):
    tab = fresh(new_tab, "erin")
    tab.open("/jobs/new/")
    tab.page.evaluate(
        """() => {
          const form = document.getElementById("job-form");
          for (const [name, type] of [["word", "password"], ["api_token", "text"], ["x", "text"]]) {
            const field = document.createElement("input");
            form.append(Object.assign(field, {name, type, value: "S3cr3tX"}));
          }
        }"""
    )
    end_session(tab)
    tab.page.get_by_role("button", name="Submit job").click()
    tab.page.locator("#id_username").wait_for()
    kept = json.loads(tab.page.evaluate("sessionStorage.getItem('kant-typed')"))
    assert [name for name, value in kept["fields"] if value == "S3cr3tX"] == ["x"]
    assert "csrfmiddlewaretoken" not in dict(kept["fields"])
    sign_in(tab, "vera")
    expect(tab.page.get_by_role("button", name="Submit job")).to_be_visible()
    expect(tab.page.get_by_text(re.compile("Your sign-in ended"))).to_have_count(0)
    assert tab.page.evaluate("sessionStorage.getItem('kant-typed')") is None
