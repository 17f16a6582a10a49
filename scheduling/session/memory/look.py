"""One statement by which a pass asks the database whether anything changed."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from scheduling.engine.states import JobEventKind as Kind
from scheduling.models import Cluster, ClusterPolicy, Job, JobEvent, NodeOrder
from tenants.database import planned
from tenants.models import GpuType, Queue, Quota, Tenant

# What happens to a waiting job without its scheduler.
NEWS = (
    Kind.SUBMITTED, Kind.CANCELLED, Kind.HELD, Kind.RELEASED, Kind.CHANGED, Kind.ROUTED,
)  # fmt: skip
Span = tuple[int, int]  # first and last id, inclusive


class JobNews(NamedTuple):
    """An event of a job, in any cluster."""

    event: int
    job: str
    scope: str
    cluster: int


class DatabaseLook(NamedTuple):
    """The database at one instant.

    - `settings`: changes whenever a tenant, queue, quota, the policy, a rule of the cluster, an
      order about a node, the way to reach the cluster, or the number of GPU types changes.
    - `alone`: no other cluster has jobs that count against the same quotas.
    - `newest`: the id of the newest event, 0 = there is none.
    - `there`: how many events match, of whatever kind.
    - `news`: the oldest of these that are news.
    """

    settings: tuple[Any, ...]
    is_active: bool
    alone: bool
    newest: int
    there: int
    news: list[JobNews]


def look(
    cluster_id: int, after: int = 0, known: Sequence[Span] = (), most: int = 0
) -> DatabaseLook:
    """Look for events with ids above `after` and not in `known`; read at most `most` news.

    A cluster that is gone counts as inactive.
    """
    new = " AND ".join(("id > %s", *("NOT (id BETWEEN %s AND %s)" for _ in known)))
    asked = [after, *(end for span in known for end in span)]
    # Events of all clusters: filtered by cluster, SQLite walks through every job it ever had.
    sql = f"""
        SELECT m.*, e.id, j.id, j.scope, j.cluster_id
        FROM (SELECT
                c.is_active,
                (SELECT COUNT(*) FROM {_table(Cluster)}),
                (SELECT MAX(id) FROM {_table(JobEvent)}),
                (SELECT COUNT(*) FROM {_table(JobEvent)} WHERE {new}),
                {", ".join(f"{of}.n, {of}.v, {of}.m" for of in "tquo")}, g.n, g.m,
                p.version, c.access, c.namespace, c.label_map,
                c.job_rules, c.namespace_tenants, c.queue_map, c.node_groups, c.provisioning_class
            FROM {_table(Cluster)} c
            LEFT JOIN {_table(ClusterPolicy)} p ON p.cluster_id = c.id
            {" ".join(f"CROSS JOIN {_counted(model)} {of}" for of, model in _COUNTED)}
            CROSS JOIN (SELECT COUNT(*) AS n, MAX(id) AS m FROM {_table(GpuType)}) g
            WHERE c.id = %s) m
        LEFT JOIN (
            SELECT id, job_id FROM {_table(JobEvent)}
            WHERE {new} AND kind IN ({", ".join(["%s"] * len(NEWS))})
            ORDER BY id LIMIT %s) e ON 1 = 1
        LEFT JOIN {_table(Job)} j ON j.id = e.job_id
        ORDER BY e.id"""
    kinds = [kind.value for kind in NEWS]
    with planned.cursor() as cursor:
        cursor.execute(sql, [*asked, cluster_id, *asked, *kinds, most])
        rows = cursor.fetchall()
    if not rows:
        return DatabaseLook((), False, False, after, 0, [])
    is_active, clusters, newest, there, *settings = rows[0][:-4]
    events = (row[-4:] for row in rows if row[-3] is not None)
    news = [JobNews(event, str(UUID(str(job))), *of) for event, job, *of in events]
    return DatabaseLook(tuple(settings), bool(is_active), clusters == 1, newest or 0, there, news)


_COUNTED = (("t", Tenant), ("q", Quota), ("u", Queue), ("o", NodeOrder))


def _counted(model: Any) -> str:
    return f"(SELECT COUNT(*) AS n, SUM(version) AS v, MAX(id) AS m FROM {_table(model)})"


def _table(model: Any) -> str:
    return connection.ops.quote_name(model._meta.db_table)
