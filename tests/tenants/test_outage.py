"""Which errors mean that a component is away, and what people are told."""

import socket
import sqlite3
import ssl
from urllib.error import URLError

import psycopg
import psycopg_pool
import pytest
from celery import current_app
from django.conf import settings
from django.core.cache import cache
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)
from kombu.exceptions import OperationalError as BrokerError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kant.redis.cache import RedisCache
from kant.sqlite3.base import DatabaseWrapper, writers
from scheduling.kube.seam import KubeError
from scheduling.services.common import doorbell
from tenants import outage
from tenants.outage import AWAY, TURN, NoTurn, Outage, redis_trouble, trouble_of, uses_redis


@pytest.mark.django_db
def test_a_wrong_query_is_not_an_outage():
    with pytest.raises(DatabaseError) as wrong, transaction.atomic():
        connection.cursor().execute("SELECT * FROM nowhere")
    assert trouble_of(wrong.value) is None
    assert trouble_of(ValueError("x")) is trouble_of(None) is None


@pytest.mark.django_db(transaction=True)
def test_a_sqlite_file_that_cannot_be_opened_or_written_is_one(tmp_path):
    base = {**DatabaseWrapper({"NAME": ":memory:"}).settings_dict, "TIME_ZONE": None}
    options = {"transaction_mode": "IMMEDIATE", "timeout": 0.05}
    base |= {"AUTOCOMMIT": True, "CONN_HEALTH_CHECKS": False, "CONN_MAX_AGE": 0, "OPTIONS": options}
    absent = DatabaseWrapper({**base, "NAME": str(tmp_path / "no" / "folder")})
    with pytest.raises(DatabaseError) as away:
        absent.ensure_connection()
    assert trouble_of(away.value) == AWAY
    busy = DatabaseWrapper({**base, "NAME": str(tmp_path / "file")})
    assert writers.acquire(5)
    try:
        with pytest.raises(DatabaseError) as late:
            busy.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    finally:
        writers.release()
        busy.close()
    assert trouble_of(late.value) == TURN


@pytest.mark.parametrize("host", ["refuses", "is silent"])
def test_without_redis_a_doorbell_is_told_of_once_and_stops_nobody(host, monkeypatch, caplog):
    outage = Outage(doorbell.log, "Redis", "what changes is seen by the next tick")
    monkeypatch.setattr(doorbell, "_outage", outage)
    sent = []
    monkeypatch.setattr(current_app, "send_task", lambda task, **_: sent.append(task))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] if host == "is silent" else 1
        away = RedisCache(f"redis://127.0.0.1:{port}/0", {"OPTIONS": settings.REDIS_TIMEOUTS})
        with monkeypatch.context() as patch:
            patch.setattr(doorbell, "cache", away)
            doorbell.ring(7)
            doorbell.heard(7)
            doorbell.ring(7)
    assert not sent
    cache.clear()
    doorbell.ring(7)
    doorbell.ring(8)
    assert sent == [doorbell.TASK] * 2
    began, over = caplog.messages
    assert began.startswith("Redis does not serve (")
    assert began.endswith("); meanwhile what changes is seen by the next tick")
    assert over.startswith("Redis serves again, after ")


def test_redis_is_asked_at_both_of_its_addresses(settings):
    settings.REDIS_URL, settings.CELERY_BROKER_URL = "", "memory://localhost/"
    assert (uses_redis(), redis_trouble()) == (False, "")
    settings.CELERY_BROKER_URL = "redis://127.0.0.1:1/0"
    assert uses_redis()
    assert "Connection refused" in redis_trouble()


def caused(cause, kind=OperationalError, text="x"):
    error = kind(text)
    error.__cause__ = cause
    return error


def sqlite(name):
    cause = sqlite3.OperationalError("x")
    cause.sqlite_errorname = name
    return caused(cause)


AWAYS = ("unavailable", "The database does not answer.")
NOT_LET_IN = ("unavailable", "The database answers, but does not let Kant in.")
READ_ONLY = ("unavailable", "The database accepts no writes at the moment.")
FULL = ("unavailable", "The database has no space left.")
WRITING = ("busy", "Kant is busy: other requests keep writing to the database.")
POOL = ("busy", "Kant is busy: all its connections to the database are in use.")
CHANGES = ("busy", "Kant is busy: others are changing the same thing at the same time.")
SERVER = ("busy", "The database is busy: it accepts no more connections, or has no memory left.")
SAID = [
    (caused(psycopg.OperationalError("connection refused")), AWAYS),
    (caused(None, InterfaceError, "connection already closed"), AWAYS),
    (caused(psycopg.OperationalError("FATAL:  the database system is shutting down")), AWAYS),
    (caused(psycopg.OperationalError('FATAL:  role "kant" does not exist')), NOT_LET_IN),
    (caused(psycopg.OperationalError("FATAL:  no pg_hba.conf entry for host")), NOT_LET_IN),
    (caused(psycopg.OperationalError("FATAL:  sorry, too many clients already")), SERVER),
    (caused(psycopg.errors.InvalidPassword()), NOT_LET_IN),
    (caused(psycopg.errors.InvalidCatalogName(), ProgrammingError), NOT_LET_IN),
    (caused(psycopg.errors.ReadOnlySqlTransaction(), InternalError), READ_ONLY),
    (sqlite("SQLITE_READONLY"), READ_ONLY),
    (caused(psycopg.errors.AdminShutdown()), AWAYS),
    (caused(psycopg.errors.CannotConnectNow()), AWAYS),
    (caused(psycopg.errors.ConnectionFailure()), AWAYS),
    (caused(psycopg.errors.TooManyConnections()), SERVER),
    (caused(psycopg.errors.OutOfMemory()), SERVER),
    (caused(psycopg.errors.DiskFull()), FULL),
    (caused(psycopg.errors.DeadlockDetected()), CHANGES),
    (caused(psycopg.errors.SerializationFailure()), CHANGES),
    (caused(psycopg.errors.LockNotAvailable()), CHANGES),
    (caused(psycopg.errors.QueryCanceled()), CHANGES),
    (caused(psycopg_pool.TooManyRequests()), POOL),
    (sqlite("SQLITE_BUSY"), WRITING),
    (sqlite("SQLITE_BUSY_SNAPSHOT"), WRITING),
    (sqlite("SQLITE_LOCKED"), WRITING),
    (sqlite("SQLITE_CANTOPEN"), AWAYS),
    (sqlite("SQLITE_IOERR_WRITE"), AWAYS),
    (sqlite("SQLITE_FULL"), FULL),
    (NoTurn("no turn"), WRITING),
]


