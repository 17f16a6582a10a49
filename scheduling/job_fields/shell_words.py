"""The words of a shell script and where they stand, as far as that is told without running it."""

import re
from collections.abc import Iterator
from typing import NamedTuple

# Stands for a backslash before what it guards, so that nothing moves.
_FILLER = "\0"
_WORDS = re.compile(
    r"[^\S\n]++|\\\n"
    r"|(?P<end>\n|\|\||&&|\|&|;;|[;|&()`])"
    r"|(?P<word>(?:[^\s\"'\\;|&()`]|\\[^\n]|\"(?:[^\"\\]|\\[\s\S])*+(?:\"|\Z)|'[^']*+(?:'|\Z))++)"
    r"|[\s\S]"
)
_QUOTED = re.compile(r"\\[\s\S]|\"(?P<double>(?:[^\"\\]|\\[\s\S])*+)\"?|'(?P<single>[^']*+)'?")
_GUARDED = re.compile(r"\\([\"\\$`])")


class Word(NamedTuple):
    """A word, without quotes around all of it; `begin`: where it stands in the script. `ends`: it
    is what ends a command; `within`: of the same length, where it has blanks in quotes: what they
    hold, which may be a script."""

    text: str
    begin: int
    ends: bool = False
    within: str = ""


def words_of(text: str) -> Iterator[Word]:
    for match in _WORDS.finditer(text):
        if match["end"]:
            yield Word(match[0], match.start(), ends=True)
        elif raw := match["word"]:
            yield _word(raw, match.start())


def _word(raw: str, at: int) -> Word:
    within = ""
    if any(each in raw for each in " \t\n"):
        within = _QUOTED.sub(_opened, raw)
    lead = len(raw) - len(raw.lstrip(_FILLER))
    lead += raw[lead : lead + 1] in ("'", '"')
    tail = lead > 0 and raw[-1] == raw[lead - 1] and len(raw) > lead
    return Word(raw[lead : len(raw) - tail], at + lead, within=within[lead:])


def _opened(match: re.Match[str]) -> str:
    """What quotes hold, with blanks in their place."""
    if match["double"] is not None:
        inner = _GUARDED.sub(rf"{_FILLER}\1", match["double"])
    elif match["single"] is not None:
        inner = match["single"]
    else:
        return match[0]
    return f" {inner}".ljust(len(match[0]))
