"""Many rows written by one statement."""

import json
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.models import AutoField, Model
from psycopg.types.json import Jsonb


class TableSql(NamedTuple):
    """How rows of a table are written, worked out once. `insert`: SQL up to the values.
    `insert_json`: SQL of one parameter, a list of objects; many parameters cost more than what
    they say."""

    fields: list[Any]
    columns: list[str]
    places: dict[str, int]  # {attribute: where its column stands}
    into: str
    insert: str
    insert_json: str


@cache
def _sql(model: type[Model], with_ids: bool) -> TableSql:
    quote, meta = connection.ops.quote_name, model._meta
    fields = [f for f in meta.concrete_fields if with_ids or not isinstance(f, AutoField)]
    columns = [str(field.column) for field in fields]
    table, quoted = quote(meta.db_table), ", ".join(quote(column) for column in columns)
    into = f"{table} ({quoted})"
    return TableSql(
        fields,
        columns,
        {field.attname: place for place, field in enumerate(fields)},
        into,
        f"INSERT INTO {into} VALUES ({', '.join(['%s'] * len(fields))})",
        f"INSERT INTO {into} SELECT {quoted} FROM json_populate_recordset(NULL::{table}, %s)",
    )


class Rows:
    """New rows of one table, written by one statement however many they are: by COPY on PostgreSQL,
    elsewhere by an INSERT that is prepared once.

    Most rows of many are almost equal. `bulk_create` prepares every column of every row anew; here
    a row is prepared once, and of its copies only what differs.
    """

    def __init__(self, model: type[Model], *, with_ids: bool = False) -> None:
        """`with_ids`: the rows bring their ids along (`new_ids`), the table gives them none."""
        self._sql = _sql(model, with_ids)
        self._rows: list[list[Any]] = []
        # The proxy that Django names `connection` looks it up again for each attribute.
        self._here = connections[DEFAULT_DB_ALIAS]

    def __len__(self) -> int:
        return len(self._rows)

    def prepare(self, row: Model) -> list[Any]:
        """The columns of an unsaved row, as the database takes them."""
        return [f.get_db_prep_save(getattr(row, f.attname), self._here) for f in self._sql.fields]

    def add(self, prepared: Sequence[Any], **changes: Any) -> None:
        """A copy of a prepared row with other values, by attribute."""
        values = list(prepared)
        for name, value in changes.items():
            place = self._sql.places[name]
            values[place] = self._sql.fields[place].get_db_prep_save(value, self._here)
        self._rows.append(values)

    def write(self) -> None:
        """Insert all that were added. To be called in a transaction."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        with self._here.cursor() as cursor:
            if self._here.vendor == "postgresql":
                sql = f"COPY {self._sql.into} FROM STDIN"
                with self._here.wrap_database_errors, cursor.copy(sql) as to:
                    for row in rows:
                        to.write_row(row)
            else:
                cursor.executemany(self._sql.insert, rows)

    def taken_as_json(self) -> tuple[str, str]:
        """SQL that inserts all that were added, on PostgreSQL, and its parameter."""
        rows, self._rows = self._rows, []
        objects = [dict(zip(self._sql.columns, row, strict=True)) for row in rows]
        return self._sql.insert_json, json.dumps(objects, default=_plain)


# More rows than that cost less by COPY, which is a statement for each table.
FEW = 32


def write_together(*tables: Rows) -> None:
    """Insert all that were added to these tables: few rows by one statement on PostgreSQL, else as
    `Rows.write`. To be called in a transaction."""
    filled = [table for table in tables if len(table)]
    if connection.vendor != "postgresql" or not 0 < sum(map(len, filled)) <= FEW:
        for table in filled:
            table.write()
        return
    *others, (last, _) = inserts = [table.taken_as_json() for table in filled]
    first = ", ".join(f"t{number} AS ({sql})" for number, (sql, _) in enumerate(others))
    with connection.cursor() as cursor:
        cursor.execute(f"WITH {first} {last}" if first else last, [told for _, told in inserts])


def _plain(value: Any) -> Any:
    """What is no JSON as PostgreSQL reads it in there."""
    return value.obj if isinstance(value, Jsonb) else str(value)


def new_ids(*wanted: tuple[type[Model], int]) -> list[list[int]]:
    """Ids for so many new rows of each of these tables, which count them. To be called in a
    transaction that has written before: on SQLite it must have its turn, so that nobody else is
    given the same."""
    found: list[list[int]] = [[] for _ in wanted]
    asked = [(place, model._meta, count) for place, (model, count) in enumerate(wanted) if count]
    if not asked:
        return found
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            one = "SELECT %s, nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)"
            params: list[Any] = []
            for place, meta, count in asked:
                table = connection.ops.quote_name(meta.db_table)
                params += [place, table, str(meta.pk.column), count]
            cursor.execute(" UNION ALL ".join([one] * len(asked)), params)
            for place, row_id in cursor.fetchall():
                found[place].append(row_id)
            return found
        marks = ", ".join(["%s"] * len(asked))
        names = [meta.db_table for _, meta, _ in asked]
        cursor.execute(f"SELECT name, seq FROM sqlite_sequence WHERE name IN ({marks})", names)
        last = dict(cursor.fetchall())
    for place, meta, count in asked:
        first = 1 + last.get(meta.db_table, 0)
        found[place] = list(range(first, first + count))
    return found


def update(
    model: type[Model],
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    kept: Collection[str] = (),
    once: Collection[str] = (),
) -> None:
    """Give each row values of its own, by one statement: of `rows` each has its key and the values
    of the columns `names`. None leaves the columns `kept` as they are; the columns `once` are
    written where they are null only."""
    if not rows:
        return
    meta, quote = model._meta, connection.ops.quote_name
    known = {field.name: field for field in meta.concrete_fields}
    fields = [meta.pk, *(known[name] for name in names)]
    table, key, *columns = (quote(n) for n in (meta.db_table, *(str(f.column) for f in fields)))
    values = [
        [None if value is None else field.get_db_prep_save(value, connection) for value in column]
        for field, column in zip(fields, zip(*rows, strict=True), strict=True)
    ]

    def sets(new: Sequence[str]) -> str:
        told = []
        for name, column, value in zip(names, columns, new, strict=True):
            now = f"{table}.{column}"
            if name in kept:
                value = f"COALESCE({value}, {now})"
            elif name in once:
                value = f"COALESCE({now}, {value})"
            told.append(f"{column} = {value}")
        return ", ".join(told)

    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            types = [meta.pk.rel_db_type(connection), *(f.db_type(connection) for f in fields[1:])]
            arrays = ", ".join(f"%s::{kind}[]" for kind in types)
            cursor.execute(
                f"UPDATE {table} SET {sets([f'new.{column}' for column in columns])} "
                f"FROM unnest({arrays}) AS new({', '.join((key, *columns))}) "
                f"WHERE {table}.{key} = new.{key}",
                values,
            )
        else:
            cursor.executemany(
                f"UPDATE {table} SET {sets(['%s'] * len(columns))} WHERE {key} = %s",
                [(*row[1:], row[0]) for row in zip(*values, strict=True)],
            )


def insert(rows: Sequence[Model], ids: Sequence[int] | None = None) -> None:
    """Insert unsaved rows of one model, with these ids, or else with such as they do not learn."""
    if rows:
        new = Rows(type(rows[0]), with_ids=ids is not None)
        for number, row in enumerate(rows):
            new.add(new.prepare(row), **({} if ids is None else {"id": ids[number]}))
        new.write()
