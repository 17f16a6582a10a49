"""Lets long computations check whether anybody still waits for their answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_gone: ContextVar[threading.Event | None] = ContextVar("gone", default=None)


@contextmanager
def listened_to(gone: threading.Event) -> Iterator[None]:
    """While inside, this thread works for a reader who is there until `gone` is set."""
    before = _gone.set(gone)
    try:
        yield
    finally:
        _gone.reset(before)


def nobody_listens() -> bool:
    """Return whether the reader has gone; False when that is unknown."""
    gone = _gone.get()
    return gone is not None and gone.is_set()
