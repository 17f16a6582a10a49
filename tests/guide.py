"""The pages for operators, whose examples and tables are tried."""

from pathlib import Path

PAGES = Path(__file__).parent.parent / "docs" / "operating"


def guide_text() -> str:
    """All of them, one after the other."""
    return "\n".join(page.read_text() for page in sorted(PAGES.glob("*.md")))
