"""Parts that Kant needs and that may be down or busy: which errors mean that, and what to say."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from kombu.exceptions import OperationalError as BrokerError
from psycopg_pool import PoolTimeout, TooManyRequests
from redis import Redis, RedisError

RETRY_AFTER_S = 5
# Includes a Redis that is full, read-only or still loading: the request itself is not at fault.
REDIS_ERRORS = (RedisError, BrokerError)
_PROBE = "kant:probe"
ASKED_S = 2.0  # how long the answer to a probe of the database is reused


class Trouble(NamedTuple):
    """Why Kant cannot do now what it was asked for, as people read it. `code` is that of the
    problem document: busy, or unavailable (a part does not work)."""

    said: str
    code: str = "busy"


AWAY = Trouble("The database does not answer.", "unavailable")
NOT_LET_IN = Trouble("The database answers, but does not let Kant in.", "unavailable")
READ_ONLY = Trouble("The database accepts no writes at the moment.", "unavailable")
NO_ROOM = Trouble("The database has no space left.", "unavailable")
POOL = Trouble("Kant is busy: all its connections to the database are in use.")
THREADS = Trouble("Kant is busy: it is handling as many requests as it can.")
TURN = Trouble("Kant is busy: other requests keep writing to the database.")
STREAMS = Trouble("Kant is busy: too many pages are listening for changes.")
QUESTIONS = Trouble("Kant is busy: too many previews are being computed.")
CONFLICT = Trouble("Kant is busy: others are changing the same thing at the same time.")
SERVER = Trouble("The database is busy: it accepts no more connections, or has no memory left.")

# SQLite calls everything operational, even a missing table.
_SQLITE = {
    "SQLITE_BUSY": TURN,
    "SQLITE_LOCKED": TURN,
    "SQLITE_CANTOPEN": AWAY,
    "SQLITE_IOERR": AWAY,
    "SQLITE_FULL": NO_ROOM,
    "SQLITE_READONLY": READ_ONLY,
}
# Prefixes of SQLSTATE, the more specific ones first: disk full, insufficient resources, connection
# exception, shutdown and start, rejected login, a standby, a cancelled statement, locks,
# serialization.
_POSTGRESQL = {
    "53100": NO_ROOM,
    "53": SERVER,
    "08": AWAY,
    "57P": AWAY,
    "28": NOT_LET_IN,
    "3D": NOT_LET_IN,
    "25006": READ_ONLY,
    "57014": CONFLICT,
    "55P03": CONFLICT,
    "40": CONFLICT,
}


def trouble_of(error: BaseException | None) -> Trouble | None:
    """Return what to say about an error that the request did not cause; None for all other errors.
    When a connection pool is exhausted, this asks the database whether it answers."""
    if isinstance(error, Crowded):
        return QUESTIONS
    if not isinstance(error, DatabaseError | InterfaceError):
        return None
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None)
    if not isinstance(error, OperationalError | InterfaceError):
        return _first(_POSTGRESQL, state) if state else None
    if isinstance(error, NoTurn):
        return TURN
    if isinstance(cause, TooManyRequests):
        return POOL
    if isinstance(cause, PoolTimeout):
        return _why_none_is_lent()
    name = getattr(cause, "sqlite_errorname", None)
    if name is not None:
        return _first(_SQLITE, name)
    if state is not None:
        return _first(_POSTGRESQL, state)
    if isinstance(error, InterfaceError):  # of a cursor: a bug in Kant
        return AWAY if "connection" in str(error) else None
    return _of_connecting(cause)


@contextmanager
def in_passing() -> Iterator[None]:
    """Run a side write of a request in a transaction of its own. The request goes on when the
    database accepts no writes now or others hold its locks."""
    try:
        with transaction.atomic():
            yield
    except (DatabaseError, InterfaceError) as error:
        if trouble_of(error) is None:
            raise


class Crowded(Exception):
    """More what-if questions are waiting than can be answered at once."""


class NoTurn(OperationalError):
    """Other threads of this process kept SQLite's write lock the whole time."""


def _first(told: dict[str, Trouble], code: str) -> Trouble | None:
    return next((told[start] for start in told if code.startswith(start)), None)


_asking = threading.Lock()
_asked: tuple[float, Trouble] = (-ASKED_S, AWAY)


def database_answers() -> bool:
    """Return whether the server answers a connection attempt, even by refusing to let Kant in."""
    return _why_none_is_lent() is not AWAY


def _of_connecting(cause: BaseException | None) -> Trouble:
    """Return what to say about an error without a SQLSTATE: the server sends none to a client that
    is connecting."""
    said = str(cause)
    if "too many" in said or "connection slots" in said:
        return SERVER
    passing = ("starting up", "shutting down", "recovery", "not accepting")
    if "FATAL:" in said and not any(word in said for word in passing):
        return NOT_LET_IN
    return AWAY


def _why_none_is_lent() -> Trouble:
    """Return why the pool lends no connection, by opening one outside the pool. Of many concurrent
    callers one asks; the attempt ends even if the server is silent."""
    global _asked
    with _asking:
        at, trouble = _asked
        if time.monotonic() - at < ASKED_S:
            return trouble
        probe = connection.copy()
        probe.settings_dict["OPTIONS"].pop("pool", None)
        try:
            # Only connect: a statement would have no time limit.
            probe.get_new_connection(probe.get_connection_params()).close()
            trouble = POOL
        except psycopg.Error as error:
            # A server that accepts no more connections does answer.
            found = _of_connecting(error)
            trouble = POOL if found is SERVER else found
        _asked = time.monotonic(), trouble
        return trouble


class Outage:
    """An outage of a part that others can do without. It is logged once at its beginning and once
    at its end, however many attempts fail in between. Thread-safe."""

    def __init__(self, logger: logging.Logger, part: str, meanwhile: str) -> None:
        self._logger, self._part, self._meanwhile = logger, part, meanwhile
        self._lock = threading.Lock()
        self._since: float | None = None

    def began(self, error: BaseException) -> None:
        """Record that an attempt failed."""
        with self._lock:
            known, self._since = self._since is not None, self._since or time.monotonic()
        if not known:
            why = str(error).rstrip(".") or type(error).__name__
            self._logger.warning(
                "%s does not serve (%s); meanwhile %s", self._part, why, self._meanwhile
            )

    def over(self) -> None:
        """Record that an attempt succeeded, of the kind that fails in an outage."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            self._logger.warning(
                "%s serves again, after %.0f s", self._part, time.monotonic() - since
            )


def uses_redis() -> bool:
    return bool(_addresses())


def redis_trouble() -> str:
    """Return why Redis rejects Kant's writes, in the words of the error; "" while it accepts them.
    This writes a probe, which takes about a second when Redis does not answer."""
    for address in _addresses():
        try:
            with Redis.from_url(address, **settings.REDIS_TIMEOUTS) as client:
                client.set(_PROBE, 1, px=1)
        except RedisError as error:
            return str(error)
    return ""


def _addresses() -> list[str]:
    found = {settings.REDIS_URL, settings.CELERY_BROKER_URL}
    return sorted(url for url in found if urlsplit(url).scheme in ("redis", "rediss"))
