"""Write what queues are owed, for the next scheduler."""

from collections import defaultdict
from dataclasses import dataclass

from scheduling.engine.cycle import SchedulerState
from scheduling.models import SchedulerLease
from scheduling.services.common.lease import Lease

EVERY_S = 60.0  # debts build up over hours, so a minute matters little


@dataclass(slots=True)
class DebtsWritten:
    """What was written of a scope, and as of when (seconds since the epoch).

    `owed` None: unknown, as an earlier scheduler may have written.
    """

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
    """Write (tenant, queue, GPUs) that are `owed` as of `at`, in seconds since the epoch."""
    of_tenants: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for tenant, queue, gpus in owed:
        of_tenants[tenant][queue] = gpus
    SchedulerLease.objects.filter(
        cluster_id=lease.cluster_id, scope=lease.scope, token=lease.token
    ).update(queue_debts={"at": at, "owed": dict(of_tenants)} if owed else {})
