"""Each unreadable environment variable keeps Kant from starting, with one line of explanation."""

import ast
import os
import re
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.core.exceptions import ImproperlyConfigured

from kant import settings
from kant.variables import Variables
from tests.deploy.manifests import ROOT

SETTINGS = ROOT / "kant" / "settings.py"
UNREADABLE = {
    "switch": ["ture", "", "2", "yess", "wahr"],
    "whole": ["", "x", "1.5", "-1", "1_000", "٣", "1e3", "7 days", "99999999999"],
    "number": ["", "x", "1m", "1e3", "1,5", "nan", "inf", "-1", "٣", "1_0", "0x1", "."],
    "level": ["all", "2", "INFO WARNING"],
    "address": ["localhost:6379", "http://cache", "redis", "//cache"],
    "database": ["nonsense", "mysql://h/n", "postgres", "postgres://h:abc/n"],
}
READ = {
    "switch": [("TRUE", True), (" on ", True), ("0", False), ("No", False)],
    "whole": [("0", 0), (" 12 ", 12)],
    "number": [("0.25", 0.25), ("15", 15.0)],
    "level": [("warning", "WARNING"), ("", "")],
    "address": [("", ""), ("redis://:p@h/0", "redis://:p@h/0"), ("unix:///s", "unix:///s")],
    "names": [("", []), ("a, b,,c ", ["a", "b", "c"])],
    "text": [("$ecret", "$ecret"), ("", "")],
}
MORE = {"address": {"schemes": ("redis", "unix")}}
DEFAULTS = {"switch": True, "whole": 5, "number": 5.0, "names": ["d"], "database": "sqlite:///d"}


def read(kind, value):
    variables = Variables({"KANT_X": value} if value is not None else {})
    how = getattr(variables, kind)
    found = how("KANT_X", default=DEFAULTS.get(kind, ""), **MORE.get(kind, {}))
    variables.refuse()
    return found


@pytest.mark.parametrize(
    ("kind", "value"), [(k, v) for k, each in UNREADABLE.items() for v in each]
)
def test_what_cannot_be_read_is_refused_by_its_name(kind, value):
    with pytest.raises(ImproperlyConfigured) as refused:
        read(kind, value)
    [line] = str(refused.value).splitlines()
    assert line.startswith("KANT_X ")
    assert "set it to " in line
    if kind in ("address", "database"):  # it may hold a password
        assert value not in re.sub(r"\w+://…", "", line)


@pytest.mark.parametrize(
    ("kind", "value", "wanted"), [(k, *each) for k, pairs in READ.items() for each in pairs]
)
def test_what_is_read(kind, value, wanted):
    assert read(kind, value) == wanted


@pytest.mark.parametrize("kind", sorted(DEFAULTS.keys() - {"database"}))
def test_what_is_not_set_is_its_default(kind):
    assert read(kind, None) == DEFAULTS[kind]


def test_a_number_has_a_least():
    variables = Variables({"KANT_X": "0"})
    assert variables.number("KANT_X", default=3.0, above=0) == 3.0
    with pytest.raises(ImproperlyConfigured, match=r"above 0 in the digits 0 to 9, e\.g\. 3,"):
        variables.refuse()


def test_databases_by_their_kinds():
    assert read("database", "postgresql://u:p@h:5/n")["PORT"] == 5
    for value in ("", None):
        assert read("database", value)["NAME"] == "d"


def strict():
    """Return (name, kind) of all variables that settings.py reads, except texts and lists."""
    for node in ast.walk(ast.parse(SETTINGS.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name("env"), attr=kind), args=[ast.Constant(name)]
            ) if kind in UNREADABLE:
                yield name, kind


@pytest.mark.parametrize(("name", "kind"), sorted(set(strict())))
def test_each_setting_is_refused_where_it_cannot_be_read(name, kind, monkeypatch, tmp_path):
    monkeypatch.setenv("KANT_VAR_DIR", str(tmp_path))
    monkeypatch.setenv(name, UNREADABLE[kind][0])
    with pytest.raises(ImproperlyConfigured, match=f"^{name} .*set it to [^\n]*$"):
        runpy.run_path(str(SETTINGS))


def test_all_is_told_at_once_and_without_a_traceback(tmp_path):
    wrong = {"KANT_CYCLE_SECONDS": "0", "KANT_EMBEDDED": "flase", "REDIS_URL": "cache:6379"}
    ran = subprocess.run(
        [sys.executable, "manage.py", "serve", "--port", "0"],
        env={**os.environ, "KANT_VAR_DIR": str(tmp_path), **wrong},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1
    first, *others = ran.stderr.splitlines()
    assert first.startswith("Kant cannot start: ")
    told = {line.removeprefix("Kant cannot start: ").split()[0] for line in (first, *others)}
    assert told == wrong.keys()
    assert len(others) == 2


def test_several_that_start_at_once_have_one_key(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "VAR_DIR", tmp_path)
    ready = Barrier(8)

    def start(_):
        ready.wait()
        return settings._embedded_secret_key()

    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(start, range(8)))
    assert keys == {(tmp_path / "secret_key").read_text()}
    (tmp_path / "secret_key").write_text("")  # left by a process that was killed before it wrote
    assert len(settings._embedded_secret_key()) >= 50
    assert (tmp_path / "secret_key").stat().st_mode & 0o77 == 0
