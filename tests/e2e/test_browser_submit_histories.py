"""Random histories of the submit form: fields are typed quickly and suggestions applied while
the previews beside it are late, reordered, failed or lost."""

import json
from random import Random

import pytest
from playwright.sync_api import expect

from tests.cases import paired, seeds
from tests.e2e.answers import Answers

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
STEPS = 10
FIELDS = {
    "name": ("train", "a", "two words", "sweep-7"),
    "priority": ("0", "5", "-3", "12"),
    "declared_min": ("", "30", "90"),
    "sets-0-count": ("1", "9", "40", ""),
    "sets-0-gpus": ("1", "8", "0.5", "0"),
    "sets-0-gpu_type": ("H100", "H200"),
}
# The preview of the newest input, recognised by the command that would submit it.
SAID = "() => document.getElementById('curl')?.textContent ?? ''"
OPEN = """() => document.querySelector("#preview").ariaBusy !== "true"
  && !document.querySelector("[data-not-checked]:not([hidden])")"""
APPLY = """() => {
  const button = document.querySelector("#preview [data-apply]");
  if (!button) return null;
  button.click();
  return {...button.dataset};
}"""


class Form:
    def __init__(self, page, seed):
        self.page, self.random = page, Random(seed)
        self.answers = Answers(page, "**/preview/**", self.random)
        self.typed = {}

    def field(self, name):
        return self.page.locator(f'#job-form [name="{name}"]')

    def write(self):
        name = self.random.choice(sorted(FIELDS))
        text = self.random.choice(FIELDS[name])
        self.answers.told.append(f"{name}: {text}")
        self.typed[name] = text
        if name.endswith("gpu_type"):
            self.field(name).select_option(text)
            return
        self.field(name).focus()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.press("Delete")
        self.page.keyboard.type(text, delay=self.random.choice((0, 15, 120)))
        if self.random.random() < 0.5:
            self.page.keyboard.press("Tab")

    def apply(self):
        """The button applies what it says when pressed, whatever was typed since."""
        data = self.page.evaluate(APPLY)
        self.answers.told.append(f"apply {data}")
        for name, value in (data or {}).items():
            has_gpus = self.field("sets-0-gpus").input_value() != "0"
            if name != "apply" and (name != "gpu_type" or has_gpus):
                self.typed[f"sets-0-{name}"] = value

    def pause(self):
        self.page.wait_for_timeout(self.random.choice((50, 500, 1200)))

    def shows_all(self):
        for name, text in self.typed.items():
            expect(self.field(name), "\n".join(self.answers.told)).to_have_value(text)

    def says_what_is_typed(self):
        """The preview matches the form, or the page says that it does not yet."""
        is_open, said, fields = self.page.evaluate(
            f"""() => [({OPEN})(), ({SAID})(),
              Object.fromEntries(new FormData(document.getElementById("job-form")))]"""
        )
        if is_open and said:
            assert sent_by(said) == asked_of(fields), "\n".join(self.answers.told)


def sent_by(command):
    body = json.loads(command[command.index("{") : command.rindex("}") + 1])
    (pods,) = body["pod_sets"]
    return (
        body["name"], body.get("priority", 0), body.get("declared_s") or 0,
        pods.get("count", 1), pods.get("gpus", 0) * pods.get("gpu_milli", 1000) / 1000,
    )  # fmt: skip


def asked_of(fields):
    return (
        fields["name"], int(fields["priority"] or 0), 60 * float(fields["declared_min"] or 0),
        int(fields["sets-0-count"]), float(fields["sets-0-gpus"]),
    )  # fmt: skip


@pytest.fixture
def form(new_tab):
    tab = new_tab()
    tab.allowed = {401, 500, 503}
    tab.sign_in("erin")
    yield tab, tab.page
    # The console reports the failures that the test caused.
    tab.faults = [one for one in tab.faults if not one.startswith("console: ")]


@pytest.mark.parametrize("seed", seeds(40, usual=3))
def test_what_is_typed_stays_and_what_is_said_of_it_is_of_it(form, seed):
    tab, page = form
    played = Form(page, seed)
    tab.open("/jobs/new/")
    does = [played.write] * 6 + [played.apply, played.pause]
    for _ in range(STEPS):
        played.random.choice(does)()
        played.shows_all()
        played.says_what_is_typed()
    for name, text in {"name": "last", "sets-0-count": "3", "priority": "2"}.items():
        played.field(name).fill(text)
        played.typed[name] = text
    # Nobody types any more: the page asks again by itself after a failure.
    played.answers.honest()
    page.wait_for_function(f"{OPEN}", timeout=60_000)
    played.shows_all()
    played.says_what_is_typed()
    expect(page.locator("#preview")).not_to_contain_text("Checking…")


@pytest.mark.parametrize(
    ("answer", "shown"),
    paired(
        [(503, "tries again"), (0, "tries again"), (401, "sign-in has ended")], ["Form", "YAML"]
    ),
)
def test_a_question_without_an_answer_is_told_and_asked_again(form, answer, shown):
    status, told = answer
    tab, page = form
    tab.open("/jobs/new/")
    if shown != "Form":
        page.get_by_role("button", name=shown, exact=True).click()
    checked = page.locator("#preview:not([aria-busy=true])")
    expect(checked).not_to_contain_text("Checking…")
    fail = {
        0: lambda route: route.abort("connectionreset"),
        401: lambda route: route.fulfill(status=401),
        503: lambda route: route.fulfill(status=503),
    }
    page.route("**/preview/**", fail[status])
    page.locator({"Form": "#id_name", "YAML": "#text"}[shown]).press_sequentially("x")
    notice = page.locator("[data-not-checked]:visible")
    expect(notice).to_contain_text(told)
    expect(page.locator("#preview")).to_have_attribute("aria-busy", "true")
    if status == 503:
        tab.check_looks()
    page.unroute_all(behavior="wait")
    expect(notice).to_have_count(0)
    expect(checked).to_have_count(1)
