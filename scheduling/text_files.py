"""Text files that people name: read line by line, plain or compressed, errors in one line."""

import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class InputError(ValueError):
    """A file or name that cannot be used; the message says what would do."""


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file, plain, .gz or .xz; raises InputError."""
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as lines:
            yield from lines
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None
