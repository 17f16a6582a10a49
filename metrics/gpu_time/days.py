"""Days in UTC."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta

ONE_DAY = timedelta(days=1)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)  # start value for “done up to this instant”


def midnight(day: date) -> datetime:
    """Return the beginning of a day."""
    return datetime.combine(day, time(), UTC)


def days_of(begin: datetime, end: datetime) -> Iterator[tuple[date, timedelta]]:
    """Yield the days of a span and the length within each; nothing if the span ends before it
    begins."""
    while begin < end:
        day = begin.date()
        until = min(midnight(day + ONE_DAY), end)
        yield day, until - begin
        begin = until


def day_by_day(begin: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Split a span into parts within single days; nothing if it ends before it begins."""
    for _, length in days_of(begin, end):
        yield begin, begin + length
        begin += length
