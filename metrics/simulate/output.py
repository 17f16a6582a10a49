"""Where the results of a command go: standard output, and the folder of --out."""

import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from pathlib import Path

from django.core.management.base import CommandError, OutputWrapper

from metrics.simulate.inputs import InputError


def folder(text: str) -> Path:
    """What --out names, for argparse."""
    if not text:
        raise ArgumentTypeError("must name a folder")
    return Path(text)


def make_folder(out: Path) -> None:
    """Make the folder before there is something to lose; raises InputError where that fails."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "is a file" if out.is_file() else f"cannot be made ({error.strerror})"
        raise InputError(f"--out {out}: {reason}; name a folder that can be written") from None


def hand_over(
    out: OutputWrapper, lines: Iterable[str], to: Path | None, write: Callable[[Path], None]
) -> None:
    """Print a result and `write` its files to the folder of --out, if there is one. Raises
    CommandError where either fails, but not before it is printed: it took long to make."""
    unwritten = ""
    if to is not None:
        try:
            write(to)
        except OSError as error:
            unwritten = f"--out {to}: {error.strerror}; not all files are there"
    print_lines(out, lines)
    if unwritten:
        raise CommandError(unwritten)


def print_lines(out: OutputWrapper, lines: Iterable[str]) -> None:
    """Print a result; raises CommandError where standard output takes no more of it, and ends
    without a word where its reader has gone."""
    if sys.stdout is None:
        raise CommandError("standard output: is closed")
    try:
        for line in lines:
            out.write(line)
        out.flush()
    except OSError as error:
        # What is still buffered would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        raise CommandError(f"standard output: {error.strerror}") from None
