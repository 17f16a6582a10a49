"""Links between documentation pages lead somewhere, and the table of reasons is complete."""

import re
from collections.abc import Iterator
from pathlib import Path

from scheduling.engine.verdict import NEVER, Reason

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "scheduling").rglob("*.md")]
)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as GitHub spells them, and its own ids."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    spelled = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in spelled} | set(
        re.findall(r'<a id="([^"]+)"', text)
    )


def _broken_links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        if not linked.exists() or (anchor and anchor not in _anchors(linked)):
            yield f"{page.relative_to(ROOT)}: {target}"


def test_every_link_leads_to_a_page_and_a_heading_that_exist() -> None:
    assert [link for page in PAGES for link in _broken_links(page)] == []


def test_the_page_of_reasons_explains_each_one_those_that_never_end_first() -> None:
    page = (ROOT / "docs" / "queueing" / "reasons.md").read_text()
    explained = re.findall(r"^\| `(\w+)` \|", page, re.M)
    assert sorted(explained) == sorted(Reason)
    assert set(explained[: len(NEVER)]) == NEVER
