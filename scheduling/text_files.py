"""Text files that people name: read line by line, plain or compressed; errors fit on one line."""

import gzip
import lzma
import zlib
from collections.abc import Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import yaml


class InputError(ValueError):
    """A file or name cannot be used; the message says what would work."""


class NamedTwice(InputError):
    """A mapping has a name twice, so it is unclear which value is meant."""

    def __init__(self, line: int, name: str) -> None:
        super().__init__(f"line {line}: the name {name[:60]!r} appears twice; keep one")
        self.line, self.name = line, name


# Longer lines do not occur in traces, logs or inventories.
MOST_OF_A_LINE = 1 << 20
# What an archive may unpack to: this many characters, or this many per byte if that is more. Traces
# compress to about a tenth; files made to fill memory compress to a thousandth.
MOST_UNPACKED, MOST_A_BYTE = 256 << 20, 100
# A document, unlike a trace, is read whole.
MOST_OF_A_DOCUMENT = 16 << 20
# Nodes of a YAML document, counting each alias as often as it is used.
MOST_NODES = 1_000_000
# Characters read at once: looping over the lines of a long document costs seconds.
_PIECE = 1 << 16

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}


def suffix_of(path: Path) -> str:
    """Return the suffix that says what the file contains, without that of its compression."""
    return (path.with_suffix("") if path.suffix in _OPENERS else path).suffix


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, plain, .gz or .xz, without a byte order mark.

    Raises InputError, also for a file that is too long. Bytes that are not UTF-8 are replaced in
    lines that begin with ";": comments in old logs are in whatever encoding their authors used.
    """
    for piece in _pieces(path):
        yield from StringIO(piece, newline="")


def text_of(path: Path) -> str:
    """Return a whole text file, at most MOST_OF_A_DOCUMENT characters. Raises InputError."""
    text, left = StringIO(newline=""), MOST_OF_A_DOCUMENT
    for piece in _pieces(path):
        left -= len(piece)
        if left < 0:
            raise InputError(f"{path}: has more than {MOST_OF_A_DOCUMENT:,} characters")
        text.write(piece)
    return text.getvalue()


def _pieces(path: Path) -> Iterator[str]:
    """Yield the text in pieces of whole lines, checked as in `lines_of`.

    Correct text comes in long pieces; where there may be an error, it comes line by line up to
    that.
    """
    opener = _OPENERS.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            left = max(MOST_UNPACKED, MOST_A_BYTE * path.stat().st_size)
            number = 0
            for start in iter(partial(file.read, _PIECE), ""):
                piece = start + file.readline(MOST_OF_A_LINE + 1)
                if len(piece) <= min(left, MOST_OF_A_LINE) and _is_utf8(piece):
                    yield piece
                    left -= len(piece)
                    number += _line_ends(piece)
                    continue
                for line in StringIO(piece, newline=""):
                    left -= len(line)
                    number += 1
                    if len(line) > MOST_OF_A_LINE:
                        raise InputError(
                            f"{path}: line {number} has more than {MOST_OF_A_LINE:,} characters"
                        )
                    if left < 0:
                        raise InputError(
                            f"{path}: line {number}: it unpacks to more than {MOST_A_BYTE} times "
                            "its size; unpack it first if that is right"
                        )
                    yield _checked(line, f"{path}: line {number}")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None


def yaml_of(text: str) -> Any:
    """Return the value of a YAML document.

    Raises InputError if its aliases expand it beyond MOST_NODES or form a cycle, or if a scalar is
    not a value of its kind (2026-13-01); NamedTwice; yaml.YAMLError; RecursionError.
    """
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _nodes(root, {}) > MOST_NODES:
            raise InputError(f"its aliases make it more than {MOST_NODES:,} values")
        return loader.construct_document(root)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"a value cannot be read ({str(error).partition(';')[0]})") from None
    finally:
        loader.dispose()


def _nodes(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of nodes in a node, itself included, with aliases expanded.

    `known`: counts by identity, 0 = the node is still being counted.
    """
    found = known.get(id(node))
    if found == 0:
        raise InputError("an alias leads back to where it stands")
    if found is None:
        known[id(node)] = 0
        match node:
            case yaml.MappingNode():
                _refuse_twice(node)
                found = 1 + sum(_nodes(k, known) + _nodes(v, known) for k, v in node.value)
            case yaml.SequenceNode():
                found = 1 + sum(_nodes(each, known) for each in node.value)
            case _:
                found = 1
        known[id(node)] = found
    return found


def _refuse_twice(node: yaml.MappingNode) -> None:
    names: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in names:
                raise NamedTwice(key.start_mark.line + 1, key.value)
            names.add(key.value)


def _line_ends(piece: str) -> int:
    return piece.count("\n") + piece.count("\r") - piece.count("\r\n")


def _is_utf8(text: str) -> bool:
    """Whether no character of the text stands for bytes that are not UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked(line: str, where: str) -> str:
    """Return the line; raises InputError for bytes that are not UTF-8, except in comments."""
    if _is_utf8(line):
        return line
    if line.startswith(";"):
        return line.encode(errors="surrogateescape").decode(errors="replace")
    raise InputError(f"{where}: cannot be read as text (it is not UTF-8)")
