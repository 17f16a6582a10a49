"""A frozen PostgreSQL keeps connections open and sends nothing. Threads that wait for it get an
error in time, and go on when it is back."""

import threading
import time
from contextlib import closing

import psycopg
import pytest
from django.db import OperationalError, connections
from django.db.backends.postgresql.base import DatabaseWrapper

from kant import postgresql
from tenants import outage
from tenants.outage import AWAY, CONFLICT, trouble_of
from tests.live.test_production_shape import frozen_postgres, postgres, stopped

pytestmark = pytest.mark.live
LOOK_S, CONNECT_S, POOL_S = 0.2, 2, 1.0
# One wait and one look at the server; then the pool, and another look.
MOST_S = 2 * (LOOK_S + CONNECT_S) + POOL_S + 1.0
BUSY_S = 30.0  # extra time on a machine without a free core


@pytest.fixture(scope="module")
def server():
    with postgres() as url:
        yield url


@pytest.fixture
def django(server, monkeypatch, django_db_blocker):
    """Django's connection to the server, with a pool as in the settings, but with short
    intervals."""
    settings = {**connections["default"].settings_dict, "NAME": "postgres", "TIME_ZONE": None}
    parts = psycopg.conninfo.conninfo_to_dict(server)
    settings |= {"HOST": parts["host"], "PORT": parts["port"], "USER": "kant", "PASSWORD": ""}
    settings |= {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True, "AUTOCOMMIT": True}
    pool = {"min_size": 1, "max_size": 12, "timeout": POOL_S, "reconnect_timeout": 10}
    pool["connection_class"] = postgresql.PatientConnection
    settings["OPTIONS"] = {"connect_timeout": CONNECT_S, "pool": pool}
    monkeypatch.setattr(postgresql, "LOOK_S", LOOK_S)
    monkeypatch.setattr(outage, "ASKED_S", LOOK_S)
    wrapper = DatabaseWrapper(settings, "frozen")
    monkeypatch.setattr(outage, "connection", wrapper)
    with django_db_blocker.unblock(), closing(wrapper):
        yield wrapper
    wrapper.close_pool()


def ask(django, sql="SELECT 1"):
    with django.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def test_whoever_waits_is_told_in_time_and_goes_on_when_it_is_back(django, server):
    """The threads hold a connection, are in a transaction, or have none yet; each asks again."""
    states, told, back = ["holds one", "in a transaction", "none"] * 4, [], []
    ready, gone, returned = threading.Barrier(len(states) + 1), threading.Event(), threading.Event()

    def asks(state):
        mine = django.copy("frozen")
        if state != "none":
            patiently(mine)  # a busy machine may need longer than the pool's timeout to connect
        if state == "in a transaction":
            mine.set_autocommit(False)
            ask(mine)
        ready.wait(120)
        gone.wait(120)
        for _ in range(2):
            try:
                ask(mine)
            except OperationalError as error:
                told.append((trouble_of(error), time.monotonic()))
            finally:
                mine.close()
        returned.wait(120)
        back.append(patiently(mine))
        mine.close()

    threads = [threading.Thread(target=asks, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    ready.wait(120)
    with frozen_postgres(server):
        began = time.monotonic()
        gone.set()
        while len(told) < 2 * len(states) and time.monotonic() < began + 60:
            time.sleep(0.05)
    returned.set()
    for thread in threads:
        thread.join(60)
    assert [trouble for trouble, _ in told] == [AWAY] * 2 * len(states)
    assert max(at for _, at in told) - began < 2 * MOST_S + BUSY_S
    assert back == [1] * len(states)


def patiently(django):
    """Return the answer as soon as there is one; the connection stays."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return ask(django)
        except OperationalError:
            django.close()
            assert time.monotonic() < deadline


def test_slow_statements_are_waited_for_as_long_as_the_server_answers(django):
    assert ask(django, "SELECT 1 FROM pg_sleep(1.0)") == 1


def test_a_request_does_not_wait_longer_than_it_may(django):
    with postgresql.bounded(0.5):
        with pytest.raises(OperationalError) as told:
            ask(django, "SELECT 1 FROM pg_sleep(60)")
        assert trouble_of(told.value) == CONFLICT
        assert ask(django) == 1, "the connection is as good as before"


def test_a_request_does_not_wait_for_a_process_that_is_stopped_alone(django):
    ask(django)
    with stopped([django.connection.info.backend_pid]), postgresql.bounded(0.5):
        with pytest.raises(OperationalError) as told:
            ask(django)
        assert trouble_of(told.value) == AWAY
        django.close()
        assert ask(django) == 1
