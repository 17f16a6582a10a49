"""Which errors mean that a part is away."""

import socket

import pytest
from django.conf import settings as django_settings
from django.core.cache.backends.redis import RedisCache
from django.db import DatabaseError, connection, transaction

from kant.sqlite3.base import DatabaseWrapper, writers
from scheduling.services import doorbell
from tenants.outage import missing_part


@pytest.mark.django_db
def test_a_wrong_query_is_not_an_outage():
    with pytest.raises(DatabaseError) as wrong, transaction.atomic():
        connection.cursor().execute("SELECT * FROM nowhere")
    assert missing_part(wrong.value) == ""
    assert missing_part(ValueError("x")) == missing_part(None) == ""


@pytest.mark.django_db(transaction=True)
def test_a_sqlite_file_that_cannot_be_opened_or_written_is_one(tmp_path):
    base = {**DatabaseWrapper({"NAME": ":memory:"}).settings_dict, "TIME_ZONE": None}
    options = {"transaction_mode": "IMMEDIATE", "timeout": 0.05}
    base |= {"AUTOCOMMIT": True, "CONN_HEALTH_CHECKS": False, "CONN_MAX_AGE": 0, "OPTIONS": options}
    absent = DatabaseWrapper({**base, "NAME": str(tmp_path / "no" / "folder")})
    with pytest.raises(DatabaseError) as away:
        absent.ensure_connection()
    assert missing_part(away.value) == "The database"
    busy = DatabaseWrapper({**base, "NAME": str(tmp_path / "file")})
    assert writers.acquire(5)
    try:
        with pytest.raises(DatabaseError) as late:
            busy.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    finally:
        writers.release()
        busy.close()
    assert missing_part(late.value) == "The database"


def test_a_redis_that_never_answers_is_one_and_stops_no_cycle(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        silent = RedisCache(address, {"OPTIONS": django_settings.REDIS_TIMEOUTS})
        monkeypatch.setattr(doorbell, "cache", silent)
        doorbell.heard(7)
        assert "cannot take note of the ring for cluster 7" in caplog.text
        with pytest.raises(Exception, match="Timeout") as away:
            doorbell.ring(7)
    assert missing_part(away.value) == "Redis"
