"""Times of very many rows at once, as text that numpy parses."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.db.models import CharField, Func
from numpy.typing import NDArray


class Timestamp(Func):
    """A column of times as text in UTC; the text sorts as the times do.

    Creating a datetime for each row would take longer than reading the row.
    """

    arity = 1
    output_field = CharField()
    template = "CAST(%(expressions)s AS text)"  # SQLite stores it in this form

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, Any]:
        # Not a cast: a server setting decides how a cast writes a time.
        template = "to_char(%(expressions)s AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
        return self.as_sql(compiler, connection, template=template, **context)


def timestamp(at: datetime) -> str:
    """Write one time as `Timestamp` reads it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"


def seconds_between(begins: Sequence[str], ends: Sequence[str]) -> NDArray[np.float64]:
    """Return the seconds from each beginning to its end, to the microsecond."""
    return microseconds_between(begins, ends) / 1_000_000


def microseconds_between(begins: Sequence[str], ends: Sequence[str]) -> NDArray[np.int64]:
    """Return the microseconds from each beginning to its end."""
    begun = np.array(begins, dtype="datetime64[us]")
    ended = np.array(ends, dtype="datetime64[us]")
    return (ended - begun).astype(np.int64)
