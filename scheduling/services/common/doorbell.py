"""Wake the scheduler of a cluster, once, however many callers ring before it has listened."""

import logging
from contextlib import suppress

from celery import current_app
from django.core.cache import cache
from django.db import transaction

from tenants.outage import REDIS_ERRORS, Outage

log = logging.getLogger(__name__)

# A ring that got lost with its worker is repeated after this; the tick comes sooner anyway.
FORGET_S = 5
TASK = "scheduling.tasks.run_cycle"

_outage = Outage(log, "Redis", "what changes is seen by the next tick, not at once")


def ring(cluster_id: int) -> None:
    """Ask for a cycle now. A ring that nobody has heard yet is not repeated."""
    try:
        if cache.add(_key(cluster_id), True, timeout=FORGET_S):
            # Tried once: somebody may wait for an answer, and the tick comes anyway.
            current_app.send_task(TASK, args=[cluster_id], expires=FORGET_S, retry=False)
            _outage.over()
    except REDIS_ERRORS as error:
        _outage.began(error)


def ring_after_commit(cluster_id: int) -> None:
    """Ring when what is being written is there."""
    # Not a partial: Django names the function in its log, and a partial has no name.
    transaction.on_commit(lambda: ring(cluster_id), robust=True)


def heard(cluster_id: int) -> None:
    """Called before the cycle reads: from now on a change needs a ring of its own."""
    # The ring is forgotten by itself, and the worker tells of the outage.
    with suppress(*REDIS_ERRORS):
        cache.delete(_key(cluster_id))


def _key(cluster_id: int) -> str:
    return f"doorbell:{cluster_id}"
