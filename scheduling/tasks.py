"""Celery tasks: each fetches what it names and calls one service.

Beat and the workers read this too; only a scheduler imports what a cycle needs.
"""

from celery import shared_task
from celery.worker.request import Request


class Heard(Request):
    """A message of a queue without acknowledgement. Celery acknowledges it all the same, and kombu
    then keeps its tag for as long as the process lives."""

    def acknowledge(self) -> None:
        self.acknowledged = True


@shared_task(Request=Heard)
def tick() -> None:
    """The tick of beat: a cycle of every cluster."""
    from scheduling.services.scheduler.loop import loop

    loop.tick()


@shared_task(Request=Heard)
def run_cycle(cluster_id: int) -> None:
    """The doorbell: one cluster has news."""
    from scheduling.services.scheduler.loop import loop

    loop.hear(cluster_id)
