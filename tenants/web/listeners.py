"""Whether anybody still waits for the answer that a thread makes: who works on it for long asks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_gone: ContextVar[threading.Event | None] = ContextVar("gone", default=None)


@contextmanager
def listened_to(gone: threading.Event) -> Iterator[None]:
    """What this thread makes is for somebody who is there until `gone` is set."""
    before = _gone.set(gone)
    try:
        yield
    finally:
        _gone.reset(before)


def nobody_listens() -> bool:
    """Whether who asked has gone; False where nobody can tell."""
    gone = _gone.get()
    return gone is not None and gone.is_set()
