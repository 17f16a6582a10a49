"""Many rows written by one statement."""

import json
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.models import AutoField, Model
from psycopg.types.json import Jsonb

Statement = tuple[str, list[Any]]  # SQL and its parameters
FEW = 32  # rows that PostgreSQL is told as JSON: each parameter costs more than what it says


class Write(Protocol):
    """Rows of one table that are to be written; its length is how many."""

    def __len__(self) -> int: ...

    def statement(self, where: str = "") -> Statement:
        """What writes them on PostgreSQL; `where`: a condition, "" = in any case."""

    def write(self) -> None:
        """Write them. To be called in a transaction."""


def write_together(*writes: Write) -> None:
    """Write all of these: on PostgreSQL by one statement, elsewhere by one for each, in their
    order. None may change a row that another one writes. To be called in a transaction."""
    filled = [one for one in writes if len(one)]
    if connection.vendor != "postgresql" or len(filled) < 2:
        for one in filled:
            one.write()
        return
    *others, (last, more) = [one.statement() for one in filled]
    parts, params = parts_of(others)
    with connection.cursor() as cursor:
        cursor.execute(f"WITH {parts} {last}", [*params, *more])


def parts_of(statements: Sequence[Statement]) -> Statement:
    """Statements as parts of one that follows them."""
    parts = ", ".join(f"t{number} AS ({sql})" for number, (sql, _) in enumerate(statements))
    return parts, [value for _, values in statements for value in values]


# --- new rows -------------------------------------------------------------------------------------
class TableSql(NamedTuple):
    """How rows of a table are written, worked out once. `insert`: SQL up to the values.
    `insert_json`: SQL of one parameter, a list of objects."""

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


def _array(field: Any) -> str:
    """SQL for an array of values of a column, on PostgreSQL, as a parameter."""
    kind = str(field.rel_db_type(connection) if field.primary_key else field.db_type(connection))
    # A cast to a shorter text would cut it off, where the column refuses it.
    return f"%s::{'text' if kind.startswith('varchar') else kind}[]"


class Rows:
    """New rows of one table, written by one statement however many they are: on PostgreSQL from an
    array for each column in which they differ, elsewhere by an INSERT that is prepared once.

    Most rows of many are almost equal. `bulk_create` prepares every column of every row anew; here
    a row is prepared once, and of its copies only what differs.
    """

    def __init__(
        self,
        model: type[Model],
        *,
        with_ids: bool = False,
        over: Sequence[str] = (),
        changes: Sequence[str] = (),
    ) -> None:
        """`with_ids`: the rows bring their ids along (`new_ids`), the table gives them none.
        `over`: of a row that is there with the same in these columns, `changes` are changed."""
        self._sql = _sql(model, with_ids)
        self._over = f" ON CONFLICT ({', '.join(over)}) DO UPDATE SET " if over else ""
        quoted = map(connection.ops.quote_name, changes)
        self._over += ", ".join(f"{column} = EXCLUDED.{column}" for column in quoted)
        self._rows: list[list[Any]] = []
        # The proxy that Django names `connection` looks it up again for each attribute.
        self._here = connections[DEFAULT_DB_ALIAS]

    def __len__(self) -> int:
        return len(self._rows)

    def prepare(self, row: Model) -> list[Any]:
        """The columns of an unsaved row, as the database takes them."""
        return [f.get_db_prep_save(getattr(row, f.attname), self._here) for f in self._sql.fields]

    def add(self, prepared: Sequence[Any], **changes: Any) -> list[Any]:
        """Add a copy of a prepared row with other values, by attribute; returns it."""
        row = list(prepared)
        self.change(row, **changes)
        self._rows.append(row)
        return row

    def change(self, row: list[Any], **changes: Any) -> None:
        """Give a row that was added other values, by attribute."""
        for name, value in changes.items():
            place = self._sql.places[name]
            row[place] = self._sql.fields[place].get_db_prep_save(value, self._here)

    def write(self) -> None:
        """Insert all that were added. To be called in a transaction."""
        if not self._rows:
            return
        with self._here.cursor() as cursor:
            if self._here.vendor == "postgresql":
                cursor.execute(*self.statement())
            else:
                rows, self._rows = self._rows, []
                cursor.executemany(self._sql.insert + self._over, rows)

    def statement(self, where: str = "") -> Statement:
        """What inserts all that were added, on PostgreSQL."""
        sql, rows, self._rows = self._sql, self._rows, []
        end = (f" WHERE {where}" if where else "") + self._over
        if len(rows) <= FEW:
            objects = [dict(zip(sql.columns, row, strict=True)) for row in rows]
            return sql.insert_json + end, [json.dumps(objects, default=_plain)]
        told, alike, names, arrays, apart = [], list[Any](), list[str](), list[str](), list[Any]()
        for field, values in zip(sql.fields, zip(*rows, strict=True), strict=True):
            first = values[0]
            if all(value is first or value == first for value in values):
                told.append("%s")
                alike.append(first)
            else:
                column = connection.ops.quote_name(str(field.column))
                told.append(f"new.{column}")
                names.append(column)
                arrays.append(_array(field))
                apart.append(list(values))
        source = f"generate_series(1, {len(rows)})"
        if arrays:
            source = f"unnest({', '.join(arrays)}) AS new({', '.join(names)})"
        select = f"SELECT {', '.join(told)} FROM {source}"
        return f"INSERT INTO {sql.into} {select}{end}", [*alike, *apart]


