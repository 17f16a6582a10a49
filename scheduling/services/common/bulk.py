"""Write many rows by one statement."""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, DataError, connection, connections, models
from django.db.backends.utils import CursorWrapper
from django.db.models import AutoField, JSONField, Model
from psycopg.types.json import Jsonb

from tenants.database import planned

Statement = tuple[str, list[Any]]  # SQL and its parameters
FEW = 32  # up to this many rows go to PostgreSQL as JSON: a parameter costs more than its content
# By kind of column, the Python types that need no conversion: Django would look at each value in
# vain.
_TAKEN: dict[type, tuple[type, ...]] = {
    models.BooleanField: (bool,),
    models.CharField: (str,),
    models.TextField: (str,),
    models.FloatField: (float,),
    models.IntegerField: (int,),
    models.PositiveIntegerField: (int,),
    models.PositiveSmallIntegerField: (int,),
    models.BigIntegerField: (int,),
    models.PositiveBigIntegerField: (int,),
    models.BigAutoField: (int,),
}
_TAKEN_BY_POSTGRES = _TAKEN | {models.UUIDField: (UUID, str), models.DateTimeField: (datetime,)}
# Types whose str() PostgreSQL can read, whatever the column.
_WORDS = frozenset({bool, datetime, float, int, str, UUID})
_BETWEEN = "\0"  # not allowed in any text


class Write(Protocol):
    """Rows of one table to be written; its length is their number."""

    def __len__(self) -> int: ...

    def statement(self, where: str = "") -> Statement:
        """Return the PostgreSQL statement that writes them. `where`: a condition, "" = none."""

    def write(self) -> None:
        """Write them. Must be called in a transaction."""


def write_together(*writes: Write) -> None:
    """Write all of these: by one statement on PostgreSQL, elsewhere one by one in their order.

    None may change a row that another one writes. Must be called in a transaction.
    """
    filled = [one for one in writes if len(one)]
    if connection.vendor != "postgresql" or len(filled) < 2:
        for one in filled:
            one.write()
        return
    asked = cursor_for(filled)
    *others, (last, more) = [one.statement() for one in filled]
    parts, params = parts_of(others)
    with asked as cursor:
        cursor.execute(f"WITH {parts} {last}", [*params, *more])


def cursor_for(writes: Sequence[Write]) -> CursorWrapper:
    """Return a cursor for their statements; those of few rows repeat, so they are prepared."""
    few = all(len(one) <= FEW for one in writes)
    return planned.cursor() if few else connection.cursor()


def parts_of(statements: Sequence[Statement]) -> Statement:
    """Return statements as parts of one that follows them."""
    parts = ", ".join(f"t{number} AS ({sql})" for number, (sql, _) in enumerate(statements))
    return parts, [value for _, values in statements for value in values]


# --- new rows -------------------------------------------------------------------------------------
class TableSql(NamedTuple):
    """The SQL that writes rows of a table, worked out once.

    `insert`: SQL up to the values. `insert_json`: SQL with one parameter, a list of objects.
    """

    fields: list[Any]
    columns: list[str]
    places: dict[str, int]  # {attribute: index of its column}
    taken: list[tuple[type, ...]]  # types that need no conversion, by column
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
        [_taken(field) for field in fields],
        into,
        f"INSERT INTO {into} VALUES ({', '.join(['%s'] * len(fields))})",
        f"INSERT INTO {into} SELECT {quoted} FROM json_populate_recordset(NULL::{table}, %s)",
    )


@cache
def _taken(field: Any) -> tuple[type, ...]:
    """Return the types that the column takes without conversion."""
    while field.remote_field is not None:
        field = field.target_field
    known = _TAKEN_BY_POSTGRES if connection.vendor == "postgresql" else _TAKEN
    return known.get(type(field), ())


@cache
def _kind(field: Any) -> str:
    """Return the column's PostgreSQL type, to be given with a parameter."""
    kind = str(field.rel_db_type(connection) if field.primary_key else field.db_type(connection))
    # A cast to a varchar would cut a longer text off; the column itself refuses it.
    return "text" if kind.startswith("varchar") else kind


