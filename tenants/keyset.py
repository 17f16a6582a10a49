"""Where a page of rows begins, by the values of the last row before it."""

from collections.abc import Sequence
from typing import Any

from django.db.models import Q


def rows_after(order: Sequence[str], values: Sequence[Any]) -> Q:
    """Rows strictly after one with these values of the fields of `order` ("-" = descending):
    (a > x) or (a = x and b > y) …"""
    # Said once more of the first field alone: databases enter an index by that, not by an "or".
    first, bound = order[0].lstrip("-"), "lte" if order[0].startswith("-") else "gte"
    within = Q(**{f"{first}__{bound}": values[0]})
    result, equal = Q(), Q()
    for name, value in zip(order, values, strict=True):
        field, operator = name.lstrip("-"), "lt" if name.startswith("-") else "gt"
        result |= equal & Q(**{f"{field}__{operator}": value})
        equal &= Q(**{field: value})
    return within & result
