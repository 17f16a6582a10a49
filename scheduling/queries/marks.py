"""Detect that something has changed, without reading it.

Every transition of a job has an event; tenants, quotas, queues and policies have versions; what
people change of an organisation, of nodes and of policies is in the audit trail. What a scheduler
writes besides, such as the places of pods, shows in the count of its passes, which it writes every
other second. An event that commits after one with a larger id is noticed with the next one.
"""

from typing import Any, NamedTuple

from django.db import connection
from django.db.models.fields.json import KeyTextTransform

from scheduling.models import Cluster, JobEvent
from tenants.models import AuditRecord, GpuType, Queue, Quota, Tenant


class Marks(NamedTuple):
    """Values that change when something changes.

    - `newest`: the id of the newest event of any job.
    - `versions`: of tenants, quotas, queues and GPU types.
    - `audited`: when the audit trail last got a record.
    - `clusters`: of each its status, the time of its forecast, its policy, who leads its scopes,
      and how many passes of these schedulers changed something.
    """

    newest: int | None
    versions: tuple[Any, ...]
    audited: Any
    clusters: tuple[tuple[Any, ...], ...]


def marks() -> Marks:
    """Return the current marks, by two statements."""
    quote = connection.ops.quote_name
    asked = [
        f"(SELECT MAX(id) FROM {quote(JobEvent._meta.db_table)})",
        f"(SELECT MAX(at) FROM {quote(AuditRecord._meta.db_table)})",
    ]
    for model in (Tenant, Quota, Queue, GpuType):
        table = quote(model._meta.db_table)
        sums = ("COUNT(*)", "MAX(id)", *(() if model is GpuType else ("SUM(version)",)))
        asked += [f"(SELECT {one} FROM {table})" for one in sums]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(asked)}")
        newest, audited, *versions = cursor.fetchone()
    clusters = Cluster.objects.order_by("pk", "leases__pk").values_list(
        "pk", "name", "title", "is_active", "connected", "status_message", "forecasting__as_of",
        "policy__version", "leases__scope", "leases__holder", "leases__token",
        KeyTextTransform("passes", "leases__pace"), KeyTextTransform("own_clock", "leases__pace"),
    )  # fmt: skip
    return Marks(newest, tuple(versions), audited, tuple(clusters))
