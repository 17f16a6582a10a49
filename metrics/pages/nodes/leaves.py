"""The page of a leaf: its nodes, what runs there, and the possible actions."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from metrics import definitions
from metrics.definitions import NodeUse
from scheduling.engine.types import whole_milli
from scheduling.models import Cluster, Job, NodeRecord, Placement
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.pages.polled import polled
from tenants.permissions import Access, access_of
from tenants.web.pages import live_or_whole, page_login_required


@dataclass(slots=True)
class LeafJob:
    """What a job holds of a leaf; None = all jobs together that the reader may not see."""

    job: Job | None
    pods: int = 0
    exactly: float = 0.0  # milli-GPU
    nodes: set[str] = field(default_factory=set)

    @property
    def milli(self) -> int:
        return whole_milli(self.exactly)


@page_login_required
def leaf(request: HttpRequest, cluster: str, name: str) -> HttpResponse:
    found, access = get_object_or_404(Cluster, name=cluster), access_of(request.user)
    return polled(request, access, lambda: _leaf(request, found, name, access), alike=True)


def _leaf(request: HttpRequest, cluster: Cluster, name: str, access: Access) -> HttpResponse:
    rows = NodeRecord.objects.filter(cluster=cluster, leaf=name).select_related("cluster")
    nodes = list(rows.order_by("name"))
    if not nodes:
        raise Http404(f"Cluster “{cluster.name}” has no node below a leaf “{name}”.")
    jobs = _jobs(cluster, nodes, access)
    on_node: defaultdict[str, list[LeafJob]] = defaultdict(list)
    for one in jobs:
        for node in one.nodes:
            on_node[node].append(one)
    models = sorted({node.gpu_model for node in nodes if node.gpus})
    context = {
        "nav": "nodes",
        "cluster": cluster,
        "name": name,
        "nodes": [(node, on_node[node.name]) for node in nodes],
        "jobs": jobs,
        "use": definitions.pool_use([_use(node) for node in nodes]),
        "free": sum(node.free_gpus for node in nodes if node.schedulable),
        "models": models,
        "place": nodes[0],
    }
    return render(request, live_or_whole(request, "metrics/nodes/leaf.html"), context)


def _use(node: NodeRecord) -> NodeUse:
    return NodeUse(
        gpu_model=node.gpu_model,
        gpus=node.gpus,
        healthy=node.healthy_gpus,
        free=node.free_gpus,
        allocated_milli=node.allocated_milli,
        schedulable=node.schedulable,
        leaf=node.leaf,
    )


def _jobs(cluster: Cluster, nodes: Sequence[NodeRecord], access: Access) -> list[LeafJob]:
    """Return the jobs with pods there, those with the most GPUs first, hidden ones last."""
    # Of all clusters: with one cluster in the query, SQLite would walk through all jobs that it
    # ever had.
    live = Placement.objects.filter(
        node__in=[node.name for node in nodes], state__in=LIVE_PLACEMENTS
    ).select_related("job__tenant")
    found: dict[object, LeafJob] = {}
    for placement in live:
        job = placement.job
        if job.cluster_id != cluster.pk:
            continue
        seen = access.may_view(job.tenant_id)
        one = found.setdefault(job.pk if seen else None, LeafJob(job if seen else None))
        one.pods += 1
        one.exactly += placement.held_exactly
        one.nodes.add(placement.node)
    return sorted(found.values(), key=lambda one: (one.job is None, -one.exactly))
