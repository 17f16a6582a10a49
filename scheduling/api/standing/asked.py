"""Query parameters that limit a question about the current state to some jobs and GPUs."""

from collections.abc import Collection
from typing import NamedTuple

from rest_framework.request import Request

from scheduling.models import Cluster
from scheduling.queries.names import cluster_names, gpu_type_names
from tenants.api.filters import asked_for
from tenants.models import User
from tenants.names import tenant_names
from tenants.permissions import access_of
from tenants.selectors import subtree_ids

WHOSE = {
    "tenant": "Name of a tenant; includes all tenants below it.",
    "gpu_type": "GPU type; default: all.",
    "cluster": "Name of a cluster; default: all together.",
}


class Whose(NamedTuple):
    """The limits of a question; None = no limit.

    `tenants`: primary keys of tenants that the reader may see.
    """

    tenants: Collection[int] | None
    cluster: Cluster | None
    gpu_type: str | None


def whose(request: Request, reader: User) -> Whose:
    """Read the limits from a request. Raises a Problem for names that the reader does not know."""
    query = request.query_params
    tenants, cluster = access_of(reader).visible_tenants(), None
    if name := query.get("tenant", ""):
        tenants = frozenset(subtree_ids(asked_for("tenant", name, tenant_names(reader)).pk))
    if name := query.get("cluster", ""):
        cluster = asked_for("cluster", name, cluster_names())
    if gpu_type := query.get("gpu_type", ""):
        asked_for("gpu_type", gpu_type, gpu_type_names())
    return Whose(tenants, cluster, gpu_type or None)