def _array(values: Sequence[Any]) -> Any:
    """Return the values of a column as one parameter for `_kind[]`.

    psycopg looks up how to write each value, which takes ten times as long.
    """
    if None in values or not _WORDS.issuperset(map(type, values)):
        return list(values)
    text = _BETWEEN.join(map(str, values))
    if text.count(_BETWEEN) >= len(values):
        raise DataError("a text has a NUL character, which PostgreSQL does not keep")
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return '{"' + text.replace(_BETWEEN, '","') + '"}'


def _json(value: Any) -> Any:
    """Return a value of a JSON column as text; None = null."""
    if not isinstance(value, Jsonb):
        return value
    of = value.obj
    return str(of) if of == [] or of == {} else (value.dumps or json.dumps)(of)


class Rows:
    """New rows of one table, written by one statement however many they are.

    On PostgreSQL they go as one array for each column in which they differ, elsewhere by an INSERT
    that is prepared once. Most rows are almost equal. `bulk_create` prepares every column of every
    row; here one row is prepared, and of its copies only what differs.
    """

    def __init__(
        self,
        model: type[Model],
        *,
        with_ids: bool = False,
        over: Sequence[str] = (),
        changes: Sequence[str] = (),
    ) -> None:
        """`with_ids`: the rows bring their own ids (`new_ids`).

        `over`: if a row with the same values in these columns exists, its `changes` columns are
        updated.
        """
        self._sql = _sql(model, with_ids)
        self._over = f" ON CONFLICT ({', '.join(over)}) DO UPDATE SET " if over else ""
        quoted = map(connection.ops.quote_name, changes)
        self._over += ", ".join(f"{column} = EXCLUDED.{column}" for column in quoted)
        self._rows: list[list[Any]] = []
        # Django's `connection` is a proxy that looks the real one up for each attribute.
        self._here = connections[DEFAULT_DB_ALIAS]

    def __len__(self) -> int:
        return len(self._rows)

    def prepare(self, row: Model) -> list[Any]:
        """Return the columns of an unsaved row, as the database takes them."""
        prepared = list[Any]()
        for field, taken in zip(self._sql.fields, self._sql.taken, strict=True):
            value = getattr(row, field.attname)
            if type(value) not in taken:
                value = field.get_db_prep_save(value, self._here)
            prepared.append(value)
        return prepared

    def add(self, prepared: Sequence[Any], **changes: Any) -> list[Any]:
        """Add a copy of a prepared row with other values, by attribute; return it."""
        row = list(prepared)
        self.change(row, **changes)
        self._rows.append(row)
        return row

    def change(self, row: list[Any], **changes: Any) -> None:
        """Change values of a row that was added, by attribute."""
        sql = self._sql
        for name, value in changes.items():
            place = sql.places[name]
            if type(value) not in sql.taken[place]:
                value = sql.fields[place].get_db_prep_save(value, self._here)
            row[place] = value

    def write(self) -> None:
        """Insert all rows that were added. Must be called in a transaction."""
        if not self._rows:
            return
        with self._here.cursor() as cursor:
            if self._here.vendor == "postgresql":
                cursor.execute(*self.statement())
            else:
                rows, self._rows = self._rows, []
                cursor.executemany(self._sql.insert + self._over, rows)

    def statement(self, where: str = "", returning: str = "") -> Statement:
        """Return the PostgreSQL statement that inserts all rows that were added.

        `returning`: columns to return for each new row, "" = none.
        """
        sql, rows, self._rows = self._sql, self._rows, []
        end = (f" WHERE {where}" if where else "") + self._over
        end += f" RETURNING {returning}" if returning else ""
        if len(rows) <= FEW:
            objects = [dict(zip(sql.columns, row, strict=True)) for row in rows]
            return sql.insert_json + end, [json.dumps(objects, default=_plain)]
        told, alike, names, arrays, apart = [], list[Any](), list[str](), list[str](), list[Any]()
        for field, values in zip(sql.fields, zip(*rows, strict=True), strict=True):
            first, kind = values[0], _kind(field)
            if isinstance(field, JSONField) and not all(value is first for value in values):
                values = tuple(map(_json, values))
                first = values[0]
            if all(value is first or value == first for value in values):
                told.append(f"%s::{kind}")
                alike.append(first)
            else:
                column = connection.ops.quote_name(str(field.column))
                told.append(f"new.{column}")
                names.append(column)
                arrays.append(f"%s::{kind}[]")
                apart.append(_array(values))
        source = f"generate_series(1, {len(rows)})"
        if arrays:
            source = f"unnest({', '.join(arrays)}) AS new({', '.join(names)})"
        select = f"SELECT {', '.join(told)} FROM {source}"
        return f"INSERT INTO {sql.into} {select}{end}", [*alike, *apart]


