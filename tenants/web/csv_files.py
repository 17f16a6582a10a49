"""CSV files that are safe to open in spreadsheets."""

import csv
from collections.abc import Iterable, Sequence
from typing import Any

from django.http import HttpResponse

# First characters of text that spreadsheets take for a formula (OWASP, "CSV Injection").
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def plain_cell(value: Any) -> Any:
    """Return a CSV cell that no spreadsheet takes for a formula: text that begins like one gets a
    leading apostrophe. Numbers, including those in text form, stay as they are."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def write_csv(out: Any, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a header and rows of safe cells to a file or response."""
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(map(plain_cell, row) for row in rows)


def csv_answer(
    filename: str, columns: Sequence[str], rows: Iterable[Iterable[Any]]
) -> HttpResponse:
    """Return the same as a download with this file name."""
    answer = HttpResponse(
        content_type="text/csv",
        headers={"Content-Disposition": f'attachment; filename="{filename}"'},
    )
    write_csv(answer, columns, rows)
    return answer
