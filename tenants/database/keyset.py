"""Keyset pagination: a page begins after the row whose values a cursor contains."""

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Field, IntegerField, Model, Q


class BadCursor(Exception):
    """The text is not a cursor of this list."""


def rows_after(order: Sequence[str], values: Sequence[Any]) -> Q:
    """Match rows strictly after one with these values of the fields in `order` ("-" = descending):
    (a > x) or (a = x and b > y) …"""
    # Repeat the bound for the first field alone: databases use an index for that, not for an "or".
    first, bound = order[0].lstrip("-"), "lte" if order[0].startswith("-") else "gte"
    within = Q(**{f"{first}__{bound}": values[0]})
    result, equal = Q(), Q()
    for name, value in zip(order, values, strict=True):
        field, operator = name.lstrip("-"), "lt" if name.startswith("-") else "gt"
        result |= equal & Q(**{f"{field}__{operator}": value})
        equal &= Q(**{field: value})
    return within & result


def _field(model: type[Model], name: str) -> "Field[Any, Any]":
    field: Any = model._meta.pk
    for part in name.lstrip("-").split("__"):
        field = model._meta.get_field(part)
        if field.is_relation:
            model = field.related_model
    return field


def _value(row: Any, name: str) -> Any:
    for part in name.lstrip("-").split("__"):
        row = getattr(row, part)
    return row


def cursor_of(row: Any, order: Sequence[str]) -> str:
    """Encode the row's values of the fields in `order` as a cursor."""
    return packed([_value(row, name) for name in order])


def packed(values: Sequence[Any]) -> str:
    """Encode these values as a cursor."""
    text = json.dumps(values, cls=_ExactEncoder)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def unpacked(cursor: str, length: int) -> list[Any]:
    """Decode a cursor that `packed` made from `length` values. Raises BadCursor."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        values = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, RecursionError) as error:
        raise BadCursor from error
    if not isinstance(values, list) or len(values) != length:
        raise BadCursor
    return values


class _ExactEncoder(DjangoJSONEncoder):
    """Keeps microseconds, which Django's encoder cuts: without them, rows would appear on two
    pages."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if hasattr(o, "isoformat") else super().default(o)


def _exact(field: "Field[Any, Any]", value: Any) -> Any:
    """Return the value that `cursor_of` wrote for the field.

    Raises ValueError, OverflowError or ValidationError for a value that it never writes.
    """
    if type(value) is not (int if isinstance(field, IntegerField) else str):
        raise ValueError("not the type of the field")
    # `encode` raises for a lone surrogate, which databases refuse just like NUL.
    if isinstance(value, str) and b"\0" in value.encode():
        raise ValueError("contains NUL")
    exact = field.to_python(value)
    if not isinstance(exact, datetime):
        return exact
    if exact.tzinfo is None:
        raise ValueError("a time without an offset")
    return exact.astimezone(UTC)  # overflows here for times that no database can store


def rows_after_cursor(model: type[Model], order: Sequence[str], cursor: str) -> Q:
    """Match rows strictly after the one that the cursor names. Raises BadCursor."""
    values = unpacked(cursor, len(order))
    try:
        exact = [_exact(_field(model, n), v) for n, v in zip(order, values, strict=True)]
    except (ValueError, OverflowError, ValidationError) as error:
        raise BadCursor from error
    return rows_after(order, exact)
