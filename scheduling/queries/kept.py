"""Answers that take long to find: reused while fresh, and worked out by one caller at a time."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.core.cache import cache

from tenants.outage import REDIS_ERRORS

# An answer is reused for this many seconds, or this many times what it took to find it.
KEEP_S, KEEP_TIMES = 10.0, 20.0
FORGET_S = 3600
# Meanwhile other callers get the previous answer; a caller that died blocks others this long.
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
    """Return the answer under this key, found again if it is old.

    Without Redis every caller asks again.
    """
    asking = f"{key}:asking"
    # Callers that write to Redis report its outage: here only time is lost.
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
    """Return the last answer, however old; None = nobody asked for long, or there is no Redis."""
    told: _Kept[Answer] | None = None
    with suppress(*REDIS_ERRORS):
        told = cache.get(key)
    return told.answer if told is not None and isinstance(told.answer, of) else None


@dataclass(frozen=True, slots=True)
class _Marked(Generic[Answer]):
    answer: Answer
    mark: object


def kept_while(key: str, mark: object, ask: Callable[[], Answer]) -> Answer:
    """Return the answer under this key as long as it was found with an equal mark.

    While one caller works it out, others get the previous answer, if there is one. Without Redis
    every caller asks again.
    """
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
