"""Times of very many rows at once, as text that numpy parses."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.db.models import CharField, Func
from numpy.typing import NDArray


class Timestamp(Func):
    """A column of times as text in UTC, which sorts as the times do.

    A datetime of each row would take longer to make than the row to read.
    """

    arity = 1
    output_field = CharField()
    template = "CAST(%(expressions)s AS text)"  # SQLite keeps it as such

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, Any]:
        # Not a cast: how that writes a time is a setting of the server.
        template = "to_char(%(expressions)s AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
        return self.as_sql(compiler, connection, template=template, **context)


def timestamp(at: datetime) -> str:
    """One time as `Timestamp` reads it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"


def seconds_between(begins: Sequence[str], ends: Sequence[str]) -> NDArray[np.float64]:
    """Seconds from each beginning to its end, to the microsecond."""
    return microseconds_between(begins, ends) / 1_000_000


def microseconds_between(begins: Sequence[str], ends: Sequence[str]) -> NDArray[np.int64]:
    """Microseconds from each beginning to its end."""
    begun = np.array(begins, dtype="datetime64[us]")
    ended = np.array(ends, dtype="datetime64[us]")
    return (ended - begun).astype(np.int64)
