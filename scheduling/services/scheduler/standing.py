"""Write the order of waiting jobs for people, if queues affect it."""

import time
from dataclasses import dataclass

from scheduling.engine.cycle import SchedulerState
from scheduling.models import SchedulerLease, StandingOrder
from scheduling.queries.queues.waiting_order import ID_BYTES, packed
from scheduling.services.common.lease import Lease

MOST = 20_000  # jobs; those behind are shown by their own places
EVERY_S = 2.0
SHARE = 50  # reading the order takes at most one part in this many of the scheduler's time


@dataclass(slots=True)
class LastWritten:
    """What was written of a scope's order: as of which pass, and when to look again.

    `again_at`: by `time.monotonic`. `jobs` None: unknown, as an earlier scheduler may have written.
    """

    passes: int = -1
    again_at: float = 0.0
    jobs: bytes | None = None

    def tell(self, lease: Lease, state: SchedulerState, passes: int) -> None:
        """Write the order if it has changed, at most every EVERY_S."""
        began = time.monotonic()
        if passes == self.passes or began < self.again_at:
            return
        self.passes = passes
        jobs = b""
        if state.queues.ordered:
            jobs = packed(state.order_now(MOST))
        if jobs != self.jobs:
            write_order(lease, jobs, whole=len(jobs) < MOST * ID_BYTES)
            self.jobs = jobs
        now = time.monotonic()
        self.again_at = now + max(EVERY_S, (now - began) * SHARE)


def write_order(lease: Lease, jobs: bytes, *, whole: bool) -> None:
    """Write the order of `jobs`, as made by `packed`; empty = jobs stand by their own places.

    Shown, never used for decisions.
    """
    rows = SchedulerLease.objects.filter(
        cluster_id=lease.cluster_id, scope=lease.scope, token=lease.token
    )
    pk = rows.values_list("pk", flat=True).first()
    if pk is None:
        return
    if jobs:
        StandingOrder.objects.update_or_create(lease_id=pk, defaults={"jobs": jobs, "whole": whole})
    else:
        StandingOrder.objects.filter(lease=pk).delete()