def _plain(value: Any) -> Any:
    """Return what is not JSON in a form that PostgreSQL reads."""
    return value.obj if isinstance(value, Jsonb) else str(value)


def insert(rows: Sequence[Model]) -> None:
    """Insert unsaved rows of one model; the instances do not get their ids."""
    if rows:
        new = Rows(type(rows[0]))
        for row in rows:
            new.add(new.prepare(row))
        new.write()


class Ids:
    """Ids for new rows of tables that count them.

    `ahead`: ids that were reserved earlier by `sql`, in order.
    """

    def __init__(self, ahead: Mapping[type[Model], Sequence[int]] | None = None) -> None:
        self._ahead = {model: [*ids] for model, ids in (ahead or {}).items()}

    def take(self, *wanted: tuple[type[Model], int]) -> list[list[int]]:
        """Take this many ids for each of these tables; missing ones are reserved by `new_ids`."""
        here = [self._cut(model, count) for model, count in wanted]
        missing = [
            (model, count - len(ids)) for (model, count), ids in zip(wanted, here, strict=True)
        ]
        return [ids + more for ids, more in zip(here, new_ids(*missing), strict=True)]

    def left(self, model: type[Model]) -> list[int]:
        """Return the reserved ids that no row will have."""
        return self._cut(model, len(self._ahead.get(model, ())))

    def _cut(self, model: type[Model], count: int) -> list[int]:
        ahead = self._ahead.get(model, [])
        self._ahead[model] = ahead[count:]
        return ahead[:count]

    @staticmethod
    def sql(model: type[Model], count: str) -> Statement:
        """Return SQL for an array of ids on PostgreSQL; `count`: SQL for their number."""
        meta = model._meta
        told = "ARRAY(SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, "
        return f"{told}{count}))", [connection.ops.quote_name(meta.db_table), str(meta.pk.column)]


def new_ids(*wanted: tuple[type[Model], int]) -> list[list[int]]:
    """Reserve ids for this many new rows of each of these tables, which count them.

    Must be called in a transaction that has already written: on SQLite it then holds the write
    lock, so that nobody else gets the same ids.
    """
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


# --- existing rows --------------------------------------------------------------------------------
class Changed:
    """New values for existing rows of one table.

    Each of `rows` has its key and the values of the columns `names`. None leaves a column in `kept`
    as it is. Columns in `once` are written only where they are null.
    """

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
        arrays = ", ".join(f"%s::{_kind(field)}[]" for field in self._fields)
        new = f"unnest({arrays}) AS new({', '.join((key, *columns))})"
        same = f"{table}.{key} = new.{key}" + (f" AND {where}" if where else "")
        return f"UPDATE {table} SET {sets} FROM {new} WHERE {same}", [*map(_array, self._values())]

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
        """Return the values by column, as the database takes them."""
        return [
            self._column(field, values)
            for field, values in zip(self._fields, zip(*self._rows, strict=True), strict=True)
        ]

    def _column(self, field: Any, values: Sequence[Any]) -> list[Any]:
        taken = {*_taken(field), type(None)}
        if taken.issuperset(map(type, values)):
            return list(values)
        return [None if v is None else field.get_db_prep_save(v, connection) for v in values]

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
