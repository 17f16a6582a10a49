"""Rows of CSV text by the lines they begin on."""

import csv
from collections.abc import Iterable, Iterator


def filled_rows(
    lines: Iterable[str], error_type: type[ValueError]
) -> Iterator[tuple[int, list[str]]]:
    """The line that each row begins on and its cells; rows of nothing but blanks are left out.

    Raises `error_type` for what is no CSV; names the line.
    """
    rows = csv.reader(lines)
    while True:
        line = rows.line_num + 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise error_type(f"line {line}: {error}; is a quote not closed?") from None
        if any(map(str.strip, cells)):
            yield line, cells
