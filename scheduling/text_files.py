"""Text files that people name: read line by line, plain or compressed, errors in one line."""

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
    """A file or name that cannot be used; the message says what would do."""


class NamedTwice(InputError):
    """A mapping has a name twice: nobody knows which value is meant."""

    def __init__(self, line: int, name: str) -> None:
        super().__init__(f"line {line}: the name {name[:60]!r} stands twice; keep one")
        self.line, self.name = line, name


# A line that is longer is none of a trace, a log or an inventory.
MOST_OF_A_LINE = 1 << 20
# What an archive may unpack to: so many characters in any case, or so many a byte of it. Traces
# compress to a tenth or so; what is made to fill memory, to a thousandth.
MOST_UNPACKED, MOST_A_BYTE = 256 << 20, 100
# A document, as against a trace, is read as a whole.
MOST_OF_A_DOCUMENT = 16 << 20
# Of a YAML document, with every alias as many times as it is named.
MOST_NODES = 1_000_000
# Characters that are read at once: a loop over the lines of a long document costs seconds.
_PIECE = 1 << 16

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}


def suffix_of(path: Path) -> str:
    """What kind of file it is, whether compressed or not."""
    return (path.with_suffix("") if path.suffix in _OPENERS else path).suffix


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain, .gz or .xz, without a byte order mark; raises
    InputError, also for what is too long to be such a file.

    What is not UTF-8 is replaced where a line begins with ";": the comments of old logs are in
    whatever encoding their authors had.
    """
    for piece in _pieces(path):
        yield from StringIO(piece, newline="")


def text_of(path: Path) -> str:
    """A whole text file, at most MOST_OF_A_DOCUMENT characters; raises InputError."""
    text, left = StringIO(newline=""), MOST_OF_A_DOCUMENT
    for piece in _pieces(path):
        left -= len(piece)
        if left < 0:
            raise InputError(f"{path}: has more than {MOST_OF_A_DOCUMENT:,} characters")
        text.write(piece)
    return text.getvalue()


def _pieces(path: Path) -> Iterator[str]:
    """The text in pieces of whole lines, as `lines_of` has them: long pieces where nothing is
    wrong, and where something may be, line by line up to the error."""
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
    """The value of a YAML document. Raises InputError where its aliases make more of it than
    MOST_NODES, or lead back into themselves, or a scalar is no value of its kind (2026-13-01),
    NamedTwice; yaml.YAMLError; RecursionError."""
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
    """How many nodes there are in one, itself included, aliases followed. `known`: by identity, 0
    = the node is one of those that lead here."""
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
    """Whether none of it stands for bytes that are not UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked(line: str, where: str) -> str:
    """The line, unless bytes of it are not UTF-8."""
    if _is_utf8(line):
        return line
    if line.startswith(";"):
        return line.encode(errors="surrogateescape").decode(errors="replace")
    raise InputError(f"{where}: cannot be read as text (it is not UTF-8)")
