"""Carry out the Dockerfile's steps on this checkout, without a builder.

Run `python -m tests.deploy.image` before the tests that inspect the result.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, EntryPoint, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.manifests import DEPLOY, ROOT


class Step(NamedTuple):
    """One instruction, such as RUN, and its arguments."""

    name: str
    text: str


def stages() -> list[list[Step]]:
    """Return the steps of each stage; the first step is its FROM."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found: list[list[Step]] = []
    for line in lines:
        step = Step(*line.split(maxsplit=1))
        if step.name == "FROM":
            found.append([])
        found[-1].append(step)
    return found


def environment(stage: list[Step]) -> dict[str, str]:
    """Return the variables that a stage's ENV sets, with PATH extended by that of a base image."""
    pairs = [pair for step in stage if step.name == "ENV" for pair in shlex.split(step.text)]
    return dict(pair.split("=", 1) for pair in pairs)


def context() -> list[str]:
    """Return what `COPY . .` copies: the names at the root of the checkout."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    first, *others, last = [line for line in lines if not line.startswith("#")]
    assert (first, last) == ("*", "**/__pycache__"), "nothing is copied but what is named"
    assert all(line.startswith("!") and "/" not in line for line in others)
    return [line[1:] for line in others]


def made() -> Path:
    """Return the folder that stands for the image's last WORKDIR, made from this checkout as it
    is. The first process makes it in the Python environment; others wait and share it. It stays
    until the next one is made; nobody may write to it."""
    images = Path(sys.prefix, "kant-image")
    images.mkdir(exist_ok=True)
    with (images / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = images / _fingerprint()
        done = folder / "done"  # missing if its maker was killed
        if not done.exists():
            for old in images.iterdir():
                if old.is_dir():
                    _remove(old)
            print("Making what the image has, for the tests of it ...", flush=True)
            home = assemble(folder)
            for left in ("src", "wheels"):
                shutil.rmtree(folder / left)
            done.write_text(str(home))
        return Path(done.read_text())


def _fingerprint() -> str:
    """Return a hash of everything that goes into an image, and of the code that makes it."""
    named = [DEPLOY / "Dockerfile", ROOT / ".dockerignore", Path(__file__)]
    for name in context():
        found = (ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name]
        named += [path for path in found if path.is_file() and path.suffix != ".pyc"]
    digest = hashlib.sha256(f"{sys.version}\0{sys.prefix}".encode())
    for path in sorted(named):
        digest.update(b"\0%b\0%b" % (str(path).encode(), path.read_bytes()))
    return digest.hexdigest()[:16]


def _remove(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder)


def assemble(folder: Path) -> Path:
    """Do in `folder` what the build does, with an environment in place of the base image's Python,
    and with this interpreter's packages in place of those of an index.

    Returns the folder that stands for the image's last WORKDIR. Nobody may write to it.
    """
    build, final = stages()
    [make] = build[build.index(Step("COPY", ". .")) + 1 :]
    install, collect = [step.text for step in final if step.name == "RUN"]
    source, wheels = folder / "src", folder / "wheels"
    _copy_context(source)
    _pip(make.text, wheels, source)
    home = _environment(folder / "environment")
    mount, _, command = install.partition(" ")
    assert mount == "--mount=type=bind,from=build,source=/wheels,target=/wheels"
    _pip(command, wheels, source, "--python", str(programs(home) / "python"))
    env = {**environment(final), "PATH": path_of(home)}
    subprocess.run(collect, shell=True, check=True, cwd=home, env=env, capture_output=True)
    for path in (home, *home.rglob("*")):
        if not path.is_symlink():  # these are packages of this interpreter
            path.chmod(path.stat().st_mode & ~0o222)
    return home


def programs(home: Path) -> Path:
    """Return where the `python`, `celery` and `uvicorn` are that use what is installed in
    `home`."""
    return home.parents[2] / "bin"


def path_of(home: Path) -> str:
    return f"{programs(home)}:{os.defpath}"


def _copy_context(to: Path) -> None:
    to.mkdir(parents=True)
    for name in context():
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, to / name)


def _pip(command: str, wheels: Path, source: Path, *before: str) -> None:
    """Carry out a `pip ...` of the Dockerfile, without the packages that Kant needs."""
    program, action, *words = [
        each.replace("/wheels", str(wheels)) for each in shlex.split(command)
    ]
    assert program == "pip"
    argv = [sys.executable, "-m", "pip", *before, action, "--no-deps", *words]
    ran = subprocess.run(argv, cwd=source, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _environment(folder: Path) -> Path:
    """Make an environment with the packages of requirements.txt and their dependencies only, as
    links to those of this interpreter. Returns its folder of packages."""
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    home = folder / "lib" / version / "site-packages"
    for package in with_needs("requirements.txt"):
        for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            link = home / name
            if not link.exists():
                link.symlink_to(Path(str(package.locate_file(name))))
        for script in package.entry_points.select(group="console_scripts"):
            _program(programs(home) / script.name, script)
    return home


def pins(name: str) -> list[str]:
    """Return the requirements in a list, without comments."""
    lines = (ROOT / name).read_text().splitlines()
    return [text for line in lines if (text := line.partition("#")[0].strip())]


def with_needs(name: str) -> list[Distribution]:
    """Return the packages of a list of requirements and all their dependencies here."""
    named = list(map(Requirement, pins(name)))
    seen: set[tuple[str, str]] = set()
    found: dict[str, Distribution] = {}
    while named:
        wanted = named.pop()
        package = found.setdefault(canonicalize_name(wanted.name), distribution(wanted.name))
        for extra in ("", *wanted.extras):
            if (package.name, extra) not in seen:
                seen.add((package.name, extra))
                needs = map(Requirement, package.requires or ())
                named += [
                    each
                    for each in needs
                    if each.marker is None or each.marker.evaluate({"extra": extra})
                ]
    return list(found.values())


def _program(path: Path, script: EntryPoint) -> None:
    """Write a script as pip would, for the interpreter beside it."""
    path.write_text(
        f"#!{path.parent / 'python'}\nimport sys\nfrom {script.module} import {script.attr}\n"
        f"sys.exit({script.attr}())\n"
    )
    path.chmod(0o755)


if __name__ == "__main__":
    made()
