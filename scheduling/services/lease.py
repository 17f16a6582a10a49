"""Who may act on a cluster: a lease row with a fencing token.

A lease alone does not stop a scheduler that slept through its expiry, so every write transaction
of a scheduler begins with `fence`: it fails once the token has moved on, and on PostgreSQL it
holds the row until the transaction ends, so that nobody takes over in the middle of it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, Q

from scheduling.models import SchedulerLease


class LeaseLost(Exception):
    """Another scheduler leads the cluster now; whatever was being written is rolled back."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of `holder` to write for a cluster until `expires_at`."""

    cluster_id: int
    holder: str
    token: int
    expires_at: datetime


def take_or_renew(cluster_id: int, holder: str, *, now: datetime, seconds: float) -> Lease | None:
    """The lease of the cluster for `holder`, renewed or taken when free; None if another has it.

    The token grows with every change of holder. A holder that renews late keeps its token if
    nobody took the lease in between: nobody else can have written. Holders are never reused.
    """
    SchedulerLease.objects.get_or_create(cluster_id=cluster_id)
    until = now + timedelta(seconds=seconds)
    mine = Q(cluster_id=cluster_id, holder=holder) & ~Q(expires_at=None)
    free = Q(cluster_id=cluster_id) & (Q(expires_at=None) | Q(expires_at__lte=now))
    if not SchedulerLease.objects.filter(mine).update(expires_at=until):
        taken = SchedulerLease.objects.filter(free).update(
            holder=holder, expires_at=until, token=F("token") + 1
        )
        if not taken:
            return None
    row = SchedulerLease.objects.get(cluster_id=cluster_id)
    if row.holder != holder:
        return None
    return Lease(cluster_id, holder, row.token, until)


def fence(lease: Lease) -> None:
    """Call first in every write transaction; raises LeaseLost when the token has moved on."""
    row = SchedulerLease.objects.filter(
        cluster_id=lease.cluster_id, token=lease.token, holder=lease.holder
    )
    if not row.update(holder=lease.holder):
        raise LeaseLost(f"{lease.holder} no longer leads cluster {lease.cluster_id}")


def give_back(lease: Lease) -> None:
    """Let another scheduler take over at once instead of after the expiry."""
    SchedulerLease.objects.filter(
        cluster_id=lease.cluster_id, token=lease.token, holder=lease.holder
    ).update(expires_at=None)
