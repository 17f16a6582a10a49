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

    def __init__(self, model: type[Model], *, with_ids: bool = False) -> None:
        """`with_ids`: the rows bring their ids along (`new_ids`), the table gives them none."""
        meta = model._meta
        self._table = meta.db_table
        self._fields = [f for f in meta.concrete_fields if with_ids or not isinstance(f, AutoField)]
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


def new_ids(model: type[Model], count: int) -> list[int]:
    """Ids for new rows of a table that counts them. To be called in a transaction that has written
    before: on SQLite it must have its turn, so that nobody else is given the same."""
    if not count:
        return []
    table, column = model._meta.db_table, str(model._meta.pk.column)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)",
                [connection.ops.quote_name(table), column, count],
            )
            return [row[0] for row in cursor.fetchall()]
        cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
        last = cursor.fetchone()
    first = 1 + (last[0] if last else 0)
    return list(range(first, first + count))


def update(
    model: type[Model], names: Sequence[str], rows: Sequence[Sequence[Any]], *, unset: str = ""
) -> None:
    """Give each row values of its own, by one statement: of `rows` each has its key and the values
    of the columns `names`. `unset`: only rows of which this column is null."""
    if not rows:
        return
    meta, quote = model._meta, connection.ops.quote_name
    known = {field.name: field for field in meta.concrete_fields}
    fields = [meta.pk, *(known[name] for name in names)]
    table, key, *columns = (quote(n) for n in (meta.db_table, *(str(f.column) for f in fields)))
    only = f" AND {table}.{quote(unset)} IS NULL" if unset else ""
    values = [
        [field.get_db_prep_save(value, connection) for value in column]
        for field, column in zip(fields, zip(*rows, strict=True), strict=True)
    ]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            types = [meta.pk.rel_db_type(connection), *(f.db_type(connection) for f in fields[1:])]
            sets = ", ".join(f"{column} = new.{column}" for column in columns)
            arrays = ", ".join(f"%s::{kind}[]" for kind in types)
            cursor.execute(
                f"UPDATE {table} SET {sets} FROM unnest({arrays}) "
                f"AS new({', '.join((key, *columns))}) WHERE {table}.{key} = new.{key}{only}",
                values,
            )
        else:
            sets = ", ".join(f"{column} = %s" for column in columns)
            cursor.executemany(
                f"UPDATE {table} SET {sets} WHERE {key} = %s{only}",
                [(*row[1:], row[0]) for row in zip(*values, strict=True)],
            )


def insert(rows: Sequence[Model]) -> None:
    """Insert unsaved rows of one model; they do not learn their ids."""
    if rows:
        new = Rows(type(rows[0]))
        for row in rows:
            new.add(new.prepare(row))
        new.write()
