"""Cells of CSV files that spreadsheets open."""

from typing import Any

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
