"""Connections to PostgreSQL that do not wait for ever.

A server that is stopped, or whose disk answers nothing, keeps its connections open: its kernel
confirms what arrives, so no keepalive and no time-out of TCP notices, and on a Unix socket there is
none. Only who waits for an answer can. A time-out of statements would also end those that are slow
for good reason, such as a migration; so whoever has waited for some seconds asks whether the server
answers anybody.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import psycopg

LOOK_S = 3.0  # after such a wait, and again after each further one, the server is asked
# A statement of a request ends so late also where the server answers others.
REQUEST_S = 30.0
CANCEL_S = 3.0

_ends_after: ContextVar[float | None] = ContextVar("_ends_after", default=None)


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Inside, each statement ends after so many seconds, with or without an answer."""
    token = _ends_after.set(seconds)
    try:
        yield
    finally:
        _ends_after.reset(token)


class PatientConnection(psycopg.Connection[Any]):
    """Raises OperationalError and closes itself where the server answers nobody any more, at most
    some seconds after that, whatever is waited for; or where a statement takes longer than
    `bounded` allows."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """As psycopg's own, which consumes all that a connection does by this."""
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
                        with suppress(psycopg.Error):  # then the next look ends it
                            self.cancel_safe(timeout=CANCEL_S)
                        cancelled = True
                    look_at = time.monotonic() + LOOK_S
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


def _answers() -> bool:
    # The settings name this module, and that one needs the settings.
    from tenants.outage import database_answers

    return database_answers()
