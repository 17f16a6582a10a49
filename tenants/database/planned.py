"""Statements that are repeated: on PostgreSQL each connection has them planned once
(docs/decisions/0094)."""

from typing import Any, Self
from weakref import WeakKeyDictionary

import psycopg
from django.db import connection
from django.db.backends.utils import CursorWrapper
from psycopg.pq import TransactionStatus

# So often a statement is planned anew before its plan is kept: many are never asked again.
FIRST = 2
# By connection of psycopg: whether what it is connected to is PostgreSQL itself.
_direct: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


# The server does not have a plan, or cannot use it any more: a table has other columns now.
UNUSABLE = (
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
    psycopg.errors.FeatureNotSupported,
)


class PlannedCursor(psycopg.Cursor[Any]):
    """Has nothing planned any more on a connection whose plans turn out to be unusable."""

    def execute(self, query: Any, params: Any = None, **how: Any) -> Self:
        try:
            return super().execute(query, params, **how)
        except UNUSABLE:
            held = self.connection
            _direct[held], held.prepare_threshold = False, None
            if held.info.transaction_status != TransactionStatus.IDLE:
                raise  # what was done before is lost, too
            return super().execute(query, params, **how)

    def _convert_query(self, query: Any, params: Any = None) -> Any:
        # Django's log of statements looks for it; psycopg keeps it only where there is no plan.
        self._query = super()._convert_query(query, params)
        return self._query


def cursor() -> CursorWrapper:
    """As `connection.cursor()`, for statements of which few differ in their text. Their values go
    to PostgreSQL apart from it: each parameter has to show there what type it is to have."""
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
    # The cursors of Django write the values into the text, which is another one each time.
    usual, held.cursor_factory = held.cursor_factory, PlannedCursor
    try:
        return connection.cursor()
    finally:
        held.cursor_factory = usual


def _is_direct(held: Any) -> bool:
    """Not so behind a pooler such as PgBouncer: that tells a process id of its own, and may send
    the next transaction to a server process that has never heard of the plan."""
    with connection.wrap_database_errors:
        [pid] = held.execute("SELECT pg_backend_pid()").fetchone()
    return bool(pid == held.info.backend_pid)
