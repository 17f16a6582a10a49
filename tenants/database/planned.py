"""Repeated statements: on PostgreSQL each connection plans them once (docs/decisions/0094)."""

from typing import Any, Self
from weakref import WeakKeyDictionary

import psycopg
from django.db import connection
from django.db.backends.utils import CursorWrapper
from psycopg.pq import TransactionStatus

# Executions before a plan is kept: many statements are never repeated.
FIRST = 2
# psycopg connection → whether it talks to PostgreSQL directly, not through a pooler.
_direct: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


# The server lacks the plan, or can no longer use it because a table's columns have changed.
UNUSABLE = (
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
    psycopg.errors.FeatureNotSupported,
)


class PlannedCursor(psycopg.Cursor[Any]):
    """Stops using plans on a connection as soon as one turns out to be unusable."""

    def execute(self, query: Any, params: Any = None, **how: Any) -> Self:
        try:
            return super().execute(query, params, **how)
        except UNUSABLE:
            held = self.connection
            _direct[held], held.prepare_threshold = False, None
            if held.info.transaction_status != TransactionStatus.IDLE:
                raise  # the earlier statements of the transaction are lost too
            return super().execute(query, params, **how)

    def _convert_query(self, query: Any, params: Any = None) -> Any:
        # Django's query log reads this attribute; psycopg sets it only for statements without a
        # plan.
        self._query = super()._convert_query(query, params)
        return self._query


def cursor() -> CursorWrapper:
    """Return a cursor like `connection.cursor()`, for statements with few different texts.

    Values go to PostgreSQL separately, so the statement must show the type of each parameter.
    """
    if connection.vendor != "postgresql":
        return connection.cursor()
    connection.ensure_connection()
    held: Any = connection.connection
    if held not in _direct:
        _direct[held] = _is_direct(held)
        if _direct[held]:
            held.prepare_threshold = FIRST
    if not _direct[held]:
        return connection.cursor()
    # Django's own cursors write the values into the text, which then differs each time.
    usual, held.cursor_factory = held.cursor_factory, PlannedCursor
    try:
        return connection.cursor()
    finally:
        held.cursor_factory = usual


def _is_direct(held: Any) -> bool:
    """Return whether the connection goes to PostgreSQL directly.

    A pooler such as PgBouncer reports a process id of its own, and may send the next transaction to
    a server process that does not know the plan.
    """
    with connection.wrap_database_errors:
        [pid] = held.execute("SELECT pg_backend_pid()").fetchone()
    return bool(pid == held.info.backend_pid)
