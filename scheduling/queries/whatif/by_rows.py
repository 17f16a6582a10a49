"""Questions to which a process that keeps a state answers, or, where none does, what rows tell."""

import time
from collections.abc import Callable
from threading import BoundedSemaphore
from typing import TypeVar

from scheduling.queries.whatif.line import LISTEN_S, PATIENCE_S, Away, ask
from tenants.outage import Crowded
from tenants.web.listeners import nobody_listens

T = TypeVar("T")

AT_ONCE = 2  # states that this process makes of rows

_turns = BoundedSemaphore(AT_ONCE)


def asked_or(
    cluster_id: int,
    question: object,
    rows: Callable[[], T],
    since: float = 0.0,
    patience_s: float | None = None,
) -> T:
    """The answer; `rows` works it out where nobody keeps a state, which takes seconds: few may at
    once. `since`, `patience_s`: as of `ask`. Raises Crowded, and what `rows` raises."""
    try:
        said: T = ask(cluster_id, question, since, patience_s)
        return said
    except Away:
        pass
    until = time.monotonic() + PATIENCE_S
    while not _turns.acquire(timeout=LISTEN_S):
        if nobody_listens() or time.monotonic() > until:
            raise Crowded
    try:
        return rows()
    finally:
        _turns.release()
