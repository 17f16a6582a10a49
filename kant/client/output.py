"""What commands print: tables for people, one JSON document for programs."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any


def document(value: Any) -> None:
    """One JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    print()


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Columns as wide as they need; numbers to the right. `empty` is said on stderr."""
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
    """Rows for spreadsheets, which take no cell for a formula."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([plain_cell(row[name]) for name in columns])


# The rules of the server's files (tenants/web/csv_files.py), which the client cannot import.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def plain_cell(value: object) -> object:
    """A list as one text; a text that spreadsheets take for a formula behind an apostrophe, but for
    numbers written as texts."""
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
    """A list as `form` says: one JSON document, or a table of `row`s."""
    if form == "json":
        document(found)
    else:
        table(heads, map(row, found), empty)


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """A name and its value on each line; nothing for what is not there."""
    shown = [(name, _text(value)) for name, value in rows if value not in (None, "", [])]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name.ljust(width)}  {value}")


def note(text: str) -> None:
    """Something beside the answer."""
    print(text, file=sys.stderr)


def short(job_id: str) -> str:
    """The beginning of an id, as every command takes it."""
    return job_id[:8]


def value(thing: object) -> object:
    """What stands behind a name: "a=1, b=2" for an object, "yes" and "no" for flags."""
    if isinstance(thing, dict):
        return ", ".join(f"{name}={each}" for name, each in thing.items())
    if isinstance(thing, bool):
        return "yes" if thing else "no"
    return thing


def number(value: float | None) -> str:
    """ "8" and "0.5"; "-" for none."""
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def when(text: str | None) -> str:
    """A time in the zone of whoever reads it; "" for none."""
    if text is None:
        return ""
    return _moment(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(text: str | None) -> str:
    """How long ago, in its largest unit."""
    if text is None:
        return ""
    return duration((datetime.now(timezone.utc) - _moment(text)).total_seconds())


def duration(seconds: float) -> str:
    """ "42 s", "17 min", "5 h", "3 d"."""
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
