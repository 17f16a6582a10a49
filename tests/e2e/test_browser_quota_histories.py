"""Random histories of the quota matrix: people type quickly while checks are late, reordered,
failed, lost or duplicated, sessions end, and others change the same quotas."""

import re
from random import Random

import pytest
from playwright.sync_api import expect

from tests.cases import seeds
from tests.e2e.answers import Answers
from tests.e2e.test_browser_quota_edits import KEYS, PASTE

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
THEIRS = ("vision H100", "nlp H200")  # the operator changes these meanwhile
STEPS = 14
MOVES = ("Tab", "Shift+Tab", "Enter", "ArrowDown", "ArrowUp")


class History:
    """One of vera's sessions. `typed` says what each cell that she wrote into must show from now
    on."""

    def __init__(self, tab, other, seed):
        self.random = Random(seed)
        self.tab, self.page, self.other = tab, tab.page, other.page
        self.names, self.typed, self.began = {}, {}, {}
        self.reason = ""
        self.page.on("dialog", lambda dialog: dialog.accept())
        self.answers = Answers(self.page, "**/quotas/check/**", self.random)
        self.told = self.answers.told

    def open(self):
        self.tab.open("/quotas/")
        for key in KEYS:
            cell = self.page.get_by_label(re.compile(rf"^{key} guaranteed GPUs"))
            self.names[key] = cell.get_attribute("name")
            self.began[key] = cell.input_value()

    def cell(self, key):
        return self.page.locator(f'[name="{self.names[key]}"]')

    # --- what people do ---
    def write(self):
        key = self.random.choice(KEYS)
        self.cell(key).focus()
        for _ in range(self.random.randint(1, 4)):
            text = self.random.choice(
                (str(self.random.randint(1, 3000)), "7.5", "junk", "9 isolated")
            )
            if key not in THEIRS and self.random.random() < 0.15:
                text = self.began[key]
            self.page.keyboard.press("Control+A")
            self.page.keyboard.type(text, delay=self.random.choice((0, 15, 70)))
            self.typed[key] = text
            move = self.random.choice((*MOVES, None))
            self.told.append(f"{key}: {text}, {move}")
            if move is None:
                self.page.locator("h1").click()
                return
            self.page.keyboard.press(move)
            name = self.page.evaluate("document.activeElement.name ?? ''")
            key = next((one for one, of in self.names.items() if of == name), None)
            if key is None:
                return

    def paste(self):
        rows = [[str(self.random.randint(1, 300)) for _ in range(2)] for _ in range(2)]
        text = "\n".join("\t".join(row) for row in rows)
        keys = [
            f"{tenant} {model}" for tenant in ("vision", "speech") for model in ("H100", "H200")
        ]
        # In table order.
        left, right = sorted(("H100", "H200"), key=lambda one: self.box(f"vision {one}")["x"])
        first, second = sorted(("vision", "speech"), key=lambda one: self.box(f"{one} H100")["y"])
        neighbours = self.page.evaluate(
            """([a, b, c]) => {
              const at = (name) => document.querySelector(`[name="${name}"]`).closest("td");
              return at(a).nextElementSibling === at(b)
                && at(a).parentElement.nextElementSibling === at(c).parentElement;
            }""",
            [self.names[k] for k in (f"{first} {left}", f"{first} {right}", f"{second} {left}")],
        )
        if not neighbours:
            return
        self.cell(f"{first} {left}").evaluate(PASTE, text)
        for tenant, row in zip((first, second), rows, strict=True):
            for model, one in zip((left, right), row, strict=True):
                assert f"{tenant} {model}" in keys
                self.typed[f"{tenant} {model}"] = one
        self.told.append(f"paste {rows}")

    def box(self, key):
        return self.cell(key).bounding_box()

    def say_why(self):
        self.page.get_by_label("Reason").focus()
        self.page.keyboard.press("Control+A")
        self.reason = f"Season {self.random.randint(1, 99)}"
        self.page.keyboard.type(self.reason)
        self.page.keyboard.press("Tab")
        self.told.append(self.reason)

    def change_theirs(self):
        """Change a quota as another person, so that pages hear of it by the feed."""
        key = self.random.choice(THEIRS)
        change_quota(self.other, key, self.random.randint(1, 40))
        self.told.append(f"theirs {key}")

    def come_back(self):
        self.told.append("reload")
        self.page.reload()
        self.page.wait_for_load_state()
        self.shows_all()

    def expire(self):
        self.told.append("expire")
        self.session = self.page.context.cookies()
        self.page.context.clear_cookies(name="sessionid")
        self.write()
        self.page.wait_for_timeout(self.random.choice((0, 300, 800)))
        self.page.context.add_cookies(self.session)
        # Sign in again; the page may have gone to the form by itself.
        if self.random.random() < 0.5 or "/login/" in self.page.url:
            self.page.goto(f"{self.tab.site}/quotas/")

    # --- what must hold ---
    def shows_all(self):
        for key, text in self.typed.items():
            expect(self.cell(key), "\n".join(self.told)).to_have_value(text)

    def play(self):
        does = [self.write] * 8 + [self.paste, self.say_why, self.change_theirs, self.come_back]
        does.append(self.expire)
        for _ in range(STEPS):
            self.random.choice(does)()
            if "/login/" in self.page.url:
                self.page.goto(f"{self.tab.site}/quotas/")
            self.shows_all()
        # After her sign-in ended she goes on by typing; a busy server is asked again.
        self.write()
        self.say_why()
        expect(self.page.locator("form[data-unsent]")).to_have_count(0)
        self.shows_all()
        expect(self.page.get_by_label("Reason")).to_have_value(self.reason)
        self.answers.honest()
        draft = self.page.request.get(f"{self.tab.site}/api/v1/quota-drafts/vera").json()
        kept = {f"{one['tenant']} {one['gpu_type']}": one["typed"] for one in draft["cells"]}
        edits = {key: text for key, text in self.typed.items() if text != self.began[key]}
        assert kept == edits, "\n".join(self.told)
        assert draft["reason"] == self.reason


def change_quota(page, key, gpus):
    tenant, model = key.split()
    site = page.url.split("/quotas")[0]
    at = f"{site}/api/v1/quotas/{tenant}/{model}"
    now = page.request.get(at)
    token = page.evaluate("document.querySelector('[name=csrfmiddlewaretoken]').value")
    changed = page.request.put(
        at,
        data={"guaranteed": gpus, "reason": "Theirs"},
        headers={"X-CSRFToken": token, "If-Match": now.headers["etag"], "Referer": page.url},
    )
    assert changed.ok, changed.text()
    return now.json()["guaranteed"]


@pytest.mark.parametrize("seed", seeds(60, usual=12))
def test_what_is_typed_is_in_its_cell_and_in_the_draft(new_tab, seed):
    tab, other = new_tab(), new_tab()
    tab.allowed = {401, 500, 503}
    other.sign_in("operator")
    other.open("/quotas/")
    tab.sign_in("vera")
    history = History(tab, other, seed)
    history.open()
    try:
        history.play()
    finally:
        for key in THEIRS:
            change_quota(other.page, key, float(history.began[key]))
    # The console reports the failures that the test caused.
    tab.faults = [one for one in tab.faults if not one.startswith("console: ")]
