"""Answers that take long to find: told again while they are fresh, worked out by one at a time."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.core.cache import cache

from tenants.outage import REDIS_ERRORS

# An answer is told again for so long, and for so many times what it took to find it.
KEEP_S, KEEP_TIMES = 10.0, 20.0
FORGET_S = 3600
# Who else asks meanwhile gets the answer before; a process that died asking is waited for so long.
ASK_WITHIN_S = 60

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Answer]):
    answer: Answer
    found_at: float
    took_s: float

    @property
    def is_fresh(self) -> bool:
        return time.time() < self.found_at + max(KEEP_S, KEEP_TIMES * self.took_s)


def kept(key: str, ask: Callable[[], Answer]) -> Answer:
    """The answer under this key, asked for anew where it is old. Without Redis everybody asks
    anew."""
    asking = f"{key}:asking"
    # Who writes to Redis tells of its outage: here nothing is lost but time.
    try:
        told: _Kept[Answer] | None = cache.get(key)
        if told is not None and told.is_fresh:
            return told.answer
        if not cache.add(asking, True, ASK_WITHIN_S) and told is not None:
            return told.answer
    except REDIS_ERRORS:
        return ask()
    began, clock = time.time(), time.perf_counter()
    try:
        answer = ask()
        with suppress(*REDIS_ERRORS):
            cache.set(key, _Kept(answer, began, time.perf_counter() - clock), FORGET_S)
    finally:
        with suppress(*REDIS_ERRORS):
            cache.delete(asking)
    return answer


def kept_before(key: str, of: type[Answer]) -> Answer | None:
    """The last answer, however old; None where nobody asked for long, and without Redis."""
    told: _Kept[Answer] | None = None
    with suppress(*REDIS_ERRORS):
        told = cache.get(key)
    return told.answer if told is not None and isinstance(told.answer, of) else None


@dataclass(frozen=True, slots=True)
class _Marked(Generic[Answer]):
    answer: Answer
    mark: object


def kept_while(key: str, mark: object, ask: Callable[[], Answer]) -> Answer:
    """The answer under this key, for all who ask, as long as the mark is equal to the one that it
    was found with. Who asks while another one works it out gets the answer before, if there is
    one. Without Redis everybody asks anew."""
    asking = f"{key}:asking"
    try:
        told: _Marked[Answer] | None = cache.get(key)
        if told is not None and told.mark == mark:
            return told.answer
        if not cache.add(asking, True, ASK_WITHIN_S) and told is not None:
            return told.answer
    except REDIS_ERRORS:
        return ask()
    try:
        answer = ask()
        with suppress(*REDIS_ERRORS):
            cache.set(key, _Marked(answer, mark), FORGET_S)
    finally:
        with suppress(*REDIS_ERRORS):
            cache.delete(asking)
    return answer
