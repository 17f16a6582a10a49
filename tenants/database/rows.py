"""Read rows of several tables with one statement, each row as a JSON object of its columns.

Most of a statement's cost is building it, sending it and waiting for it; a few more rows cost next
to nothing.
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

from django.db import connection
from django.db.models import CharField, DateTimeField, IntegerField, JSONField, Model, TextField

from tenants.database import planned

M = TypeVar("M", bound=Model)
_Reader = Callable[[Any], Any]


def ask(sql: str, params: Sequence[str | int | None]) -> tuple[Any, ...] | None:
    """Return the first row of the result, with each column parsed as JSON; None = no row."""
    with planned.cursor() as cursor:
        cursor.execute(sql, params)
        row = cursor.fetchone()
    if row is None:
        return None
    # psycopg has already parsed it.
    return tuple(json.loads(one) if isinstance(one, str) else one for one in row)


@cache
def as_json(model: type[Model], alias: str) -> str:
    """Return SQL for a row of the model as JSON, with its table aliased as `alias`; `row` parses
    it."""
    if connection.vendor == "postgresql":
        return f"row_to_json({alias})"
    told = []
    for field in model._meta.concrete_fields:
        value = f"{alias}.{connection.ops.quote_name(str(field.column))}"
        # Other databases store JSON as text.
        told += [f"'{field.column}'", f"json({value})" if isinstance(field, JSONField) else value]
    return f"json_object({', '.join(told)})"


def listed(value: str, source: str) -> str:
    """Return SQL for the list of a JSON value per row of `source`; without rows [] or null."""
    how = "json_agg" if connection.vendor == "postgresql" else "json_group_array"
    return f"(SELECT {how}({value}) FROM {source})"


def array(*values: str) -> str:
    """Return SQL for a JSON array of these values."""
    how = "json_build_array" if connection.vendor == "postgresql" else "json_array"
    return f"{how}({', '.join(values)})"


def marks(values: Sequence[object]) -> str:
    """Return placeholders for the values of an `IN`; without values it matches nothing."""
    return ", ".join(["%s"] * len(values)) or "NULL"


def row(model: type[M], columns: dict[str, Any]) -> M:
    """Build the model instance from `as_json` columns, as if the model had read it."""
    names, readers = _readers(model)
    values = []
    for column, read in readers:
        value = columns[column]
        values.append(value if read is None or value is None else read(value))
    return model.from_db(connection.alias, names, values)


@cache
def _readers(model: type[Model]) -> tuple[list[str], list[tuple[str, _Reader | None]]]:
    """Return the attribute names of a row, and its columns with their parsers (None = use as
    is)."""
    fields = model._meta.concrete_fields
    return [f.attname for f in fields], [(str(f.column), _reader(f)) for f in fields]


def _reader(field: Any) -> _Reader | None:
    while field.remote_field is not None:
        field = field.target_field
    if isinstance(field, DateTimeField):
        return _moment
    as_it_is = isinstance(field, JSONField | CharField | TextField | IntegerField)
    return None if as_it_is else field.to_python


def _moment(value: str) -> datetime:
    at = datetime.fromisoformat(value)
    return at if at.tzinfo else at.replace(tzinfo=UTC)  # SQLite keeps no time zone