def _plain(value: Any) -> Any:
    """What is no JSON as PostgreSQL reads it in there."""
    return value.obj if isinstance(value, Jsonb) else str(value)


def insert(rows: Sequence[Model]) -> None:
    """Insert unsaved rows of one model; they do not learn their ids."""
    if rows:
        new = Rows(type(rows[0]))
        for row in rows:
            new.add(new.prepare(row))
        new.write()


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


# --- rows that are there --------------------------------------------------------------------------
class Changed:
    """New values for rows of one table, for each row its own: of `rows` each has its key and the
    values of the columns `names`. None leaves the columns `kept` as they are; the columns `once`
    are written where they are null only."""

    def __init__(
        self,
        model: type[Model],
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
        *,
        kept: Collection[str] = (),
        once: Collection[str] = (),
    ) -> None:
        self._names, self._rows, self._kept, self._once = names, rows, kept, once
        meta, quote = model._meta, connection.ops.quote_name
        known = {field.name: field for field in meta.concrete_fields}
        self._fields = [meta.pk, *(known[name] for name in names)]
        all_names = meta.db_table, *(str(field.column) for field in self._fields)
        self._table, self._key, *self._columns = (quote(name) for name in all_names)

    def __len__(self) -> int:
        return len(self._rows)

    def statement(self, where: str = "") -> Statement:
        table, key, columns = self._table, self._key, self._columns
        sets = self._sets([f"new.{column}" for column in columns])
        arrays = ", ".join(_array(field) for field in self._fields)
        new = f"unnest({arrays}) AS new({', '.join((key, *columns))})"
        same = f"{table}.{key} = new.{key}" + (f" AND {where}" if where else "")
        return f"UPDATE {table} SET {sets} FROM {new} WHERE {same}", self._values()

    def write(self) -> None:
        if not self._rows:
            return
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(*self.statement())
            else:
                sets = self._sets(["%s"] * len(self._columns))
                cursor.executemany(
                    f"UPDATE {self._table} SET {sets} WHERE {self._key} = %s",
                    [(*row[1:], row[0]) for row in zip(*self._values(), strict=True)],
                )

    def _values(self) -> list[list[Any]]:
        """By column, as the database takes them."""
        return [
            [None if v is None else field.get_db_prep_save(v, connection) for v in column]
            for field, column in zip(self._fields, zip(*self._rows, strict=True), strict=True)
        ]

    def _sets(self, new: Sequence[str]) -> str:
        told = []
        for name, column, value in zip(self._names, self._columns, new, strict=True):
            now = f"{self._table}.{column}"
            if name in self._kept:
                value = f"COALESCE({value}, {now})"
            elif name in self._once:
                value = f"COALESCE({now}, {value})"
            told.append(f"{column} = {value}")
        return ", ".join(told)
