"""Celery tasks: each fetches what its arguments name and calls one service.

Beat and the workers import this module, too; only a scheduler imports what a cycle needs.
"""

from celery import shared_task
from celery.worker.request import Request


class Heard(Request):
    """A message from a queue without acknowledgement.

    Celery acknowledges it anyway, and kombu then keeps its tag for as long as the process lives.
    """

    def acknowledge(self) -> None:
        self.acknowledged = True


@shared_task(Request=Heard)
def tick() -> None:
    """The tick of beat: run a cycle of each cluster."""
    from scheduling.services.scheduler.loop import loop

    loop.tick()


@shared_task(Request=Heard)
def run_cycle(cluster_id: int) -> None:
    """The doorbell: one cluster has news."""
    from scheduling.services.scheduler.loop import loop

    loop.hear(cluster_id)
