"""Which errors mean that a part is away, and how it is told."""

import socket

import pytest
from celery import current_app
from django.conf import settings
from django.core.cache import cache
from django.core.cache.backends.redis import RedisCache
from django.db import DatabaseError, connection, transaction

from kant.sqlite3.base import DatabaseWrapper, writers
from scheduling.services import doorbell
from tenants.outage import Outage, missing_part, redis_trouble, uses_redis


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
