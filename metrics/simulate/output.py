"""Where a command's results go: standard output, and the folder of --out."""

import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from pathlib import Path

from django.core.management.base import CommandError, OutputWrapper

from metrics.simulate.inputs import InputError


def folder(text: str) -> Path:
    """Return the folder that --out names; an argparse type."""
    if not text:
        raise ArgumentTypeError("must name a folder")
    return Path(text)


def make_folder(out: Path) -> None:
    """Create the folder before there is anything to lose; raise InputError if that fails."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "is a file" if out.is_file() else f"cannot be made ({error.strerror})"
        raise InputError(f"--out {out}: {reason}; name a folder that can be written") from None


def hand_over(
    out: OutputWrapper, lines: Iterable[str], to: Path | None, write: Callable[[Path], None]
) -> None:
    """Print a result, and `write` its files to the folder of --out, if any.

    Raises CommandError if either fails. A failed write is reported only after printing, because the
    result took long to compute.
    """
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
    """Print a result. Raises CommandError when writing to standard output fails; exits silently
    when its reader has gone."""
    if sys.stdout is None:
        raise CommandError("standard output: is closed")
    try:
        for line in lines:
            out.write(line)
        out.flush()
    except OSError as error:
        # Otherwise the buffered rest would fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        raise CommandError(f"standard output: {error.strerror}") from None
