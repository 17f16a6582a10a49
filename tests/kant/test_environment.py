"""`make run` says in one line, and at once, what keeps Kant from starting."""

import os
import re
import socket
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pip
import pytest

from kant import environment
from scheduling import compiled
from scheduling.simcluster.controllers.fleet import SHIPPED
from tests.deploy.image import with_needs

ROOT = Path(environment.__file__).parents[1]


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone without an environment, whose only package is a small one."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    (tmp_path / "requirements.txt").write_text("django-htmx==1.29.0  # the smallest\n")
    (tmp_path / "requirements-dev.txt").write_text("-r requirements.txt\n")
    return tmp_path


def refused(capsys, *arguments):
    assert environment.main(list(arguments)) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("Kant cannot start: ")
    return line


def test_a_taken_port_is_told_before_anything_is_made(clone, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(capsys, "--port", str(port))
    assert f"port {port} cannot be used (Address already in use)" in line
    assert not (clone / ".venv").exists()


def test_another_port_is_named_that_is_free(clone, capsys, monkeypatch):
    """A constant suggestion could name the very port that was asked for."""
    taken = {8001, 8002}
    monkeypatch.setattr(environment, "refusal", lambda port: "Permission denied" * (port in taken))
    line = refused(capsys, "--port", "8001")
    assert "port 8001 cannot be used (Permission denied)" in line
    assert line.endswith("make run PORT=8003")


PORTS = [
    "-1",
    "65536",
    "99999999999",
    "",
    " ",
    "abc",
    "80 90",
    "8000x",
    "1e3",
    "8_0",
    "٨٠٨٠",
    "+80",
]


@pytest.mark.parametrize("port", PORTS)
def test_a_port_that_is_none(clone, capsys, port):
    line = refused(capsys, f"--port={port}")
    assert f"PORT={port} is not a port: ports are 0 to 65535" in line
    assert re.search(r"make run PORT=\d+$", line)


@pytest.mark.parametrize("port", ["0", "00"])
def test_any_free_port_can_be_asked_for(port):
    environment.check_port(port)


@pytest.mark.parametrize("fleet", ["", "nosuch", "/no/such.yaml", "openb:", "openb:/no/such", "/"])
def test_a_fleet_that_is_none_is_told_before_anything_is_made(clone, capsys, fleet):
    line = refused(capsys, f"--fleet={fleet}")
    assert (
        f"FLEET={fleet} is not a fleet. It must be one of demo, large, paper, openb:FILE.csv"
    ) in line
    assert not (clone / ".venv").exists()


def test_fleets_that_are_there(clone):
    (clone / "mine.yaml").touch()
    for fleet in (*SHIPPED, str(clone / "mine.yaml"), f"openb:{clone / 'mine.yaml'}"):
        environment.check_fleet(fleet)


def made(*given):
    """Return what `make run` prints for a user; it must not see the make that runs the tests."""
    outer = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
    env = {name: value for name, value in os.environ.items() if name not in outer}
    make = ["make", "run", *given]
    return subprocess.run(make, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("given", [{"PORT": "$$(id); '\" id"}, {"FLEET": "a b'; id"}])
def test_what_make_is_given_is_read_by_no_shell(given):
    ran = made(*(f"{name}={x}" for name, x in given.items()), f"PYTHON={sys.executable}")
    assert ran.stdout == ""
    [line, of_make] = ran.stderr.splitlines()
    [(name, value)] = given.items()
    assert line.startswith(f"Kant cannot start: {name}={value.replace('$$', '$')} is not a ")
    assert of_make.startswith("make: ***")


def test_a_folder_that_cannot_be_written_to(clone, capsys, monkeypatch):
    monkeypatch.setattr(environment, "ROOT", Path("/proc"))
    assert "/proc cannot be written to" in refused(capsys)


def test_a_full_disk(clone, capsys, monkeypatch):
    monkeypatch.setattr(environment, "NEEDS_MB", {False: 10**9, True: 10**9})
    assert re.search(r"has \d+ MB left, and the packages need 1000000000 MB", refused(capsys))
    assert not (clone / ".venv").exists()


def test_no_room_for_what_pip_fetches(clone, capsys, monkeypatch):
    monkeypatch.setattr(environment, "FETCHED_MB", {False: 10**9, True: 10**9})
    assert "set TMPDIR to a folder of your own" in refused(capsys)

    def nowhere():
        raise FileNotFoundError

    monkeypatch.setattr(environment.tempfile, "gettempdir", nowhere)
    assert "no folder for temporary files can be written to; set TMPDIR" in refused(capsys)
    assert not (clone / ".venv").exists()


def test_an_environment_of_somebody_else_is_told_before_anything_is_fetched(
    clone, capsys, monkeypatch
):
    packages = clone / ".venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (clone / ".venv" / "bin").mkdir()
    environment.PYTHON.touch()
    monkeypatch.setattr(environment, "check_index", None)
    monkeypatch.setattr(environment.os, "access", lambda path, how: path != packages)
    assert f"{packages} cannot be written to. Give " in refused(capsys)


def test_whatever_the_system_refuses_is_one_line(clone, capsys, monkeypatch):
    def refuse(*, dev):
        raise PermissionError(13, "Permission denied", "/clone/.venv/.runtime")

    monkeypatch.setattr(environment, "prepare", refuse)
    line = refused(capsys)
    assert "/clone/.venv/.runtime cannot be used (Permission denied). Give " in line
    assert "or remove it" in line


def test_an_index_that_cannot_be_reached(clone, capsys, monkeypatch):
    with socket.socket() as nobody:  # bound but not listening, so that it refuses at once
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}/simple")
        line = refused(capsys)
    assert "pip cannot fetch django-htmx==1.29.0" in line
    assert "PIP_INDEX_URL" in line


def test_a_python_without_ensurepip(clone, capsys, monkeypatch):
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    assert "apt-get install python3-venv" in refused(capsys)


def test_a_complete_environment_is_left_alone(clone, monkeypatch, capsys):
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    stamp = clone / ".venv" / ".runtime"
    stamp.write_text(environment.fingerprint(dev=False))
    monkeypatch.setattr(environment.subprocess, "run", None)
    assert environment.main([]) == 0
    assert capsys.readouterr().out == ""
    (clone / "requirements.txt").write_text("django-htmx==1.28.0\n")
    monkeypatch.setattr(environment, "install", lambda path: None)
    monkeypatch.setattr(environment, "check_index", lambda path: None)
    assert environment.main([]) == 0
    assert stamp.read_text() == environment.fingerprint(dev=False)


def test_packages_that_do_not_install_are_named(clone, monkeypatch, capsys):
    monkeypatch.setattr(environment, "PYTHON", Path(sys.executable))  # has pip
    (clone / "requirements.txt").write_text("no such line\n")
    monkeypatch.setattr(environment, "check_index", lambda path: None)
    assert "pip install failed: ERROR: Invalid requirement: 'no such line'" in refused(capsys)
    assert not (clone / ".venv" / ".runtime").exists()


def test_nothing_is_compiled_that_nobody_has_imported(clone, monkeypatch):
    wheel = clone / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tiny.py", "")
        file.writestr(
            "tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n"
        )
        file.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr("tiny-1.dist-info/RECORD", "")
    (clone / "requirements.txt").write_text(f"{wheel}\n")
    venv.create(clone / ".venv")
    [packages] = (clone / ".venv").glob("lib/python*/site-packages")
    # Use the pip of this environment: making one with its own takes seconds.
    (packages / "pip.pth").write_text(str(Path(pip.__file__).parents[1]))
    environment.install(clone / "requirements.txt")
    assert (packages / "tiny.py").exists()
    assert not list(packages.rglob("*.pyc"))


def test_what_nobody_reads_is_removed_and_nothing_else(tmp_path):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    kept = {
        "kubernetes/client/aio.py", "plotly/package_data/templates/a.json", "kubernetes/config.py",
        "plotly/io.py", "django/conf/locale/de/formats.py", "django/conf/locale/__init__.py",
    }  # fmt: skip
    unread = {
        "kubernetes/aio/client/api.py", "plotly/package_data/plotly.min.js",
        "plotly/labextension/static/a.js", "../../../share/jupyter/labextensions/a.js",
        "django/conf/locale/de/LC_MESSAGES/django.mo", "rest_framework/locale/de/LC_MESSAGES/a.po",
    }  # fmt: skip
    for name in kept | unread:
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    environment.trim(tmp_path)
    assert {name for name in kept | unread if (packages / name).exists()} == kept
    environment.trim(tmp_path)  # of a second `make setup`


UNDER = 300 * 2**20


def blocks(path):
    """Return the bytes that a file takes on disk."""
    return -(-path.stat().st_size // 4096) * 4096


def test_what_runs_takes_no_more_of_a_disk_than_is_promised():
    """This ignores anything else installed here, and whether it was trimmed."""
    home = Path(sysconfig.get_path("purelib"))
    unread = {path for pattern in environment.UNREAD for path in home.glob(pattern)}
    unread = {path.resolve() for path in unread}
    taken = {}
    for package in [*with_needs("requirements.txt"), distribution("pip")]:
        for file in package.files:
            path = Path(str(file.locate())).resolve()
            if path.suffix != ".pyc" and path.exists() and unread.isdisjoint([path, *path.parents]):
                taken[path] = blocks(path)
    files = [path for path in compiled.folder().rglob("*") if path.is_file()]
    taken |= {path: blocks(path) for path in files}
    assert sum(taken.values()) > UNDER / 3  # something was measured at all
    largest = sorted(taken.items(), key=lambda each: -each[1])[:10]
    assert sum(taken.values()) < UNDER, largest


def test_the_second_of_two_waits_for_the_first(clone):
    command = [
        sys.executable,
        "-c",
        "import sys, pathlib; from kant import environment as e\n"
        "with e.alone(pathlib.Path(sys.argv[1])): print('in', flush=True)",
        str(clone),
    ]
    with environment.alone(clone):
        second = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert "waiting" in second.stdout.readline()
        time.sleep(0.2)
        assert second.poll() is None
    assert second.stdout.read() == "in\n"
    assert second.wait(60) == 0


@pytest.mark.parametrize("which", ["old", "absent", ""])
def test_a_python_that_is_too_old_is_told_first(tmp_path, which):
    python = tmp_path / "old"
    python.write_text("#!/bin/sh\nexit 1\n")  # as `sys.exit(True)` does
    python.chmod(0o755)
    named = str(tmp_path / which) if which else ""
    ran = made(f"PYTHON={named}")
    assert ran.returncode
    assert ran.stdout == (
        f"Kant needs Python 3.11 or newer; '{named}' is not. Install it, or: make run "
        "PYTHON=/path/to/python3.11\n"
    )


def test_a_python_that_nobody_has_tested_is_told(clone, monkeypatch, capsys):
    monkeypatch.setattr(environment, "NEWEST_TESTED", (3, 10))
    monkeypatch.setattr(environment, "NEEDS_MB", {False: 10**9, True: 10**9})  # no further
    assert environment.main([]) == 1
    told = capsys.readouterr().out
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"tested with Python 3.11 to 3.10; {sys.executable} is {version}." in told
    monkeypatch.setattr(environment, "NEWEST_TESTED", sys.version_info[:2])
    assert environment.main([]) == 1
    assert capsys.readouterr().out == ""


def test_it_needs_nothing_but_the_standard_library():
    """The system's Python runs it in isolated mode before any package is installed."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / "kant" / "environment.py"), "--port", "-1"],
        capture_output=True,
        text=True,
        cwd=os.sep,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Kant cannot start: PORT=-1")
