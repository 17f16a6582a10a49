"""Statements are planned once per connection if the connection leads to PostgreSQL directly."""

import socket
import struct
import threading
from contextlib import closing, suppress

import pytest
from django.db import (
    DEFAULT_DB_ALIAS,
    DatabaseError,
    NotSupportedError,
    connection,
    connections,
    transaction,
)

from tenants.database import planned

pytestmark = [pytest.mark.django_db, pytest.mark.stored]
SQL = "SELECT id, username FROM tenants_user WHERE username = %s AND id > %s"
PLANS = "SELECT statement, generic_plans + custom_plans FROM pg_prepared_statements"


def ask(times, name="nobody"):
    for _ in range(times):
        with planned.cursor() as cursor:
            cursor.execute(SQL, [name, 0])
            assert cursor.fetchall() == []


def plans(on=connection):
    with on.cursor() as cursor:
        cursor.execute(PLANS)
        return [uses for text, uses in cursor.fetchall() if "FROM tenants_user" in text]


def test_what_is_asked_again_is_planned_once(django_assert_num_queries):
    planned._direct.clear()
    with django_assert_num_queries(planned.FIRST + 4):
        ask(planned.FIRST + 4, name="it's %s")
    if connection.vendor == "postgresql":
        assert plans() == [4], "one plan, whatever the values"


def test_errors_are_those_of_django():
    with pytest.raises(DatabaseError), transaction.atomic(), planned.cursor() as cursor:
        cursor.execute("SELECT nothing FROM nowhere")


@pytest.fixture
def other():
    """Another connection to the same database, with a table that it may change."""
    with closing(connection.copy()) as other:
        with other.cursor() as cursor:
            cursor.execute("CREATE TABLE planned_for (a integer)")
            cursor.execute("INSERT INTO planned_for VALUES (1)")
        yield other
        with other.cursor() as cursor:
            cursor.execute("DROP TABLE planned_for")


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite keeps no plans")
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_plan_that_a_migration_has_made_unusable_is_used_no_more(other, in_transaction):
    def found():
        with planned.cursor() as cursor:
            cursor.execute("SELECT * FROM planned_for WHERE a = %s", [1])
            return cursor.fetchall()

    planned._direct.clear()  # whatever happened to those of this connection before
    for _ in range(planned.FIRST + 2):
        assert found() == [(1,)]
    with other.cursor() as cursor:
        cursor.execute("ALTER TABLE planned_for ADD COLUMN b integer")
    if in_transaction:
        with pytest.raises(NotSupportedError), transaction.atomic():
            found()
    assert found() == [(1, None)]


class Pooler:
    """A pooler between client and PostgreSQL that reports a process id of its own, like
    PgBouncer."""

    def __init__(self, to):
        self._to, self._door = to, socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._door.close()

    def _serve(self):
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.create_connection(self._to)
                for ends in ((client, server, bytes), (server, client, self._disguised)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source, target, changed):
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(changed(data))
        target.close()

    @staticmethod
    def _disguised(data):
        """Return the message with process id and secret (BackendKeyData) changed."""
        head = b"K" + struct.pack(">i", 12)
        at = data.find(head) + len(head)
        return data if at < len(head) else data[:at] + struct.pack(">i", 1) + data[at + 4 :]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no server to pool")
def test_behind_a_pooler_nothing_is_planned(monkeypatch):
    told = connection.settings_dict
    with closing(Pooler((told["HOST"], int(told["PORT"])))) as pooler:
        options = {"sslmode": "disable"}
        pooled = type(connections[DEFAULT_DB_ALIAS])(
            {**told, "HOST": "127.0.0.1", "PORT": pooler.port, "OPTIONS": options}, "pooled"
        )
        monkeypatch.setattr(planned, "connection", pooled)
        with closing(pooled):
            ask(planned.FIRST + 4)
            assert pooled.connection.info.backend_pid == 1
            assert plans(pooled) == []
