"""Many rows written by one statement."""

from collections.abc import Sequence
from typing import Any

from django.db import connection
from django.db.models import AutoField, Model


class Rows:
    """New rows of one table, written by one statement however many they are: by COPY on PostgreSQL,
    elsewhere by an INSERT that is prepared once.

    Most rows of many are almost equal. `bulk_create` prepares every column of every row anew; here
    a row is prepared once, and of its copies only what differs.
    """

    def __init__(self, model: type[Model]) -> None:
        meta = model._meta
        self._table = meta.db_table
        self._fields = [f for f in meta.concrete_fields if not isinstance(f, AutoField)]
        self._places = {f.attname: (place, f) for place, f in enumerate(self._fields)}
        self._rows: list[list[Any]] = []

    def prepare(self, row: Model) -> list[Any]:
        """The columns of an unsaved row, as the database takes them."""
        return [f.get_db_prep_save(getattr(row, f.attname), connection) for f in self._fields]

    def add(self, prepared: Sequence[Any], **changes: Any) -> None:
        """A copy of a prepared row with other values, by attribute."""
        values = list(prepared)
        for name, value in changes.items():
            place, field = self._places[name]
            values[place] = field.get_db_prep_save(value, connection)
        self._rows.append(values)

    def write(self) -> None:
        """Insert all that were added. To be called in a transaction."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        quote = connection.ops.quote_name
        columns = ", ".join(quote(str(f.column)) for f in self._fields)
        into = f"{quote(self._table)} ({columns})"
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                with connection.wrap_database_errors, cursor.copy(f"COPY {into} FROM STDIN") as to:
                    for row in rows:
                        to.write_row(row)
            else:
                marks = ", ".join(["%s"] * len(self._fields))
                cursor.executemany(f"INSERT INTO {into} VALUES ({marks})", rows)


def insert(rows: Sequence[Model]) -> None:
    """Insert unsaved rows of one model; they do not learn their ids."""
    if rows:
        new = Rows(type(rows[0]))
        for row in rows:
            new.add(new.prepare(row))
        new.write()
