"""Whether an error means that a part Kant needs is away, rather than that something is wrong."""

from django.db import InterfaceError, OperationalError
from redis import exceptions as redis

RETRY_AFTER_S = 5
# SQLite calls everything operational, also a table that does not exist.
_SQLITE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_FULL")
# Classes of SQLSTATE: connection exception, insufficient resources, operator intervention by
# shutdown. Without any SQLSTATE the server never answered.
_POSTGRESQL = ("08", "53", "57P")


def missing_part(error: BaseException | None) -> str:
    """The part that does not answer, as people call it; "" when the error means something else."""
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return "Redis"
    if not isinstance(error, OperationalError | InterfaceError):
        return ""
    cause = error.__cause__
    name = getattr(cause, "sqlite_errorname", None)
    if name is not None:
        return "The database" if name.startswith(_SQLITE) else ""
    state = getattr(cause, "sqlstate", None)
    return "The database" if state is None or state.startswith(_POSTGRESQL) else ""
