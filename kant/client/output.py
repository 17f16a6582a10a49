"""Output of commands: tables for people, one JSON document for programs."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any


def document(value: Any) -> None:
    """Print one JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    print()


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print a table with fitting column widths, numbers right-aligned; `empty` goes to stderr."""
    texts = [[_text(cell) for cell in row] for row in rows]
    if not texts:
        note(empty)
        return
    widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    right = [all(_is_number(row[at]) for row in texts) for at in range(len(heads))]
    for row in [list(heads), *texts]:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        print("  ".join(cells).rstrip())


def csv_of(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows as CSV for spreadsheets, with no cell that could be read as a formula."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([plain_cell(row[name]) for name in columns])


# Same rules as in the server's files (tenants/web/csv_files.py), which the client cannot import.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def plain_cell(value: object) -> object:
    """Return a list as one text, and put an apostrophe before text that looks like a formula.

    Numbers written as text stay unchanged.
    """
    if isinstance(value, list):
        value = "; ".join(map(str, value))
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def listed(
    form: str,
    found: list[dict[str, Any]],
    heads: Sequence[str],
    row: Callable[[dict[str, Any]], Sequence[object]],
    empty: str,
) -> None:
    """Print a list as `form` says: one JSON document, or a table of `row`s."""
    if form == "json":
        document(found)
    else:
        table(heads, map(row, found), empty)


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Print a name and its value per line; leave out what has no value."""
    shown = [(name, _text(value)) for name, value in rows if value not in (None, "", [])]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name.ljust(width)}  {value}")


def note(text: str) -> None:
    """Print a note on stderr, beside the answer."""
    print(text, file=sys.stderr)


def short(job_id: str) -> str:
    """Return the beginning of an id, which every command accepts."""
    return job_id[:8]


def value(thing: object) -> object:
    """Return a value for display: "a=1, b=2" for an object, "yes" and "no" for flags."""
    if isinstance(thing, dict):
        return ", ".join(f"{name}={each}" for name, each in thing.items())
    if isinstance(thing, bool):
        return "yes" if thing else "no"
    return thing


def number(value: float | None) -> str:
    """Return a number as "8" or "0.5"; "-" for None."""
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def when(text: str | None) -> str:
    """Return a time in the reader's time zone; "" for None."""
    if text is None:
        return ""
    return _moment(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(text: str | None) -> str:
    """Return how long ago a time was, in its largest unit."""
    if text is None:
        return ""
    return duration((datetime.now(timezone.utc) - _moment(text)).total_seconds())


def duration(seconds: float) -> str:
    """Return "42 s", "17 min", "5 h" or "3 d"."""
    seconds = max(0.0, seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _text(cell: object) -> str:
    if isinstance(cell, (list, tuple)):
        return ", ".join(map(str, cell))
    if isinstance(cell, float):
        return number(cell)
    return "" if cell is None else str(cell)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit() or text in ("", "-")
