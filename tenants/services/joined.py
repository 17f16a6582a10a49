"""Group commit: one thread makes a call for all threads that came meanwhile (docs/decisions/0096).

A transaction costs about the same for one row as for twenty. When no call is running, a caller goes
at once and alone. Callers that come during a call wait and go together as soon as it ends. So
nobody waits for others to come, and the more come at once, the less each costs.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from django.db import DatabaseError, connection, transaction

from tenants.outage import CONFLICT, trouble_of

T = TypeVar("T")
R = TypeVar("R")

# A caller that has waited this long for the running call goes alone: that call may wait for a lock
# for longer.
TURN_S = 1.0
# Lock timeout of a transaction for several callers: one caller's locked row must not hold up the
# others.
LOCK_S = 0.5


class EachAlone(Exception):
    """Nothing was done together; do each call alone."""


@contextmanager
def nothing_done() -> Iterator[None]:
    """Guard reads for several callers. On failure raise EachAlone; pass on errors that say that the
    database is down or busy."""
    try:
        yield
    except Exception as error:
        if _says_it_of_all(error):
            raise
        raise EachAlone from error


@contextmanager
def one_transaction() -> Iterator[None]:
    """Open the transaction in which something is done for several callers.

    Raises EachAlone when it was rolled back because of one caller's data or a lock. After any other
    exception nobody knows whether it was committed.
    """
    ending = False
    try:
        with transaction.atomic():
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute(f"SET LOCAL lock_timeout = {LOCK_S * 1000:.0f}")
            yield
            ending = True
    except Exception as error:
        undone = not ending or isinstance(error, DatabaseError)
        if not undone or _says_it_of_all(error):
            raise
        raise EachAlone from error


def _says_it_of_all(error: Exception) -> bool:
    """Return whether an error would hit each caller alone as well: the database is down or busy."""
    return trouble_of(error) not in (None, CONFLICT)


class _Call(Generic[T, R]):
    """One caller; it waits until `woken` is released. `leads`: its thread makes the next call."""

    def __init__(self, asked: T) -> None:
        self.asked = asked
        self.woken = threading.Lock()
        self.woken.acquire()
        self.leads = False
        self.answer: R | BaseException = EachAlone()


class Joined(Generic[T, R]):
    """Runs each request by `alone` when it comes alone, or with at most `most` requests by
    `together`.

    `together` returns, in the order of the requests, an answer or an exception to raise in that
    caller; EachAlone = run this one alone. When `together` itself raises EachAlone, each caller
    runs alone in its own thread, as if no others had come, so a faulty request harms no other. Any
    other exception is raised in every caller.

    A caller that is already in a transaction runs alone, as part of that transaction.
    """

    def __init__(
        self,
        alone: Callable[[T], R],
        together: Callable[[Sequence[T]], Sequence[R | Exception]],
        most: int,
    ) -> None:
        self._alone, self._together, self._most = alone, together, most
        self._guard = threading.Lock()
        self._on_its_way = False
        self._waiting: list[_Call[T, R]] = []

    def __call__(self, asked: T) -> R:
        if connection.in_atomic_block:
            return self._alone(asked)
        call = _Call[T, R](asked)
        with self._guard:
            self._waiting.append(call)
            if not self._on_its_way:
                self._on_its_way = call.leads = True
        if not call.leads and not call.woken.acquire(timeout=TURN_S):
            with self._guard:
                left = not call.leads and call in self._waiting
                if left:
                    self._waiting.remove(call)
            if left:
                return self._alone(asked)
            call.woken.acquire()
        if call.leads:
            calls = self._taken()
            try:
                if len(calls) == 1:
                    return self._alone(asked)
                self._make(calls)
            finally:
                self._hand_over(calls)
        answer = call.answer
        if isinstance(answer, EachAlone):
            return self._alone(asked)
        if not isinstance(answer, BaseException):
            return answer
        try:
            raise answer
        finally:
            del answer, call  # the traceback refers to them; neither would be freed at once

    def _taken(self) -> list[_Call[T, R]]:
        """Take the next calls, this thread's call first."""
        with self._guard:
            calls, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        return calls

    def _make(self, calls: Sequence[_Call[T, R]]) -> None:
        try:
            answers = self._together([call.asked for call in calls])
            for call, answer in zip(calls, answers, strict=True):
                call.answer = answer
        except BaseException as error:
            for call in calls:
                call.answer = error

    def _hand_over(self, calls: Sequence[_Call[T, R]]) -> None:
        """Pass the lead to the first waiting caller, and wake those that were served."""
        with self._guard:
            self._on_its_way = bool(self._waiting)
            if self._waiting:
                self._waiting[0].leads = True
                self._waiting[0].woken.release()
        for call in calls[1:]:
            call.woken.release()
