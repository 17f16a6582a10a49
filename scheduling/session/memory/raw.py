"""Rows as the database gives them: without model instances, and equal values are read once.

A scheduler reads thousands of rows that others wrote, most of them almost equal. A model instance
costs many times as much as its columns.
"""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from scheduling.models.shaped import ShapedField, Unreadable

RawRow = tuple[Any, ...]


class RawRows:
    """The rows of a query that selects whole rows of a model."""

    def __init__(self, query: QuerySet[Any]) -> None:
        compiler = query.query.get_compiler(connection=connection)
        sql, params = compiler.as_sql()
        # {index of a column: how to convert its values}
        self._readers = compiler.get_converters([column for column, _, _ in compiler.select])
        fields = query.model._meta.concrete_fields
        self._names = [field.attname for field in fields]
        self._shaped = [p for p, field in enumerate(fields) if isinstance(field, ShapedField)]
        self._read: dict[tuple[int, Any], Any] = {}
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
            self.rows: list[RawRow] = cursor.fetchall()

    def place(self, name: str) -> int:
        """Return the index of a column in a row."""
        return self._names.index(name)

    def places(self, *, without: Collection[str]) -> list[int]:
        return [place for place, name in enumerate(self._names) if name not in without]

    def value(self, row: RawRow, place: int) -> Any:
        """Return the value of a column. Rows share it, so nobody may change it."""
        key = place, row[place]
        if key not in self._read:
            value = row[place]
            readers, column = self._readers.get(place, ((), None))
            for read in readers:
                value = read(value, column, connection)
            self._read[key] = value
        return self._read[key]

    def columns(self, row: RawRow) -> Any:
        """Return the row with an attribute for each column, as a model instance has."""
        values = list(row)
        for place in self._readers:
            values[place] = self.value(row, place)
        return SimpleNamespace(**dict(zip(self._names, values, strict=True)))

    def is_readable(self, row: RawRow) -> bool:
        """Whether all columns of the row have the right shape."""
        return not any(isinstance(self.value(row, place), Unreadable) for place in self._shaped)
