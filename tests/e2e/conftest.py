"""A browser, a demo site, and a tab that fails its test for faults that a user would not see."""

import sqlite3
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.cases import NIGHTLY
from tests.e2e import kept_rows, scene
from tests.e2e.site import CHROMIUM, chromium, served
from tests.requirements import missing

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
WCAG = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"]
CONTRAST = "color-contrast"
WIDE, NARROW = 1440, 390
SESSIONS: dict[tuple[str, str], Any] = {}
# For events that will certainly come: only a failure waits this long, however busy the machine.
WITHIN_MS = 60_000
expect.set_options(timeout=WITHIN_MS)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args):
    path = chromium()
    if path is None:
        missing("chromium", "install the Debian package chromium-headless-shell")
    return {
        **browser_type_launch_args,
        "executable_path": path,
        "args": [*CHROMIUM],
    }


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Iterator[str]:
    """The address of a site with a played scene, shared by the tests of a run."""
    with served(tmp_path_factory.mktemp("site")) as address:
        yield address


@pytest.fixture(scope="session")
def address(site, tmp_path_factory):
    """Return the path of a page. Jobs are given by name and replays by state, because their ids
    are random."""
    database = next(tmp_path_factory.getbasetemp().glob("site*/site.sqlite3"))

    def path(page: str) -> str:
        kind, _, name = page.partition(" ")
        if not name:
            return page
        of_replays = kind in ("REPLAY", "AGAIN", "TRIED")
        rows = "metrics_replay where state" if of_replays else "scheduling_job where name"
        with sqlite3.connect(database) as connection:
            row = connection.execute(f"select id from {rows} = ?", [name]).fetchone()
        found = uuid.UUID(row[0])
        return {
            "JOB": f"/jobs/{found}/",
            "LOGS": f"/jobs/{found}/logs/",
            "LIKE": f"/jobs/new/?like={found}",
            "REPLAY": f"/replays/{found}/",
            "AGAIN": f"/replays/new/?like={found}",
            "TRIED": f"/policies/demo/check/?replay={found}",
        }[kind]

    return path


@pytest.fixture(autouse=True)
def _no_drafts(request: pytest.FixtureRequest, tmp_path_factory) -> Iterator[None]:
    """Delete drafts, so that quotas typed on the shared site do not show up in the next test."""
    yield
    if "site" not in request.fixturenames:
        return
    database = next(tmp_path_factory.getbasetemp().glob("site*/site.sqlite3"))
    with sqlite3.connect(database, timeout=30) as connection:
        connection.execute("delete from tenants_draftcell")


