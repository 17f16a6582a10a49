"""Keyset pagination: a page starts after the last row of the one before it.

Rows that appear or vanish meanwhile neither repeat nor hide others, and page 1,000 costs what
page 1 costs. A cursor is opaque to clients.
"""

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Field, IntegerField, Model, Q
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from tenants.api.problems import bad_query
from tenants.keyset import rows_after

DEFAULT_LIMIT, MAX_LIMIT = 50, 500


class CursorPagination(BasePagination):
    """`?limit=&cursor=` → `{"items": […], "next": address or null}`.

    The view names its order in `page_order`: fields of one direction, the last one unique.
    """

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self.request = request
        order: Sequence[str] = view.page_order
        limit = _limit(request.query_params.get("limit"))
        cursor = request.query_params.get("cursor")
        if cursor is not None:
            queryset = queryset.filter(_after(queryset.model, order, cursor))
        rows = list(queryset.order_by(*order)[: limit + 1])
        self.next_cursor = _encode(rows[limit - 1], order) if len(rows) > limit else None
        return rows[:limit]

    def get_paginated_response(self, data: Any) -> Response:
        following = None
        if self.next_cursor is not None:
            following = replace_query_param(
                self.request.build_absolute_uri(), "cursor", self.next_cursor
            )
        return Response({"items": data, "next": following})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["items", "next"],
            "properties": {
                "items": schema,
                "next": {
                    "type": ["string", "null"],
                    "format": "uri",
                    "description": "The address of the next page; null on the last one.",
                },
            },
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:  # noqa: ARG002
        return [
            {
                "name": "limit",
                "in": "query",
                "description": "Items on a page.",
                "schema": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_LIMIT,
                    "default": DEFAULT_LIMIT,
                },
            },
            {
                "name": "cursor",
                "in": "query",
                "description": "Where the page starts; taken from `next` of the page before.",
                "schema": {"type": "string"},
            },
        ]


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LIMIT))
    if not digits or not 1 <= int(text) <= MAX_LIMIT:
        raise bad_query("limit", f"Must be a whole number from 1 to {MAX_LIMIT}.")
    return int(text)


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


def _encode(row: Any, order: Sequence[str]) -> str:
    text = json.dumps([_value(row, name) for name in order], cls=_ExactEncoder)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


class _ExactEncoder(DjangoJSONEncoder):
    """Django's encoder cuts microseconds, and rows between two pages would repeat."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if hasattr(o, "isoformat") else super().default(o)


def _exact(field: "Field[Any, Any]", value: Any) -> Any:
    """The value that `_encode` wrote for the field.

    Raises ValueError, OverflowError or ValidationError for one it never writes.
    """
    if type(value) is not (int if isinstance(field, IntegerField) else str):
        raise ValueError("not the type of the field")
    # `encode` raises for a lone surrogate, which databases refuse as they refuse NUL.
    if isinstance(value, str) and b"\0" in value.encode():
        raise ValueError("contains NUL")
    exact = field.to_python(value)
    if not isinstance(exact, datetime):
        return exact
    if exact.tzinfo is None:
        raise ValueError("a time without an offset")
    return exact.astimezone(UTC)  # overflows here for times that no database keeps


def _after(model: type[Model], order: Sequence[str], cursor: str) -> Q:
    """Rows strictly after the one the cursor names."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        values = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if not isinstance(values, list) or len(values) != len(order):
            raise ValueError("not a cursor of this list")
        exact = [_exact(_field(model, n), v) for n, v in zip(order, values, strict=True)]
    except (ValueError, OverflowError, ValidationError, RecursionError):
        raise bad_query(
            "cursor", "Not a cursor of this list. Take it from `next`, or leave it out."
        ) from None
    return rows_after(order, exact)
