"""Read CSV rows together with the lines on which they begin."""

import csv
from collections.abc import Iterable, Iterator


def filled_rows(
    lines: Iterable[str], error_type: type[ValueError]
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each row begins, and its cells; leave blank rows out.

    Raises `error_type`, naming the line, for text that is no CSV.
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
