"""Each class is defined in one place, and folders stay small enough to grasp at a glance."""

from collections import Counter
from pathlib import Path

import pytest

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


DJANGOS = {"__init__", "admin", "apps", "forms", "models", "tasks", "urls", "views"}
MOST_LOOSE = 10


@pytest.mark.parametrize("app", sorted(set(PRODUCT) - {"kant"}))
def test_few_modules_lie_beside_the_folders_of_an_app(app) -> None:
    loose = {path.stem for path in (ROOT / app).glob("*.py")} - DJANGOS
    assert len(loose) <= MOST_LOOSE, sorted(loose)


@pytest.mark.parametrize(("field", "most"), [("checkpoint_notice_s", 6), ("node_affinity", 8)])
def test_a_field_of_a_job_is_named_in_few_files(field, most) -> None:
    """Everything about one field is derived from its definition (docs/add-a-job-field.md)."""
    files = [path for part in PRODUCT for path in (ROOT / part).rglob("*.py")]
    named = [p for p in files if "migrations" not in p.parts and field in p.read_text()]
    assert ROOT / "scheduling" / "job_fields" / "definition.py" in named
    assert len(named) <= most, [path.relative_to(ROOT).as_posix() for path in named]
