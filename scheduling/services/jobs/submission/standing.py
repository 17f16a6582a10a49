"""Read all that submissions need by one statement, and so as of one instant."""

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from django.db import connection

from scheduling.models import Cluster, NodeRecord
from scheduling.queries.nodes.installed import Pool
from tenants.database import rows
from tenants.models import GpuType, Membership, Queue, Tenant


class Installation(NamedTuple):
    """What submissions need of an installation. Keys are primary keys, or names.

    - `tenants`: the named ones, and all above them.
    - `roles`: by user, {tenant: role}.
    - `queues`: by (tenant, name).
    - `pools`: by cluster, {GPU model: what is installed}.
    """

    tenants: dict[str, Tenant]
    roles: dict[int, dict[int, str]]
    queues: dict[tuple[int, str], Queue]
    clusters: dict[str, Cluster]
    gpu_types: list[str]
    pools: dict[int, dict[str, Pool]]


def standing(
    users: Collection[int], tenants: Collection[str], queues: Collection[str]
) -> Installation:
    """Return what these users need to submit to these queues of these tenants."""
    named, who, entered = sorted(tenants), sorted(users), sorted(queues)
    found = rows.ask(_sql(len(named), len(who), len(entered)), [*named, *who, *entered])
    assert found is not None  # it selects lists
    of_tenants, of_roles, of_queues, of_clusters, gpu_types, of_pools = (one or [] for one in found)
    all_tenants = {t.pk: t for t in (rows.row(Tenant, told) for told in of_tenants)}
    for tenant in all_tenants.values():
        tenant.parent = None if tenant.parent_id is None else all_tenants[tenant.parent_id]
    roles: dict[int, dict[int, str]] = {user: {} for user in who}
    for user, tenant_id, role in of_roles:
        roles[user][tenant_id] = role
    pools: dict[int, dict[str, Pool]] = {}
    for cluster_id, model, gpus, most in of_pools:
        pools.setdefault(cluster_id, {})[model] = Pool(gpus, most)
    found_queues = {}
    for queue in (rows.row(Queue, told) for told in of_queues):
        queue.tenant = all_tenants[queue.tenant_id]
        found_queues[queue.tenant_id, queue.name] = queue
    return Installation(
        {t.name: t for t in all_tenants.values()},
        roles,
        found_queues,
        {c.name: c for c in sorted((rows.row(Cluster, told) for told in of_clusters), key=_name)},
        gpu_types,
        pools,
    )


@lru_cache(64)
def _sql(tenants: int, users: int, queues: int) -> str:
    """Return the statement for this many of each; their parameters are in this order."""
    table = {m: _table(m) for m in (Tenant, Membership, Queue, Cluster, GpuType, NodeRecord)}
    line = f"{table[Tenant]} t JOIN line USING (id)"
    roles = (
        f"{table[Membership]} m JOIN line ON line.id = m.tenant_id "
        f"WHERE m.user_id IN ({rows.marks(range(users))})"
    )
    entered = (
        f"{table[Queue]} q JOIN line ON line.id = q.tenant_id "
        f"WHERE q.name IN ({rows.marks(range(queues))})"
    )
    return f"""
        WITH RECURSIVE line(id, parent_id) AS (
            SELECT id, parent_id FROM {table[Tenant]} WHERE name IN ({rows.marks(range(tenants))})
            UNION
            SELECT a.id, a.parent_id FROM {table[Tenant]} a JOIN line ON a.id = line.parent_id
        ), pool(cluster_id, model, gpus, most) AS (
            SELECT cluster_id, gpu_model, SUM(gpus), MAX(gpus) FROM {table[NodeRecord]}
            WHERE gpus > 0 GROUP BY cluster_id, gpu_model
        ), gpu_type(name) AS (
            SELECT name FROM {table[GpuType]} ORDER BY name
        )
        SELECT
            {rows.listed(rows.as_json(Tenant, "t"), line)},
            {rows.listed(rows.array("m.user_id", "m.tenant_id", "m.role"), roles)},
            {rows.listed(rows.as_json(Queue, "q"), entered)},
            {rows.listed(rows.as_json(Cluster, "c"), f"{table[Cluster]} c WHERE c.is_active")},
            {rows.listed("gpu_type.name", "gpu_type")},
            {rows.listed(rows.array("cluster_id", "model", "gpus", "most"), "pool")}
    """


def _name(cluster: Cluster) -> str:
    return cluster.name


def _table(model: type[Tenant | Membership | Queue | Cluster | GpuType | NodeRecord]) -> str:
    return connection.ops.quote_name(model._meta.db_table)
