"""Outside tools that some tests need: a skip on a user's machine, a failure in CI."""

import os
from typing import NoReturn

import pytest


def missing(tool: str, remedy: str) -> NoReturn:
    """Skip the test and say what to install; where CI=true is set, fail instead."""
    text = f"{tool} is not available: {remedy}"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)
