"""A reader finds a class in one place, and a folder at a glance."""

from collections import Counter
from pathlib import Path

from tests.class_names import PRODUCT, ROOT, twice

MOST_FILES = 22


def test_a_class_name_stands_in_one_file() -> None:
    assert twice() == {}


def test_no_folder_has_more_files_than_one_looks_over() -> None:
    files = [path for part in PRODUCT for path in (ROOT / part).rglob("*.py")]
    counted = Counter(path.parent for path in files if "migrations" not in path.parts)
    assert counted[Path(ROOT / "scheduling" / "engine" / "queue")] > 1
    crowded = {
        folder.relative_to(ROOT).as_posix(): count
        for folder, count in counted.items()
        if count > MOST_FILES
    }
    assert crowded == {}, "put a theme of it into a folder of its own"
