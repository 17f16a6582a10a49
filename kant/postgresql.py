"""Connections to PostgreSQL that do not wait for ever.

A server that is stopped, or whose disk does not respond, keeps its connections open: its kernel
acknowledges what arrives, so TCP keepalives and time-outs notice nothing, and Unix sockets have
none. Only the waiting client can notice. A time-out of statements would also end those that are
slow for a good reason, such as a migration. So a client that has waited for some seconds checks
whether the server answers anybody.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import psycopg

LOOK_S = 3.0  # seconds of waiting before each check of the server
# Time limit of a request's statement, even if the server answers others.
REQUEST_S = 30.0
CANCEL_S = 3.0

_ends_after: ContextVar[float | None] = ContextVar("_ends_after", default=None)


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """End each statement inside after so many seconds, with or without an answer."""
    token = _ends_after.set(seconds)
    try:
        yield
    finally:
        _ends_after.reset(token)


class PatientConnection(psycopg.Connection[Any]):
    """A connection that closes itself if the server answers nobody any more.

    It raises OperationalError at most some seconds later, whatever it waits for, or if a statement
    takes longer than `bounded` allows.
    """

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Work as psycopg's own, through which everything goes that a connection does."""
        return super().wait(self._watched(gen), *args, **kwargs)

    def _watched(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        began, limit = time.monotonic(), _ends_after.get()
        look_at, cancelled = began + LOOK_S, False
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() >= look_at:  # several times a second
                    waited = time.monotonic() - began
                    over = limit is not None and waited >= limit
                    if cancelled or not _answers():
                        self.pgconn.finish()
                        raise psycopg.OperationalError(f"no answer for {waited:.0f} s")
                    if over:
                        with suppress(psycopg.Error):  # otherwise the next check ends it
                            self.cancel_safe(timeout=CANCEL_S)
                        cancelled = True
                    look_at = time.monotonic() + LOOK_S
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


def _answers() -> bool:
    # Imported here: the settings name this module, and that one needs the settings.
    from tenants.outage import database_answers

    return database_answers()
