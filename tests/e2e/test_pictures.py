"""The pictures used in README and docs are the ones that `make screenshots` takes."""

import re

from tests.e2e.pictures import DOCS, IMAGES, ROOT

MOST_BYTES = 500_000


def test_every_picture_is_made_and_every_one_that_is_made_is_shown():
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        name for text in texts for name in re.findall(r"\(\S*images/(\S+)\.png\)", text.read_text())
    }
    there = {path.stem for path in IMAGES.iterdir()}
    assert shown == there == set(DOCS)


def test_pictures_are_small_and_of_the_width_of_a_page():
    for name in DOCS:
        data = (IMAGES / f"{name}.png").read_bytes()
        assert len(data) <= MOST_BYTES
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(data[16:20]) == 1440
