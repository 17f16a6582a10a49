"""CSV files that spreadsheets open."""

import csv
from collections.abc import Iterable, Sequence
from typing import Any

from django.http import HttpResponse

# What a text begins with that spreadsheets take for a formula (OWASP, "CSV Injection").
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def plain_cell(value: Any) -> Any:
    """A cell of a CSV that no spreadsheet takes for a formula: a text that begins like one gets an
    apostrophe before it. Numbers, also those written as texts, stay as they are."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def write_csv(out: Any, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """A header, and rows of plain cells, to a file or response."""
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(map(plain_cell, row) for row in rows)


def csv_answer(
    filename: str, columns: Sequence[str], rows: Iterable[Iterable[Any]]
) -> HttpResponse:
    """The same as the file that a browser saves under this name."""
    answer = HttpResponse(
        content_type="text/csv",
        headers={"Content-Disposition": f'attachment; filename="{filename}"'},
    )
    write_csv(answer, columns, rows)
    return answer
