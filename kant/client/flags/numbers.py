"""Numbers as people write them: Python also reads "1_000", "1e3", "nan" and other digits."""

import argparse
import re
from typing import Any

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})")
DIGITS = "in the digits 0 to 9, without separators"


def whole(text: str) -> int:
    """Raises ArgumentTypeError."""
    if not _WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {DIGITS}, e.g. 8")
    return int(text)


def number(text: str) -> float:
    """Raises ArgumentTypeError."""
    if not _NUMBER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {DIGITS}, e.g. 8 or 0.5")
    return float(text)


class Parser(argparse.ArgumentParser):
    """A flag of `type=int` or `type=float` reads such numbers alone; in commands below it, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("type", int, whole)
        self.register("type", float, number)
