"""A snapshot of a cluster: what its schedulers would be told at their start, by the rows."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

from scheduling.models import Cluster
from scheduling.queries.known import Known, jobs_told, names_of, scopes_of
from scheduling.queries.snapshots.document import Snapshot, SnapshotScope


def snapshot_of_cluster(cluster: Cluster) -> Snapshot:
    """Take a snapshot now. Raises CannotTell if no node of the cluster is known."""
    with _at_one_time():
        at = time.time()
        known = Known(cluster, decided_on=False)
        scopes = tuple(
            SnapshotScope(scope, tuple(known.facts(scope))) for scope in scopes_of(known.policy)
        )
        jobs = [job for one in scopes for job in jobs_told(one.facts)]
        return Snapshot(cluster.name, at, scopes, names=names_of(jobs))


@contextmanager
def _at_one_time() -> Iterator[None]:
    """Read all rows as of one instant: writes meanwhile are not seen in part."""
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield
