"""Calls of many threads that one of them makes for all who came meanwhile (docs/decisions/0096).

A transaction costs about the same for one row as for twenty. Who comes while nothing is on its way
goes at once and alone; who comes while a call is on its way goes together with the others who do,
as soon as that one has ended. So nobody waits for others to come, and the more come at once, the
less each costs.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from django.db import DatabaseError, connection, transaction

from tenants.outage import CONFLICT, trouble_of

T = TypeVar("T")
R = TypeVar("R")

# Who has waited so long for a call on its way goes alone: that one may wait for a lock for longer.
TURN_S = 1.0
# A transaction for several waits so long for a lock. One that a single row is behind must not hold
# up those who do not ask for it.
LOCK_S = 0.5


class EachAlone(Exception):
    """Nothing was done together; each is to be done alone."""


@contextmanager
def nothing_done() -> Iterator[None]:
    """For what is read for several. Raises EachAlone where that fails, and what says that the
    database is away or busy as it is."""
    try:
        yield
    except Exception as error:
        if _says_it_of_all(error):
            raise
        raise EachAlone from error


@contextmanager
def one_transaction() -> Iterator[None]:
    """The transaction in which something is done for several. Raises EachAlone where it was undone
    by what is in it or by who locks it. Whatever else it raises, nobody knows whether it was done.
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
    """Whether an error would meet each of them alone, too: the database is away or busy."""
    return trouble_of(error) not in (None, CONFLICT)


class _Call(Generic[T, R]):
    """One who waits until `woken` is let go. `leads`: its thread makes the next call."""

    def __init__(self, asked: T) -> None:
        self.asked = asked
        self.woken = threading.Lock()
        self.woken.acquire()
        self.leads = False
        self.answer: R | BaseException = EachAlone()


class Joined(Generic[T, R]):
    """Does what is asked: by `alone` for one who is alone, by `together` for several, at most
    `most`.

    `together` gives each, in their order, an answer or what is raised to who asked; EachAlone = do
    this one alone. Where it raises EachAlone, each is done alone, in its own thread, as if nobody
    else had come: what is wrong with one of them harms no other. Whatever else it raises is raised
    to each.

    Who is in a transaction already is done alone, as a part of that."""

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
            del answer, call  # its traceback refers to them: neither would be freed at once

    def _taken(self) -> list[_Call[T, R]]:
        """Those who are next, this thread's call the first of them."""
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
        """The first of those who wait leads from here; who was led goes on."""
        with self._guard:
            self._on_its_way = bool(self._waiting)
            if self._waiting:
                self._waiting[0].leads = True
                self._waiting[0].woken.release()
        for call in calls[1:]:
            call.woken.release()
