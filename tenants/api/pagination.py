"""Keyset pagination: a page starts after the last row of the previous one.

Rows that appear or vanish in between cause no duplicates or gaps, and page 1,000 costs as much as
page 1. Cursors are opaque to clients.
"""

from collections.abc import Sequence
from typing import Any

from django.db.models import Model, Q
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from tenants.api.problems import Problem, bad_query
from tenants.database.keyset import BadCursor, cursor_of, rows_after_cursor

DEFAULT_LIMIT, MAX_LIMIT = 50, 500


class CursorPagination(BasePagination):
    """`?limit=&cursor=` → `{"items": […], "next": address or null}`.

    The view sets its order in `page_order`: fields in the same direction, the last one unique.
    """

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self.request = request
        order: Sequence[str] = view.page_order
        limit = limit_of(request)
        cursor = request.query_params.get("cursor")
        if cursor is not None:
            queryset = queryset.filter(_after(queryset.model, order, cursor))
        rows = list(queryset.order_by(*order)[: limit + 1])
        self.next_cursor = cursor_of(rows[limit - 1], order) if len(rows) > limit else None
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
                    "description": "URL of the next page; null on the last page.",
                },
            },
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:  # noqa: ARG002
        return [
            {
                "name": "limit",
                "in": "query",
                "description": "Items per page.",
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
                "description": "Start of the page: the cursor in `next` of the previous page.",
                "schema": {"type": "string"},
            },
        ]


def limit_of(request: Request) -> int:
    """Return the page size. Raises Problem."""
    text = request.query_params.get("limit")
    if text is None:
        return DEFAULT_LIMIT
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LIMIT))
    if not digits or not 1 <= int(text) <= MAX_LIMIT:
        raise bad_query("limit", f"Must be a whole number from 1 to {MAX_LIMIT}.")
    return int(text)


def bad_cursor() -> Problem:
    return bad_query("cursor", "Not a cursor of this list. Use the one in `next`, or leave it out.")


def _after(model: type[Model], order: Sequence[str], cursor: str) -> Q:
    try:
        return rows_after_cursor(model, order, cursor)
    except BadCursor:
        raise bad_cursor() from None
