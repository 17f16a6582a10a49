"""pytest compiles the modules of tests for itself: those of a new checkout for half a minute of
CPU, which each process of a run would spend beside the others."""

import fcntl
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
# What is left out of one run stays as it is, and one edited module is no reason to wait.
FEW = 1 / 10


@contextmanager
def by_one(paths: Iterable[str]) -> Iterator[None]:
    """Modules of tests at these paths are imported within it: where most are still to be compiled,
    by one process, while others of the same checkout wait and then find them compiled."""
    modules = [each for path in paths for each in _modules(Path(path.partition("::")[0]))]
    folder = os.open(TESTS, os.O_RDONLY)
    try:
        if _new(modules):
            fcntl.flock(folder, fcntl.LOCK_EX)
            if not _new(modules):
                fcntl.flock(folder, fcntl.LOCK_UN)
        yield
    finally:
        os.close(folder)


def _modules(path: Path) -> list[Path]:
    return [*path.rglob("test_*.py")] if path.is_dir() else [path]


def _new(modules: list[Path]) -> bool:
    """Whether more than a few have to be compiled."""
    if sys.dont_write_bytecode:
        return False
    return sum(not _compiled(each) for each in modules) > FEW * len(modules)


def _compiled(module: Path) -> bool:
    """Whether pytest has compiled it as it is now."""
    usual = Path(importlib.util.cache_from_source(str(module)))
    kept = usual.with_name(f"{usual.stem}-pytest-{pytest.__version__}.pyc")
    return kept.exists() and kept.stat().st_mtime >= module.stat().st_mtime
