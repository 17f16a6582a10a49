"""Text files that people name: read line by line, plain or compressed, errors in one line."""

import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class InputError(ValueError):
    """A file or name that cannot be used; the message says what would do."""


_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}


def suffix_of(path: Path) -> str:
    """What kind of file it is, whether compressed or not."""
    return (path.with_suffix("") if path.suffix in _OPENERS else path).suffix


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain, .gz or .xz, without a byte order mark; raises
    InputError.

    What is not UTF-8 is replaced where a line begins with ";": the comments of old logs are in
    whatever encoding their authors had.
    """
    opener = _OPENERS.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            for number, line in enumerate(file, start=1):
                yield line if line.isascii() else _checked(line, f"{path}: line {number}")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None


def _checked(line: str, where: str) -> str:
    """The line, unless bytes of it are not UTF-8."""
    try:
        line.encode()
    except UnicodeEncodeError:
        if line.startswith(";"):
            return line.encode(errors="surrogateescape").decode(errors="replace")
        raise InputError(f"{where}: cannot be read as text (it is not UTF-8)") from None
    return line
