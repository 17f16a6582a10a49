"""Take the pictures of README and docs, and of the main pages of the played scene in both themes,
wide and narrow: `make screenshots`.

The scene has one seed, and ages are the same in each run; only the times below the chart of
allocation depend on the day. DOCS lists the pictures of the docs. The others serve to compare pages
before and after a change of their look, and are not kept.
"""

import re
import sqlite3
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.e2e.site import ALONE, CHROMIUM, PASSWORD, ROOT, chromium, served

IMAGES = ROOT / "docs" / "images"
# Not below test-results, which browser tests empty.
LOOKED_AT = ROOT / "build" / "screenshots"
THEMES, WIDTHS, HEIGHT = ("light", "dark"), (1440, 390), 900


class Picture(NamedTuple):
    """A page, or an element of it, as one person sees it; "" means the whole page. `{job}` in
    the path stands for the id of the job of that name."""

    user: str
    path: str
    job: str = ""
    down_to: str = ""


DOCS = {"operations": Picture("operator", "/ops/", down_to="figure:has(#t-placement)")}
PAGES = {
    "operations": Picture("operator", "/ops/"),
    "overview": Picture("erin", "/"),
    "jobs": Picture("vera", "/jobs/"),
    "job-that-waits": Picture("erin", "/jobs/{job}/", job="wait-000"),
    "job-that-runs": Picture("operator", "/jobs/{job}/", job="train-000"),
    "submit": Picture("erin", "/jobs/new/"),
    "quotas": Picture("vera", "/quotas/"),
}


def main() -> int:
    path = chromium()
    if path is None:
        print(
            "Chromium is not there: install the Debian package chromium-headless-shell.",
            file=sys.stderr,
        )
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="kant-pictures-") as directory,
        served(Path(directory), ALONE) as site,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=[*CHROMIUM])
        database = Path(directory) / "site.sqlite3"
        for name, picture in DOCS.items():
            for page in shown(browser, site, database, picture, THEMES[:1], WIDTHS[:1]):
                take(page, IMAGES / f"{name}.png", picture.down_to)
        for name, picture in PAGES.items():
            for page in shown(browser, site, database, picture, THEMES, WIDTHS):
                theme = page.locator("html").get_attribute("data-bs-theme")
                assert page.viewport_size is not None
                width = page.viewport_size["width"]
                take(page, LOOKED_AT / f"{name}-{theme}-{width}.png")
        browser.close()
    return 0


def shown(
    browser: Browser,
    site: str,
    database: Path,
    picture: Picture,
    themes: tuple[str, ...],
    widths: tuple[int, ...],
) -> Iterator[Page]:
    """Yield the page in each theme and width, once all its later parts have loaded."""
    address = site + picture.path.format(job=_id_of(database, picture.job))
    for theme in themes:
        for width in widths:
            context = browser.new_context(
                viewport={"width": width, "height": HEIGHT},
                color_scheme="dark" if theme == "dark" else "light",
                reduced_motion="reduce",
            )
            page = _signed_in(context, site, picture.user)
            page.goto(address)
            page.locator(f"html[data-bs-theme={theme}]").wait_for()
            expect(page.locator("[data-chart]:not(.js-plotly-plot)")).to_have_count(0)
            for comes in ("being worked out…", "Checking…", "Working out when"):
                expect(page.get_by_text(comes).filter(visible=True)).to_have_count(0)
            yield page
            context.close()


def take(page: Page, to: Path, down_to: str = "") -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    clip = None
    if down_to:
        box = page.locator(down_to).bounding_box()
        assert box is not None
        width = page.evaluate("document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": box["y"] + box["height"] + 16}
    page.screenshot(path=to, full_page=True, clip=clip)  # type: ignore[arg-type]
    print(f"{to.relative_to(ROOT)}: {to.stat().st_size / 1000:,.0f} kB")


def _signed_in(context: BrowserContext, site: str, user: str) -> Page:
    page = context.new_page()
    page.goto(f"{site}/login/")
    page.fill("#id_username", user)
    page.fill("#id_password", PASSWORD)
    page.press("#id_password", "Enter")
    page.wait_for_url(re.compile(r"^(?!.*/login/)"))
    return page


def _id_of(database: Path, job: str) -> str:
    if not job:
        return ""
    with sqlite3.connect(database) as connection:
        row = connection.execute("select id from scheduling_job where name = ?", [job]).fetchone()
    return str(uuid.UUID(row[0]))


if __name__ == "__main__":
    sys.exit(main())
