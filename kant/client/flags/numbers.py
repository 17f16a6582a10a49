"""Numbers as people write them: Python also accepts "1_000", "1e3", "nan" and other digits."""

import argparse
import re
from typing import Any

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})")
DIGITS = "in the digits 0 to 9, without separators"


def whole(text: str) -> int:
    """Parse a whole number. Raises ArgumentTypeError."""
    if not _WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {DIGITS}, e.g. 8")
    return int(text)


def number(text: str) -> float:
    """Parse a number. Raises ArgumentTypeError."""
    if not _NUMBER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {DIGITS}, e.g. 8 or 0.5")
    return float(text)


class Parser(argparse.ArgumentParser):
    """A parser whose flags of `type=int` or `type=float` accept only such numbers.

    This holds for its subcommands, too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("type", int, whole)
        self.register("type", float, number)
