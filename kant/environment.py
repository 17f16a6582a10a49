"""`python -I kant/environment.py [--dev] [--port N --fleet NAME]`: make the Python environment of
this clone.

`make` runs it by the system's Python, before any package is there: it uses nothing else.
What would keep Kant from starting is told first, in one line: a taken port, no such fleet, a
read-only folder, a full disk, no package index. Two at once in one clone: the second waits for the
first.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
HOST = "127.0.0.1"
# Those that come with Kant; any other is a file.
FLEETS = ROOT / "scheduling" / "simcluster" / "fleets"
OPENB = "openb:"
# What pip unpacks and keeps meanwhile, generously; the tests' tools are the larger part.
NEEDS_MB = {False: 600, True: 1500}
# Of that, what pip keeps among temporary files until all is there.
FETCHED_MB = {False: 150, True: 400}
# What packages bring and Kant never reads, which is a fifth of them. pip cannot leave it out.
UNREAD = (
    "kubernetes/aio",  # a second client of Kubernetes; Kant has the first one's configuration
    "plotly/package_data/*.js",  # pages have a plotly.js of their own, in static/vendor
    "plotly/labextension",
    "../../../share/jupyter",
    "**/LC_MESSAGES",  # translations; Kant speaks English (USE_I18N)
)
TELL_EVERY_S = 15.0
# The newest Python whose tests were passed; with a newer one packages may have no wheels.
NEWEST_TESTED = (3, 13)
LAST_PORT = 65535


class CannotStart(Exception):
    """What is in the way, and what to do about it, in one line."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="with what the tests need")
    parser.add_argument("--port", help="has to be free; 0 = any that is")
    parser.add_argument("--fleet", help="has to be there")
    options = parser.parse_args(arguments)
    try:
        if options.port is not None:
            check_port(options.port)
        if options.fleet is not None:
            check_fleet(options.fleet)
        check_folder(ROOT)
        with alone(ROOT):
            prepare(dev=options.dev)
    except CannotStart as obstacle:
        print(f"Kant cannot start: {obstacle}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f"{error.filename} cannot be used ({error.strerror})" if error.filename else error
        print(f"Kant cannot start: {where}. {belongs_to_others()}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def check_port(port: str) -> None:
    """Raises CannotStart where that is no port, or nobody can listen on it."""
    if not re.fullmatch("[0-9]{1,9}", port) or int(port) > LAST_PORT:
        obstacle = f"PORT={port} is no port: those are 0 to {LAST_PORT}, and 0 is any free one"
    elif refused := refusal(int(port)):
        obstacle = f"port {port} cannot be used ({refused})"
    else:
        return
    free = next((each for each in range(8001, 8101) if not refusal(each)), 0)
    raise CannotStart(f"{obstacle}. Choose another: make run PORT={free}")


def refusal(port: int) -> str:
    """Why nobody can listen on it; "" if one can."""
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((HOST, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def check_fleet(fleet: str) -> None:
    """What is in its file is read later, by what knows it. Raises CannotStart."""
    shipped = sorted(path.stem for path in FLEETS.glob("*.yaml"))
    if fleet in shipped or Path(fleet.removeprefix(OPENB)).is_file():
        return
    raise CannotStart(
        f"FLEET={fleet} is no fleet. It is one of {', '.join(shipped)}, {OPENB}FILE.csv or the "
        "path of an inventory: make run FLEET=demo"
    )


def check_folder(folder: Path) -> None:
    """Raises CannotStart where nothing can be written."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CannotStart(
            f"{folder} cannot be written to ({error.strerror}). Clone Kant to a folder of your own."
        ) from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep others from the folder's environment; wait for them where they came first."""
    handle = os.open(folder, os.O_RDONLY)  # a folder can be locked, and needs no file for it
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another make sets up this clone; waiting for it ...", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def prepare(*, dev: bool) -> None:
    """Make what is missing of the environment; nothing where it is complete.

    Raises CannotStart."""
    name = "requirements-dev.txt" if dev else "requirements.txt"
    stamp = VENV / (".dev" if dev else ".runtime")
    wanted = fingerprint(dev=dev)
    if PYTHON.exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    tell_of_newer()
    check_space(ROOT, NEEDS_MB[dev])
    check_temporary(FETCHED_MB[dev])
    if PYTHON.exists():
        check_environment()
    else:
        make_environment()
    check_index(ROOT / "requirements.txt")
    install(ROOT / name)
    trim(VENV)
    if dev:  # it holds what runs, too
        (VENV / ".runtime").write_text(fingerprint(dev=False))
    stamp.write_text(wanted)


def tell_of_newer() -> None:
    """Say so where this Python is newer than those that Kant was tested with."""
    if sys.version_info[:2] > NEWEST_TESTED:
        print(
            f"Kant was tested with Python 3.11 to {'.'.join(map(str, NEWEST_TESTED))}; "
            f"{sys.executable} is {sys.version_info.major}.{sys.version_info.minor}. If packages "
            "do not install: make setup PYTHON=/path/to/python3.11",
            flush=True,
        )


def fingerprint(*, dev: bool) -> str:
    """Of the lists of requirements, of what is left out, and of the Python that installs them."""
    files = sorted(ROOT.glob("requirements*.txt" if dev else "requirements.txt"))
    found = hashlib.sha256(repr((sys.version, UNREAD)).encode())
    for file in files:
        found.update(file.read_bytes())
    return found.hexdigest()


def check_space(folder: Path, needed_mb: int) -> None:
    """Raises CannotStart where less is left on the disk."""
    free_mb = shutil.disk_usage(folder).free // 2**20
    if free_mb < needed_mb:
        raise CannotStart(
            f"{folder} has {free_mb} MB left, and the packages need {needed_mb} MB. Free some, or "
            "clone Kant to another disk."
        )


def check_temporary(needed_mb: int) -> None:
    """Raises CannotStart where pip has no room for what it fetches."""
    remedy = "set TMPDIR to a folder of your own on a disk with room"
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise CannotStart(f"no folder for temporary files can be written to; {remedy}.") from error
    free_mb = shutil.disk_usage(folder).free // 2**20
    if free_mb < needed_mb:
        raise CannotStart(
            f"{folder} has {free_mb} MB left, and what pip fetches needs {needed_mb} MB there. "
            f"Free some, or {remedy}."
        )


def check_environment() -> None:
    """Raises CannotStart where pip could not change it, which it tells after all is fetched."""
    for folder in (VENV, PYTHON.parent, *VENV.glob("lib/python*/site-packages")):
        if folder.exists() and not os.access(folder, os.W_OK):
            raise CannotStart(f"{folder} cannot be written to. {belongs_to_others()}")


def belongs_to_others() -> str:
    return f"Give {VENV} to yourself, or remove it: it is made again."


def make_environment() -> None:
    print(f"Creating {VENV.name} ...", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)  # one that was broken off, or whose Python is gone
    hint = "on Debian: apt-get install python3-venv"
    if importlib.util.find_spec("ensurepip") is None:
        raise CannotStart(f"this Python has no ensurepip ({sys.executable}); {hint}")
    made = subprocess.run(
        [sys.executable, "-m", "venv", VENV], capture_output=True, text=True, check=False
    )
    if made.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        raise CannotStart(f"python -m venv failed ({last_line(made.stdout + made.stderr)}); {hint}")
    # Python 3.11 brings one that builds packages; here none is built.
    command = [str(PYTHON), "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"]
    subprocess.run(command, capture_output=True, check=False)


def check_index(requirements: Path) -> None:
    """Fetch the smallest package, so that an index that cannot be reached is told at once.

    Raises CannotStart."""
    pins = (line.partition("#")[0].strip() for line in requirements.read_text().splitlines())
    probe = next(pin for pin in pins if pin.startswith("django-htmx=="))
    with tempfile.TemporaryDirectory() as folder:
        command = [str(PYTHON), "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
        command += ["--quiet", "--retries", "1", "--timeout", "15", "--dest", folder, probe]
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        raise CannotStart(
            f"pip cannot fetch {probe} ({last_line(tried.stderr)}). Where there is a mirror, set "
            "PIP_INDEX_URL; behind a proxy, HTTPS_PROXY."
        )


def install(requirements: Path) -> None:
    """Without bytecode: a process writes that of what it imports, a third of what pip would write.

    Raises CannotStart."""
    begun = time.monotonic()
    print("Installing packages (a minute or two, once) ...", flush=True)
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    command += ["-r", str(requirements)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "pip.log")
        with log.open("wb") as said:
            pip = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        while True:
            try:
                pip.wait(TELL_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                done = last_line(log.read_text(errors="replace"))
                print(f"  {time.monotonic() - begun:.0f} s: {done}", flush=True)
            except BaseException:
                pip.terminate()
                pip.wait()
                raise
        text = log.read_text(errors="replace")
    if pip.returncode:
        errors = [line for line in text.splitlines() if line.startswith("ERROR")]
        raise CannotStart(f"pip install failed: {errors[0] if errors else last_line(text)}")
    print(f"Packages installed in {time.monotonic() - begun:.0f} s.", flush=True)


def trim(environment: Path) -> None:
    """Remove what nobody reads of the packages of an environment."""
    for packages in environment.glob("lib/python*/site-packages"):
        for pattern in UNREAD:
            # Listed before the first is removed: a folder that is gone cannot be looked through.
            for path in list(packages.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def last_line(text: str) -> str:
    """The last line that says something, at a length that can be read."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"


if __name__ == "__main__":
    sys.exit(main())
