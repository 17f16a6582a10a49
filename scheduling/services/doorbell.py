"""Wake the scheduler of a cluster, once, however many callers ring before it has listened."""

from celery import current_app
from django.core.cache import cache
from django.db import transaction

# A ring that got lost with its worker is repeated after this; the tick comes sooner anyway.
FORGET_S = 5
TASK = "scheduling.tasks.run_cycle"


def ring(cluster_id: int) -> None:
    """Ask for a cycle now. A ring that nobody has heard yet is not repeated."""
    if cache.add(_key(cluster_id), True, timeout=FORGET_S):
        current_app.send_task(TASK, args=[cluster_id], expires=FORGET_S)


def ring_after_commit(cluster_id: int) -> None:
    """Ring when what is being written is there. That does not fail with the broker: were it away,
    the next tick would find the change."""
    # Not a partial: Django names the function in its log, and a partial has no name.
    transaction.on_commit(lambda: ring(cluster_id), robust=True)


def heard(cluster_id: int) -> None:
    """Called by the cycle before it reads: from now on a change needs a ring of its own."""
    cache.delete(_key(cluster_id))


def _key(cluster_id: int) -> str:
    return f"doorbell:{cluster_id}"
