"""Let one process compile a checkout's test modules for pytest, instead of every process of a run.
In a new checkout, compiling takes half a minute of CPU."""

import fcntl
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
# A run may leave modules out, which stay uncompiled, and a single edited module is not worth
# waiting for.
FEW = 1 / 10


@contextmanager
def by_one(paths: Iterable[str]) -> Iterator[None]:
    """Import test modules from these paths inside this context. If most are still uncompiled, one
    process compiles them while others of the same checkout wait."""
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
    """Whether more than a few modules must be compiled."""
    if sys.dont_write_bytecode:
        return False
    return sum(not _compiled(each) for each in modules) > FEW * len(modules)


def _compiled(module: Path) -> bool:
    """Whether pytest has compiled the current version of the module."""
    usual = Path(importlib.util.cache_from_source(str(module)))
    kept = usual.with_name(f"{usual.stem}-pytest-{pytest.__version__}.pyc")
    return kept.exists() and kept.stat().st_mtime >= module.stat().st_mtime
