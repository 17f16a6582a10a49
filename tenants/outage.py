"""Parts that Kant needs and that may be away: which errors mean it, and how it is told."""

import logging
import threading
import time
from urllib.parse import urlsplit

from django.conf import settings
from django.db import InterfaceError, OperationalError
from kombu.exceptions import OperationalError as BrokerError
from redis import Redis, RedisError

RETRY_AFTER_S = 5
# Also of a Redis that is full, read-only or loads its data: nothing is wrong with what was asked.
REDIS_ERRORS = (RedisError, BrokerError)
# SQLite calls everything operational, also a table that does not exist.
_SQLITE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_FULL")
# Classes of SQLSTATE: connection exception, insufficient resources, operator intervention by
# shutdown. Without any SQLSTATE the server never answered.
_POSTGRESQL = ("08", "53", "57P")
_PROBE = "kant:probe"


def missing_part(error: BaseException | None) -> str:
    """The part that does not answer, as people call it; "" when the error means something else."""
    if not isinstance(error, OperationalError | InterfaceError):
        return ""
    cause = error.__cause__
    name = getattr(cause, "sqlite_errorname", None)
    if name is not None:
        return "The database" if name.startswith(_SQLITE) else ""
    state = getattr(cause, "sqlstate", None)
    return "The database" if state is None or state.startswith(_POSTGRESQL) else ""


class Outage:
    """An outage of a part that others can do without: said once when it begins, and once when it
    is over, however often is tried meanwhile. Any thread may tell of it."""

    def __init__(self, logger: logging.Logger, part: str, meanwhile: str) -> None:
        self._logger, self._part, self._meanwhile = logger, part, meanwhile
        self._lock = threading.Lock()
        self._since: float | None = None

    def began(self, error: BaseException) -> None:
        """An attempt failed."""
        with self._lock:
            known, self._since = self._since is not None, self._since or time.monotonic()
        if not known:
            why = str(error).rstrip(".") or type(error).__name__
            self._logger.warning(
                "%s does not serve (%s); meanwhile %s", self._part, why, self._meanwhile
            )

    def over(self) -> None:
        """An attempt succeeded, of the kind that fails in an outage."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            self._logger.warning(
                "%s serves again, after %.0f s", self._part, time.monotonic() - since
            )


def uses_redis() -> bool:
    return bool(_addresses())


def redis_trouble() -> str:
    """Why Redis does not take what Kant writes, in the words of the error; "" while it does. Asks
    it, which takes about a second where it does not answer."""
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
