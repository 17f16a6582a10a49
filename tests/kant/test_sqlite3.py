"""SQLite writers take turns in the order of their arrival."""

import threading

import pytest
from django.db import OperationalError, connection, transaction

from kant.sqlite3.base import FairLock, writers


def test_the_lock_is_handed_on_in_order():
    lock, order, threads = FairLock(), [], []
    assert lock.acquire(0)

    def wait(name):
        assert lock.acquire(60)
        order.append(name)
        lock.release()

    for name in range(5):
        thread = threading.Thread(target=wait, args=(name,))
        thread.start()
        threads.append(thread)
        while len(lock._waiting) < name + 1:
            pass
    lock.release()
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2, 3, 4]
    assert lock.acquire(0)


def test_who_gives_up_waiting_does_not_keep_the_turn():
    lock = FairLock()
    assert lock.acquire(0)
    assert not lock.acquire(0.01)
    lock.release()
    assert lock.acquire(0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "sqlite", reason="the turns exist on SQLite only")
@pytest.mark.parametrize("fails", [False, True])
def test_a_transaction_has_its_turn_until_it_ends(fails):
    try:
        with transaction.atomic():
            assert not writers.acquire(0)
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert writers.acquire(0)
    writers.release()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "sqlite", reason="the turns exist on SQLite only")
def test_waiting_too_long_is_an_operational_error(monkeypatch):
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.01)
    assert writers.acquire(0)
    try:
        with pytest.raises(OperationalError, match="no turn to write"), transaction.atomic():
            pass
    finally:
        writers.release()
