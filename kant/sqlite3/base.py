"""Django's SQLite backend, in which the threads of one process queue up to write.

SQLite makes writers wait by sleeping and trying again. A thread that rarely writes, like the
scheduler, then loses against many that write often: seconds pass although the database is free most
of the time. In embedded mode all writers are threads of one process, so they take a lock before
BEGIN IMMEDIATE and are woken in turn. Other processes wait in SQLite's own way.
"""

import threading
from collections import deque
from typing import Any

from django.db.backends.sqlite3 import base

from tenants.outage import NoTurn


class FairLock:
    """A lock that goes to the thread that has waited longest."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Event] = deque()

    def acquire(self, timeout: float) -> bool:
        with self._guard:
            if not self._held:
                self._held = True
                return True
            turn = threading.Event()
            self._waiting.append(turn)
        if turn.wait(timeout):
            return True
        with self._guard:
            if turn.is_set():  # handed over just now
                return True
            self._waiting.remove(turn)
        return False

    def release(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False


writers = FairLock()


class DatabaseWrapper(base.DatabaseWrapper):
    """Takes its turn for each transaction; everything else is Django's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._has_turn = False

    def _start_transaction_under_autocommit(self) -> None:
        seconds = float(self.settings_dict["OPTIONS"].get("timeout", 5))
        if not writers.acquire(seconds):
            raise NoTurn(f"database is locked: no turn to write within {seconds:.0f} s")
        self._has_turn = True
        try:
            super()._start_transaction_under_autocommit()  # type: ignore[misc]
        except BaseException:
            self._end_turn()
            raise

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            writers.release()

    def _commit(self) -> None:
        super()._commit()  # type: ignore[misc]
        self._end_turn()  # a failed commit is followed by a rollback

    def _rollback(self) -> None:
        try:
            super()._rollback()  # type: ignore[misc]
        finally:
            self._end_turn()

    def _close(self) -> None:
        try:
            super()._close()  # type: ignore[misc]
        finally:
            self._end_turn()
