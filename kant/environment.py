"""`python -I kant/environment.py [--dev] [--port N --fleet NAME]`: create this clone's .venv.

`make` runs it with the system's Python before any package is installed, so it uses only the
standard library. It first reports, in one line, what would keep Kant from starting: a taken port,
an unknown fleet, a read-only folder, a full disk, no package index. If two run in one clone, the
second waits for the first.
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
# Fleets that come with Kant; any other is a file.
FLEETS = ROOT / "scheduling" / "simcluster" / "fleets"
OPENB = "openb:"
# What pip unpacks and keeps meanwhile, generously; the tests' tools are the larger part.
NEEDS_MB = {False: 600, True: 1500}
# The part of it that pip keeps in temporary files until everything is there.
FETCHED_MB = {False: 150, True: 400}
# Files in packages that Kant never reads, a fifth of the total. pip cannot leave them out.
UNREAD = (
    "kubernetes/aio",  # a second Kubernetes client; Kant uses the configuration of the first
    "plotly/package_data/*.js",  # pages use their own plotly.js, in static/vendor
    "plotly/labextension",
    "../../../share/jupyter",
    "**/LC_MESSAGES",  # translations; Kant speaks English (USE_I18N)
)
TELL_EVERY_S = 15.0
# The newest Python that passed the tests; for newer ones packages may lack wheels.
NEWEST_TESTED = (3, 13)
LAST_PORT = 65535


class CannotStart(Exception):
    """What prevents the start, and what to do about it, in one line."""


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
    """Raise CannotStart if the port is invalid or cannot be listened on."""
    if not re.fullmatch("[0-9]{1,9}", port) or int(port) > LAST_PORT:
        obstacle = f"PORT={port} is not a port: ports are 0 to {LAST_PORT}, and 0 is any free one"
    elif refused := refusal(int(port)):
        obstacle = f"port {port} cannot be used ({refused})"
    else:
        return
    free = next((each for each in range(8001, 8101) if not refusal(each)), 0)
    raise CannotStart(f"{obstacle}. Choose another port: make run PORT={free}")


def refusal(port: int) -> str:
    """Say why nobody can listen on the port; "" if one can."""
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((HOST, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def check_fleet(fleet: str) -> None:
    """Raise CannotStart if the fleet does not exist; its file is parsed later, by other code."""
    shipped = sorted(path.stem for path in FLEETS.glob("*.yaml"))
    if fleet in shipped or Path(fleet.removeprefix(OPENB)).is_file():
        return
    raise CannotStart(
        f"FLEET={fleet} is not a fleet. It must be one of {', '.join(shipped)}, {OPENB}FILE.csv "
        "or the path of an inventory: make run FLEET=demo"
    )


def check_folder(folder: Path) -> None:
    """Raise CannotStart if nothing can be written to the folder."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CannotStart(
            f"{folder} cannot be written to ({error.strerror}). Clone Kant to a folder of your own."
        ) from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the folder's environment; wait for others that came first."""
    handle = os.open(folder, os.O_RDONLY)  # a folder itself can be locked; no lock file is needed
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
    """Create what is missing of the environment; do nothing if it is complete.

    Raises CannotStart.
    """
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
    if dev:  # it includes everything for running, too
        (VENV / ".runtime").write_text(fingerprint(dev=False))
    stamp.write_text(wanted)


def tell_of_newer() -> None:
    """Print a note if this Python is newer than those that Kant was tested with."""
    if sys.version_info[:2] > NEWEST_TESTED:
        print(
            f"Kant was tested with Python 3.11 to {'.'.join(map(str, NEWEST_TESTED))}; "
            f"{sys.executable} is {sys.version_info.major}.{sys.version_info.minor}. If packages "
            "do not install: make setup PYTHON=/path/to/python3.11",
            flush=True,
        )


def fingerprint(*, dev: bool) -> str:
    """Return a hash of the requirements, the files left out, and the Python that installs them."""
    files = sorted(ROOT.glob("requirements*.txt" if dev else "requirements.txt"))
    found = hashlib.sha256(repr((sys.version, UNREAD)).encode())
    for file in files:
        found.update(file.read_bytes())
    return found.hexdigest()


def check_space(folder: Path, needed_mb: int) -> None:
    """Raise CannotStart if less space is left on the disk."""
    free_mb = shutil.disk_usage(folder).free // 2**20
    if free_mb < needed_mb:
        raise CannotStart(
            f"{folder} has {free_mb} MB left, and the packages need {needed_mb} MB. Free some, or "
            "clone Kant to another disk."
        )


def check_temporary(needed_mb: int) -> None:
    """Raise CannotStart if pip lacks space for what it downloads."""
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
    """Raise CannotStart if pip could not write.

    pip itself would say so only after all downloads.
    """
    for folder in (VENV, PYTHON.parent, *VENV.glob("lib/python*/site-packages")):
        if folder.exists() and not os.access(folder, os.W_OK):
            raise CannotStart(f"{folder} cannot be written to. {belongs_to_others()}")


def belongs_to_others() -> str:
    return f"Give {VENV} to yourself, or remove it: make creates it again."


def make_environment() -> None:
    print(f"Creating {VENV.name} ...", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)  # one that was interrupted, or whose Python is gone
    hint = "on Debian: apt-get install python3-venv"
    if importlib.util.find_spec("ensurepip") is None:
        raise CannotStart(f"this Python has no ensurepip ({sys.executable}); {hint}")
    made = subprocess.run(
        [sys.executable, "-m", "venv", VENV], capture_output=True, text=True, check=False
    )
    if made.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        raise CannotStart(f"python -m venv failed ({last_line(made.stdout + made.stderr)}); {hint}")
    # Python 3.11 brings setuptools, which builds packages; none is built here.
    command = [str(PYTHON), "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"]
    subprocess.run(command, capture_output=True, check=False)


def check_index(requirements: Path) -> None:
    """Download the smallest package, so that an unreachable index is reported at once.

    Raises CannotStart.
    """
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
    """Install the packages without bytecode: processes later write the third that they need.

    Raises CannotStart.
    """
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
    """Remove the files of packages that Kant never reads."""
    for packages in environment.glob("lib/python*/site-packages"):
        for pattern in UNREAD:
            # List all first: a deleted folder cannot be searched.
            for path in list(packages.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def last_line(text: str) -> str:
    """Return the last line with text, cut to a readable length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"


if __name__ == "__main__":
    sys.exit(main())
