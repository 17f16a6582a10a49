"""A single process compiles those test modules that are not compiled yet (tests/rewritten.py)."""

import fcntl
import importlib.util
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import rewritten

WITHIN_S = 60


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Twenty modules in a checkout of their own."""
    monkeypatch.setattr(rewritten, "TESTS", tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    found = [tmp_path / f"test_{number}.py" for number in range(20)]
    for each in found:
        each.write_text("")
    return found


def compiled(module):
    """Write what pytest leaves beside a module that it compiled."""
    usual = Path(importlib.util.cache_from_source(str(module)))
    usual.parent.mkdir(exist_ok=True)
    usual.with_name(f"{usual.stem}-pytest-{pytest.__version__}.pyc").touch()


@contextmanager
def held(folder):
    """Hold the lock like another process."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(file)


def test_who_waited_for_another_finds_them_compiled_and_keeps_nobody_waiting(modules, tmp_path):
    came, seen = threading.Event(), []

    def import_all():
        with rewritten.by_one([str(tmp_path)]), held(tmp_path):
            seen.append([rewritten._compiled(each) for each in modules])
        came.set()

    with held(tmp_path):
        waits = threading.Thread(target=import_all, daemon=True)
        waits.start()
        waits.join(0.2)
        assert not came.is_set()
        for each in modules:
            compiled(each)
    assert came.wait(WITHIN_S)
    assert seen == [[True] * len(modules)]


def test_the_first_keeps_others_waiting_until_it_is_done(modules, tmp_path):
    with (
        rewritten.by_one([f"{modules[0]}::test_a"]),
        pytest.raises(BlockingIOError),
        held(tmp_path),
    ):
        pass
    with held(tmp_path):
        pass


def test_nobody_waits_for_a_few(modules, tmp_path):
    for each in modules:
        compiled(each)
    later = modules[0].stat().st_mtime + 3600
    for each in modules[:2]:
        os.utime(each, (later, later))
    with held(tmp_path), rewritten.by_one([str(tmp_path)]):
        assert not rewritten._compiled(modules[0])
    os.utime(modules[2], (later, later))
    with (
        rewritten.by_one([str(tmp_path)]),
        pytest.raises(BlockingIOError),
        held(tmp_path),
    ):
        pass


def test_nobody_waits_where_nothing_is_kept(modules, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    with held(tmp_path), rewritten.by_one([str(tmp_path)]):
        pass


@pytest.mark.skipif(sys.dont_write_bytecode, reason="pytest keeps nothing here")
def test_it_knows_where_pytest_keeps_what_it_compiles():
    """pytest compiled this module for this test."""
    assert rewritten._compiled(Path(__file__))
