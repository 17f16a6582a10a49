"""Outside tools that some tests need: without them a test is skipped on a user's machine and fails
in CI."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from metrics.benches import programs
from metrics.benches.apiserver import ApiServer, ServerUnavailable


def missing(tool: str, remedy: str) -> NoReturn:
    """Skip the test and say what to install; fail instead if CI=true is set."""
    text = f"{tool} is not available: {remedy}"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


def installed(find: Callable[..., str], *names: str) -> str:
    """Return the path found by a function of `metrics.benches.programs`."""
    try:
        return find(*names)
    except programs.ProgramMissing as error:
        tool, _, remedy = str(error).partition(" is not installed: ")
        missing(tool, remedy)


def apiserver(folder: Path, flags: tuple[str, ...] = ()) -> ApiServer:
    """Return a context manager that runs a real kube-apiserver with these flags; its files are in
    `folder`."""
    try:
        return ApiServer(folder, flags=flags)
    except ServerUnavailable as error:
        missing("kube-apiserver", str(error))
