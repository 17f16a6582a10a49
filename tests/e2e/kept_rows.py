"""Rewrite the rows of a scene for each test, in a small part of the time that playing it takes."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import chain, zip_longest
from typing import NamedTuple

from django.db import connection
from django.utils import timezone

ROWS_A_STATEMENT = 500
TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)")


class Statement:
    """An INSERT, with the positions of its times found once."""

    def __init__(self, text: str) -> None:
        self._words = TIME.split(text)  # every second one is a time
        self._times = [
            (datetime.fromisoformat(word), word[10], "auto" if "." in word else "seconds")
            for word in self._words[1::2]
        ]

    def later(self, by: timedelta) -> str:
        """Return the statement with all times shifted by the same amount."""
        moved = ((at + by).isoformat(mark, spec) for at, mark, spec in self._times)
        return "".join(chain.from_iterable(zip_longest(self._words[::2], moved, fillvalue="")))


class KeptScene(NamedTuple):
    at: datetime
    statements: list[Statement]


_KEPT: dict[Callable[[], None], KeptScene] = {}


def write(scene: Callable[[], None]) -> None:
    """Bring the database to its state after `scene()`, which runs once per process. Later calls
    rewrite its rows, with all times shifted by the same amount. Only SQLite can dump rows as
    SQL; on other databases each test plays the scene."""
    if connection.vendor != "sqlite":
        scene()
        return
    if scene in _KEPT:
        kept, now = _KEPT[scene], timezone.now()
        with connection.cursor() as cursor:
            for statement in kept.statements:
                cursor.execute(statement.later(now - kept.at))
        return
    before = {table: _rows(table) for table in _tables()}
    scene()
    # The scene's times precede its end: rewritten rows must not lie in the future.
    _KEPT[scene] = KeptScene(
        timezone.now(),
        [Statement(text) for table, rows in before.items() for text in _statements(table, rows)],
    )


def _tables() -> list[str]:
    return connection.introspection.table_names()


def _rows(table: str) -> list[str]:
    """Yield each row of a table as the values of an INSERT."""
    with connection.cursor() as cursor:
        columns = [c.name for c in connection.introspection.get_table_description(cursor, table)]
        values = " || ', ' || ".join(f'quote("{name}")' for name in columns)
        return [row for (row,) in cursor.execute(f'SELECT {values} FROM "{table}" ORDER BY rowid')]


def _statements(table: str, before: list[str]) -> list[str]:
    rows = _rows(table)
    assert rows[: len(before)] == before, f"the scene changed rows of {table} that were there"
    new = rows[len(before) :]
    return [
        f'INSERT INTO "{table}" VALUES ({"), (".join(new[at : at + ROWS_A_STATEMENT])})'
        for at in range(0, len(new), ROWS_A_STATEMENT)
    ]
