"""Wake the scheduler of a cluster, once, however many callers ring before it listens."""

import logging
from contextlib import suppress

from celery import current_app
from django.core.cache import cache
from django.db import transaction

from tenants.outage import REDIS_ERRORS, Outage

log = logging.getLogger(__name__)

# A ring that was lost with its worker is repeated after this; the tick comes sooner anyway.
FORGET_S = 5
TASK = "scheduling.tasks.run_cycle"

_outage = Outage(log, "Redis", "what changes is seen by the next tick, not at once")


def ring(cluster_id: int) -> None:
    """Ask for a cycle now. A ring that nobody has heard yet is not repeated."""
    try:
        if cache.add(_key(cluster_id), True, timeout=FORGET_S):
            # No retry: somebody may wait for an answer, and the tick comes anyway.
            current_app.send_task(TASK, args=[cluster_id], expires=FORGET_S, retry=False)
            _outage.over()
    except REDIS_ERRORS as error:
        _outage.began(error)


def ring_after_commit(cluster_id: int) -> None:
    """Ring once the current transaction has committed."""
    # Not a partial: Django logs the function's name, and a partial has none.
    transaction.on_commit(lambda: ring(cluster_id), robust=True)


def heard(cluster_id: int) -> None:
    """Forget the ring. Called before the cycle reads: a later change needs a ring of its own."""
    # The ring expires by itself, and the worker reports the outage.
    with suppress(*REDIS_ERRORS):
        cache.delete(_key(cluster_id))


def _key(cluster_id: int) -> str:
    return f"doorbell:{cluster_id}"
