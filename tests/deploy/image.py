"""The Dockerfile's steps, and what they make of this checkout, without a builder."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.deploy.manifests import DEPLOY, ROOT


class Step(NamedTuple):
    """One instruction, such as RUN, and all behind it."""

    name: str
    text: str


def stages() -> list[list[Step]]:
    """The steps of each stage; the first one is its FROM."""
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
    """What ENV sets in a stage; its PATH with that of a base image."""
    pairs = [pair for step in stage if step.name == "ENV" for pair in shlex.split(step.text)]
    return dict(pair.split("=", 1) for pair in pairs)


def context() -> list[str]:
    """What `COPY . .` copies: names at the root of the checkout."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    first, *others, last = [line for line in lines if not line.startswith("#")]
    assert (first, last) == ("*", "**/__pycache__"), "nothing is copied but what is named"
    assert all(line.startswith("!") and "/" not in line for line in others)
    return [line[1:] for line in others]


def own_programs() -> str:
    """A PATH on which `python`, `celery` and `uvicorn` are those of this interpreter."""
    return f"{Path(sys.executable).parent}:{os.defpath}"


def assemble(folder: Path) -> Path:
    """Do in `folder` what the build does after `COPY . .`, with the packages of this interpreter.

    Returns the folder that the image has as its last WORKDIR, which nobody may write to.
    """
    build, final = stages()
    at = build.index(Step("COPY", ". ."))
    [home] = [step.text for step in build[:at] if step.name == "WORKDIR"]
    assert Step("COPY", f"--from=build {home} {home}") in final
    made = folder / home.lstrip("/")
    made.mkdir(parents=True)
    for name in context():
        source = ROOT / name
        if source.is_dir():
            # With the modules that were compiled here, as the build compiles them anew.
            shutil.copytree(source, made / name)
        else:
            shutil.copy2(source, made / name)
    env = {**environment(build), "PATH": own_programs()}
    for step in build[at + 1 :]:
        assert step.name == "RUN"
        subprocess.run(step.text, shell=True, check=True, cwd=made, env=env, capture_output=True)
    for path in (made, *made.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    return made