@pytest.mark.parametrize(("error", "said"), SAID, ids=repr)
@pytest.mark.parametrize("path", ["/api/v1/problems/busy", "/login/", "/readyz"])
def test_what_is_said_of_which_error(client, monkeypatch, error, said, path):
    code, sentence = said

    def fails(*_):
        raise error

    if path == "/readyz":
        monkeypatch.setattr(connection, "cursor", fails)
    else:
        monkeypatch.setattr("django.middleware.csrf.CsrfViewMiddleware.process_request", fails)
    client.raise_request_exception = False
    answer = client.get(path)
    assert sentence in answer.content.decode().replace("&#x27;", "'")
    if path == "/readyz":
        assert answer.status_code == (200 if code == "busy" else 503)
        return
    assert answer.status_code == 503
    assert answer["Retry-After"] == str(outage.RETRY_AFTER_S)
    if path.startswith("/api/"):
        assert answer.json()["code"] == code
        assert ("does not answer" in answer.json()["detail"]) is (said == AWAYS)


SESSION = "django.contrib.sessions.middleware.SessionMiddleware.process_request"
# Faults of Kant, or of components other than the database.
ELSE = [
    caused(psycopg.errors.UniqueViolation(), IntegrityError),
    caused(psycopg.errors.ForeignKeyViolation(), IntegrityError),
    caused(psycopg.errors.UndefinedTable(), ProgrammingError),
    caused(psycopg.errors.InsufficientPrivilege(), ProgrammingError),
    caused(psycopg.errors.NumericValueOutOfRange(), DataError),
    caused(psycopg.errors.InFailedSqlTransaction(), InternalError),
    caused(psycopg.errors.DataCorrupted(), InternalError),
    caused(psycopg.errors.IoError()),
    caused(psycopg.InterfaceError("the cursor is closed"), InterfaceError, "the cursor is closed"),
    caused(psycopg.NotSupportedError(), NotSupportedError),
    sqlite("SQLITE_ERROR"),
    sqlite("SQLITE_CORRUPT"),
    sqlite("SQLITE_MISUSE"),
    DatabaseError("Save with update_fields did not affect any rows."),
    OSError(28, "No space left on device"),
    FileNotFoundError("x"),
    ConnectionRefusedError("x"),
    ConnectionResetError("x"),
    BrokenPipeError("x"),
    TimeoutError("timed out"),
    socket.gaierror(-2, "Name or service not known"),
    ssl.SSLError("x"),
    RedisConnectionError("x"),
    RedisTimeoutError("x"),
    ReadOnlyError("x"),
    BrokerError("x"),
    KubeError("x", "x"),
    URLError("x"),
    MemoryError(),
    KeyError("connection"),
]


def fail(monkeypatch, error, where=SESSION):
    def fails(*_):
        raise error

    monkeypatch.setattr(where, fails)


@pytest.mark.parametrize("error", ELSE, ids=repr)
@pytest.mark.parametrize("path", ["/api/v1/problems/busy", "/login/"])
def test_of_other_errors_the_database_is_not_blamed(client, monkeypatch, error, path):
    assert trouble_of(error) is None
    fail(monkeypatch, error)
    client.raise_request_exception = False
    answer = client.get(path)
    assert answer.status_code == 500
    assert "database" not in answer.content.decode()
    assert "Retry-After" not in answer


@pytest.mark.parametrize("error", [e for e in ELSE if isinstance(e, DatabaseError)], ids=repr)
def test_a_probe_tells_an_error_of_the_database_from_silence(client, monkeypatch, error):
    fail(monkeypatch, error, "django.db.connection.cursor")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.content == b"The database answers with an error.\n"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (None, POOL),
        ("connection refused", AWAYS),
        ("FATAL: sorry, too many clients already", POOL),
        ("FATAL: remaining connection slots are reserved", POOL),
        ("FATAL:  the database system is starting up", AWAYS),
        ('FATAL:  password authentication failed for user "kant"', NOT_LET_IN),
    ],
)
def test_a_pool_that_lends_none_is_busy_where_the_database_answers(monkeypatch, word, said):
    asked = []

    class Probe:
        settings_dict = {"OPTIONS": {"pool": {}}}

        def get_connection_params(self):
            return dict(self.settings_dict["OPTIONS"])

        def get_new_connection(self, params):
            asked.append(1)
            assert "pool" not in params
            if word:
                raise psycopg.OperationalError(word)
            return self

        def close(self):
            asked.append(0)

    monkeypatch.setattr(outage, "_asked", (-outage.ASKED_S, AWAY))
    monkeypatch.setattr(connection, "copy", Probe, raising=False)
    error = caused(psycopg_pool.PoolTimeout("couldn't get a connection after 3.00 sec"))
    for _ in range(3):
        found = trouble_of(error)
        assert (found.code, found.said) == said
    assert asked == ([1] if word else [1, 0]), "of many that ask, one does"
