"""Ask the process that keeps a cluster's state, or else work the answer out from rows."""

import time
from collections.abc import Callable
from threading import BoundedSemaphore
from typing import TypeVar

from scheduling.queries.whatif.line import LISTEN_S, PATIENCE_S, Away, ask
from tenants.outage import Crowded
from tenants.web.listeners import nobody_listens

T = TypeVar("T")

AT_ONCE = 2  # states that this process builds from rows at once

_turns = BoundedSemaphore(AT_ONCE)


def asked_or(
    cluster_id: int,
    question: object,
    rows: Callable[[], T],
    since: float = 0.0,
    patience_s: float | None = None,
) -> T:
    """Return the answer of the process that keeps the state, or else of `rows`.

    `rows` takes seconds, so only few run at once. `since`, `patience_s`: as for `ask`. Raises
    Crowded, and what `rows` raises.
    """
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
