"""Read the operator guide, so that tests can try its examples and tables."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PAGES = Path(__file__).parent.parent / "docs" / "operating"


def guide_text() -> str:
    """Return all pages, one after the other."""
    return "\n".join(page.read_text() for page in sorted(PAGES.glob("*.md")))


def guide_examples() -> Iterator[Any]:
    """Return the documents of all YAML blocks in the pages."""
    for block in re.findall(r"```yaml\n(.*?)```", guide_text(), re.S):
        yield from yaml.safe_load_all(block)
