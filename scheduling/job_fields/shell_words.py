"""The words of a shell script and their positions, as far as they are known without running it."""

import re
from collections.abc import Iterator
from typing import NamedTuple

# Replaces a backslash before an escaped character, so that positions stay the same.
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
    """A word, without quotes around the whole of it.

    `begin`: its position in the script. `ends`: it separates commands. `within`: if it has quoted
    blanks, the content of the quotes, which may be a script; of the same length as the word.
    """

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
    """Return the content of quotes, with blanks in place of the quotes."""
    if match["double"] is not None:
        inner = _GUARDED.sub(rf"{_FILLER}\1", match["double"])
    elif match["single"] is not None:
        inner = match["single"]
    else:
        return match[0]
    return f" {inner}".ljust(len(match[0]))
