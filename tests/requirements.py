"""Outside tools that some tests need: a skip on a user's machine, a failure in CI."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from metrics.benches import programs
from metrics.benches.apiserver import ApiServer, ServerUnavailable


def missing(tool: str, remedy: str) -> NoReturn:
    """Skip the test and say what to install; where CI=true is set, fail instead."""
    text = f"{tool} is not available: {remedy}"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


def installed(find: Callable[..., str], *names: str) -> str:
    """The path that a function of `metrics.benches.programs` finds."""
    try:
        return find(*names)
    except programs.ProgramMissing as error:
        tool, _, remedy = str(error).partition(" is not installed: ")
        missing(tool, remedy)


def apiserver(folder: Path, flags: tuple[str, ...] = ()) -> ApiServer:
    """A real kube-apiserver with these flags, to be entered; its files are in `folder`."""
    try:
        return ApiServer(folder, flags=flags)
    except ServerUnavailable as error:
        missing("kube-apiserver", str(error))
