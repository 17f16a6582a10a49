"""Process many rows in chunks, within the variable limits of every database."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

CHUNK = 500  # ids in one IN list, rows of one INSERT

T = TypeVar("T")


def chunks(items: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """Return the items in order, in chunks of at most `size`."""
    return (items[i : i + size] for i in range(0, len(items), size))