@dataclass
class Tab:
    """A page of the site, with a record of everything that went wrong behind it."""

    page: Page
    site: str
    faults: list[str] = field(default_factory=list)
    allowed: set[int] = field(default_factory=set)  # HTTP errors that the test provokes
    also: set[str] = field(default_factory=set)  # other sites that it links to

    def __post_init__(self) -> None:
        self.page.set_default_timeout(WITHIN_MS)
        self.page.on("pageerror", lambda error: self.faults.append(f"page error: {error}"))
        self.page.on("console", self._hear)
        self.page.on("request", self._watch)

    def _hear(self, message: Any) -> None:
        text = message.text
        provoked = any(f"status of {code}" in text for code in self.allowed)
        if message.type == "error" and not provoked:
            self.faults.append(f"console: {text}")
        if "Content Security Policy" in text:
            self.faults.append(f"policy: {text}")

    def _watch(self, request: Any) -> None:
        own = (f"{self.site}/", "data:", "blob:", *self.also)
        if not request.url.startswith(own):
            self.faults.append(f"request outside: {request.url}")

    def sign_in(self, username: str, password: str = scene.PASSWORD) -> None:
        """Sign in through the form the first time; later tabs of the same user reuse the
        session."""
        if (self.site, username) in SESSIONS:
            self.page.context.add_cookies(SESSIONS[self.site, username])
            return
        self.page.goto(f"{self.site}/login/")
        self.page.fill("#id_username", username)
        self.page.fill("#id_password", password)
        self.page.press("#id_password", "Enter")
        self.page.wait_for_url(lambda url: "/login/" not in url)
        SESSIONS[self.site, username] = self.page.context.cookies()

    def open(self, path: str) -> None:
        self.page.goto(f"{self.site}{path}")
        # Charts are part of the page; a chart that cannot be drawn shows a message instead.
        expect(self.page.locator("[data-chart]:not(.js-plotly-plot)")).to_have_count(0)

    def axe(self, *, only: str = "", but: str = "") -> list[str]:
        """Return the accessibility violations of the page as it is. Polling pauses meanwhile, as
        on hidden pages. `only` and `but` name a rule."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        asked: dict[str, Any] = {"runOnly": WCAG, "resultTypes": ["violations"]}
        if only:
            asked["runOnly"] = {"type": "rule", "values": [only]}
        if but:
            asked["rules"] = {but: {"enabled": False}}
        found = self.page.evaluate(
            """async (asked) => {
              Object.defineProperty(document, "hidden", {get: () => true, configurable: true});
              const found = await axe.run(document, asked);
              delete document.hidden;
              return found.violations;
            }""",
            asked,
        )
        return [
            f"{v['id']}: {n['target']} {n['failureSummary']}" for v in found for n in v["nodes"]
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window, once its charts are
        resized."""
        return self.page.evaluate(
            """async () => {
              const root = document.documentElement;
              const wider = () => root.scrollWidth - root.clientWidth;
              for (let looks = 0; wider() > 0 && looks < 100; looks++) {
                await new Promise((again) => setTimeout(again, 100));
              }
              return wider();
            }"""
        )

    def check_looks(self) -> None:
        """Check in both themes and in narrow windows that the page is accessible and no wider
        than its window. A theme changes only colours, which a narrow window keeps. At night try
        every combination; by day either the usual look or dark and narrow, always the same for
        one title."""
        looks: list[tuple[str, int, dict[str, str]]] = [
            ("light", WIDE, {}),
            ("dark", WIDE, {"only": CONTRAST}),
            ("dark", NARROW, {"but": CONTRAST}),
        ]
        by_day = zlib.crc32(self.page.title().encode()) % 2
        for at, (theme, width, rules) in enumerate(looks if NIGHTLY else [looks[0], looks[2]]):
            self.page.emulate_media(color_scheme=theme)
            self.page.set_viewport_size({"width": width, "height": 900})
            self.page.locator(f"html[data-bs-theme={theme}]").wait_for()
            if NIGHTLY:
                assert self.axe(**rules) == [], theme
            elif at == by_day:
                assert self.axe() == [], theme
            assert self.overflow() == 0, f"wider than a window of {width}"

    def sideways(self) -> list[str]:
        """Return the tables that need sideways scrolling. The data tables of charts are exempt,
        since the charts show the same."""
        return self.page.evaluate(
            "[...document.querySelectorAll('.scroll')]"
            ".filter(e => !e.closest('.chart-data') && e.scrollWidth > e.clientWidth)"
            ".map(e => e.getAttribute('aria-label'))"
        )


@pytest.fixture
def new_tab(browser: Browser, site: str) -> Iterator[Any]:
    """Open tabs; none of them may have a fault when the test ends."""
    tabs: list[tuple[BrowserContext, Tab]] = []

    def make(width: int = WIDE, theme: str = "light", at: str = site) -> Tab:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
        )
        tabs.append((context, Tab(context.new_page(), at)))
        return tabs[-1][1]

    yield make
    for context, _ in tabs:
        context.close()
    assert [fault for _, tab in tabs for fault in tab.faults] == []


@pytest.fixture
def played(db) -> None:
    """The scene in the database of an ordinary test, before any page has shown it."""
    cache.clear()
    kept_rows.write(scene.play)


@pytest.fixture
def as_user(client, played):
    """The test client, signed in as a person of the scene."""
    from tenants.models import User

    def sign_in(username: str):
        client.force_login(User.objects.get(username=username))
        return client

    return sign_in
