"""What queues are owed, written for the scheduler that comes after this one."""

from collections import defaultdict
from dataclasses import dataclass

from scheduling.engine.cycle import SchedulerState
from scheduling.models import SchedulerLease
from scheduling.services.common.lease import Lease

EVERY_S = 60.0  # what is owed by then is told by minutes of hours


@dataclass(slots=True)
class DebtsWritten:
    """What was written of a scope, and as of when (seconds since the epoch). `owed` None: not
    known, as a scheduler before may have written."""

    at: float = 0.0
    owed: tuple[tuple[str, str, float], ...] | None = None

    def tell(self, lease: Lease, state: SchedulerState) -> None:
        """Write the debts as of the last cycle if they have changed, at most every EVERY_S."""
        now = state.cluster.now
        if now - self.at < EVERY_S:
            return
        self.at = now
        owed = state.queues.debts()
        if owed != self.owed:
            write_debts(lease, owed, now)
            self.owed = owed


def write_debts(lease: Lease, owed: tuple[tuple[str, str, float], ...], at: float) -> None:
    """`owed`: (tenant, queue, GPUs) as of `at`, seconds since the epoch."""
    of_tenants: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for tenant, queue, gpus in owed:
        of_tenants[tenant][queue] = gpus
    SchedulerLease.objects.filter(
        cluster_id=lease.cluster_id, scope=lease.scope, token=lease.token
    ).update(queue_debts={"at": at, "owed": dict(of_tenants)} if owed else {})
