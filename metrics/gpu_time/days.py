"""Days in UTC."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta

ONE_DAY = timedelta(days=1)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)  # of what has been done up to some instant


def midnight(day: date) -> datetime:
    """The beginning of a day."""
    return datetime.combine(day, time(), UTC)


def days_of(begin: datetime, end: datetime) -> Iterator[tuple[date, timedelta]]:
    """The days of a span, and how much of it lies in each; nothing where it ends before it
    begins."""
    while begin < end:
        day = begin.date()
        until = min(midnight(day + ONE_DAY), end)
        yield day, until - begin
        begin = until


def day_by_day(begin: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """A span in parts, each within a day; nothing where it ends before it begins."""
    for _, length in days_of(begin, end):
        yield begin, begin + length
        begin += length
