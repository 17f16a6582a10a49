"""Strict reading of rows: a failed conversion says line, column and what is allowed."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from scheduling.simulator.rows import filled_rows

T = TypeVar("T")

# The longest run allowed: simulated time costs samples even if nothing happens in it.
MOST_HOURS = 100_000
# More GPUs than any fleet has.
MOST_GPUS = 10_000_000


class TraceFormatError(ValueError):
    """A trace or row that cannot be read; the message says where, and what was expected."""


@dataclass(slots=True)
class BadRows:
    """What to do with wrong rows: `skip` counts them and keeps the first few messages."""

    skip: bool = False
    count: int = 0
    first: list[str] = field(default_factory=list)

    def met(self, error: TraceFormatError) -> None:
        if not self.skip:
            raise error
        self.count += 1
        if len(self.first) < 5:
            self.first.append(str(error))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table by column names; `surplus`: how many fields exceed the columns."""

    line: int
    values: Mapping[str, str]
    surplus: int = 0

    def wrong(self, column: str, expected: str) -> TraceFormatError:
        found = self.values.get(column)
        what = "is missing" if found is None else f"is {found!r}"
        return TraceFormatError(f"line {self.line}, column {column}: {what}, expected {expected}")

    def text(self, column: str, default: str | None = None) -> str:
        value = (self.values.get(column) or "").strip()
        if value:
            # Such texts can be written neither to a file nor to the database.
            if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
                raise self.wrong(column, "a text without NUL and halves of surrogate pairs")
            return value
        if default is None:
            raise self.wrong(column, "a text")
        return default

    def number(
        self,
        column: str,
        *,
        least: float = 0.0,
        most: float = math.inf,
        default: float | None = None,
        expected: str = "",
    ) -> float:
        """Return a finite number from `least` to `most`; `default` for an empty field."""
        text = (self.values.get(column) or "").strip()
        if not text and default is not None:
            return default
        expected = expected or f"a number {_range(least, most)}"
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, expected) from None
        # Python reads 1_0 as 10, and the digits of all scripts; no author of a trace means that.
        plain = "_" not in text and text.isascii()
        if not (plain and math.isfinite(value) and least <= value <= most):
            raise self.wrong(column, expected)
        return value

    def seconds(self, column: str, *, least: float = 0.0, default: float | None = None) -> float:
        """Return a length of time in seconds, at most MOST_HOURS."""
        most = 3600 * MOST_HOURS
        expected = f"seconds {_range(least, most)} ({MOST_HOURS:,} hours)"
        return self.number(column, least=least, most=most, default=default, expected=expected)

    def whole(
        self, column: str, *, least: int = 0, most: float = math.inf, default: int | None = None
    ) -> int:
        expected = f"a whole number {_range(least, most)}"
        value = self.number(column, least=least, most=most, default=default, expected=expected)
        if value != int(value):
            raise self.wrong(column, expected)
        return int(value)

    def instant(self, column: str) -> float:
        """Return seconds since the epoch, from a date and time (UTC by default) or a number."""
        text = self.text(column)
        if "-" in text[1:] and ":" in text:
            with suppress(ValueError):
                at = datetime.fromisoformat(text)
                return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        return self.number(column, expected="a time like 2020-04-01 00:00:00, or seconds")

    def choice(self, column: str, allowed: Mapping[str, T]) -> T:
        value = self.text(column)
        found = allowed.get(value.upper())
        if found is None:
            raise self.wrong(column, f"one of {', '.join(sorted(allowed))}")
        return found


def _range(least: float, most: float) -> str:
    return f"from {least:g}" if most == math.inf else f"from {least:g} to {most:,.0f}"


def table(
    lines: Iterable[str], required: Iterable[str], known: Collection[str] = ()
) -> Iterator[Row]:
    """Yield the rows of a CSV whose header line has at least the required columns.

    If `known` is given, the header may have no other columns than these.
    """
    rows = filled_rows(lines, TraceFormatError)
    line, cells = next(rows, (1, []))
    header = [c.strip() for c in cells]
    missing = [c for c in required if c not in header]
    if missing:
        found = ", ".join(header) or "none"
        raise TraceFormatError(
            f"line {line}: column {missing[0]} is missing (the header has: {found})"
        )
    if known and (unknown := [c for c in header if c not in known]):
        raise TraceFormatError(
            f"line {line}, column {unknown[0]}: is unknown; known are {', '.join(known)}"
        )
    if len(set(header)) != len(header):
        raise TraceFormatError(f"line {line}: a column name appears twice")
    for line, cells in rows:
        # A short row lacks its last columns; reading one of these names it.
        surplus = max(0, len(cells) - len(header))
        yield Row(line, dict(zip(header, cells, strict=False)), surplus)


def each(rows: Iterable[Row], read: Callable[[Row], T | None], bad: BadRows) -> Iterator[T]:
    """Convert rows; a wrong row stops the reading or is counted, as `bad` says."""
    for row in rows:
        try:
            if row.surplus:
                fields = len(row.values) + row.surplus
                raise TraceFormatError(
                    f"line {row.line}: has {fields} fields, the header has {len(row.values)}"
                )
            value = read(row)
        except TraceFormatError as error:
            bad.met(error)
            continue
        if value is not None:
            yield value
