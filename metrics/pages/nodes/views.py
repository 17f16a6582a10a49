"""The pages of nodes, for everybody."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from django.core.paginator import Paginator
from django.db.models import Count, F, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from metrics import selectors
from metrics.pages.operations.views import selection
from scheduling.engine.verdict import counted
from scheduling.models import Cluster, NodeRecord, Placement, PodSet
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.pages.polled import polled
from scheduling.queries.nodes.orders import order_of
from scheduling.queries.standstill import remarks
from tenants.names import but
from tenants.permissions import Access, access_of
from tenants.web.pages import UnknownFilter, live_or_whole, page_login_required

NODES_PER_PAGE = 50
FREE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)  # free GPUs of a node: "3", "1-3"


@page_login_required
def nodes(request: HttpRequest) -> HttpResponse:
    return polled(request, access_of(request.user), lambda: _nodes(request), alike=True)


def _nodes(request: HttpRequest) -> HttpResponse:
    chosen = selection(request, ("q", "gpu", "cluster", "show", "free"), "page")
    rows = selectors.all_nodes(chosen.scope.cluster, chosen.scope.gpu_model).select_related(
        "cluster"
    )
    wanted, show = request.GET.get("q", "").strip(), request.GET.get("show", "")
    if wanted:
        rows = rows.filter(
            Q(name__icontains=wanted) | Q(leaf__icontains=wanted) | Q(spine__icontains=wanted)
        )
    filters = {
        "free": Q(allocated_milli=0, schedulable=True) & (Q(gpus__gt=0) | Q(pods=0)),
        "part": Q(allocated_milli__gt=0, free_gpus__gt=0)
        | Q(allocated_milli=0, free_gpus__gt=0, healthy_gpus__lt=F("gpus"), schedulable=True)
        | Q(gpus=0, pods__gt=0, allocated_cpu_milli__lt=F("cpu_milli")),
        "trouble": Q(schedulable=False)
        | ~Q(problems=[])
        | Q(healthy_gpus__lt=F("gpus"))
        | Q(facts__has_key="unhealthy_nics"),
    }
    # Counted before `show` applies, so that each number leads to what it counts.
    standing = rows.order_by().aggregate(
        nodes=Count("pk"),
        gpus_there=Sum("gpus", default=0),
        out=Count("pk", filter=Q(schedulable=False)),
        **{name: Count("pk", filter=of) for name, of in filters.items()},
    )
    unknown = dict(chosen.unknown)
    if show in filters:
        rows = rows.filter(filters[show])
    elif show:
        text = f"There is no node filter “{show}”{but(show, filters)}"
        unknown["show"] = UnknownFilter("show", show, text)
    free = request.GET.get("free", "")
    if free and (band := FREE.fullmatch(free)) is None:
        text = f"“{free[:20]}” is no number of free GPUs, nor two of them as 1-3"
        unknown["free"] = UnknownFilter("free", free, text)
    elif free and band is not None:
        least, most = int(band[1]), int(band[2] or band[1])
        # Only nodes that jobs can get.
        rows = rows.filter(free_gpus__gte=least, free_gpus__lte=most, schedulable=True)
    if unknown:
        rows = rows.none()
    page = Paginator(rows.order_by("name", "cluster_id"), NODES_PER_PAGE).get_page(
        request.GET.get("page")
    )
    context = {
        "nav": "nodes",
        "chosen": chosen,
        "page": page,
        "q": wanted,
        "show": show,
        "free": free,
        "unknown": unknown,
        "standing": {} if unknown else standing,
        "remarks": [
            (c, text) for c in _shown(chosen.scope.cluster, chosen.clusters) if (text := remarks(c))
        ],
        "may_come": _may_come(chosen.scope.cluster, chosen.clusters),
        "only_named": [c for c in _shown(chosen.scope.cluster, chosen.clusters) if not c.takes_any],
    }
    return render(request, live_or_whole(request, "metrics/nodes/nodes.html"), context)


def _shown(one: Cluster | None, clusters: Iterable[Cluster]) -> Iterable[Cluster]:
    return [one] if one is not None else clusters


def _may_come(one: Cluster | None, clusters: Iterable[Cluster]) -> list[tuple[Cluster, str]]:
    """Describe what autoscalers may add to these clusters, or to one of them."""
    found = []
    for cluster in _shown(one, clusters):
        groups = [
            f"{name} up to {counted(group['max_nodes'], 'node', 'nodes')} of "
            + (f"{group['gpus']} {group['gpu_type']}" if group.get("gpus") else "no GPU")
            for name, group in sorted(cluster.node_groups.items())
        ]
        if groups:
            asked = cluster.provisioning_class
            by = f", gangs by ProvisioningRequests of class {asked}" if asked else ""
            found.append((cluster, "; ".join(groups) + by))
    return found


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One GPU of a node and who holds it."""

    index: int
    placements: list[Placement]
    healthy: bool


def device_rows(node: NodeRecord, placements: list[Placement]) -> list[DeviceRow]:
    rows = []
    bad = node.facts.get("unhealthy_gpus", {"value": []})["value"]
    for index in range(node.gpus):
        here = [p for p in placements if index in p.devices]
        rows.append(DeviceRow(index, here, index not in bad))
    return rows


@dataclass(frozen=True, slots=True)
class PodBeside:
    """A pod that asks for no GPU, and what it asks for instead."""

    placement: Placement
    cpu_milli: int
    memory_mib: int


def pods_beside(placements: list[Placement]) -> list[PodBeside]:
    """Return the pods that hold no GPU."""
    without = [p for p in placements if not p.devices]
    sets = PodSet.objects.filter(job__in={p.job_id for p in without})
    asked = {
        (job, index): amounts
        for job, index, *amounts in sets.values_list("job", "index", "cpu_milli", "memory_mib")
    }
    return [PodBeside(p, *asked[p.job_id, p.pod_set]) for p in without]


def held_besides(node: NodeRecord, placements: list[Placement]) -> int:
    """Return the milli-GPU allocated on the node but not to these placements."""
    return max(0, node.allocated_milli - sum(p.held_milli for p in placements))


@page_login_required
def node(request: HttpRequest, cluster: str, name: str) -> HttpResponse:
    rows = NodeRecord.objects.select_related("cluster")
    found = get_object_or_404(rows, cluster__name=cluster, name=name)
    access = access_of(request.user)
    return polled(request, access, lambda: _node(request, found, access), alike=True)


def _node(request: HttpRequest, found: NodeRecord, access: Access) -> HttpResponse:
    # Of all clusters: with one cluster in the query, SQLite would walk through all jobs that it
    # ever had.
    live = Placement.objects.filter(node=found.name, state__in=LIVE_PLACEMENTS)
    placements = [
        placement
        for placement in live.select_related("job__tenant")
        if placement.job.cluster_id == found.cluster_id
    ]
    task = order_of(found.cluster_id, found.name)
    there = task.jobs if task is not None else []
    context = {
        "nav": "nodes",
        "node": found,
        "task": task,
        "seen": {one.job.pk for one in there if access.may_view(one.job.tenant_id)},
        "named": {p.pk for p in placements if access.may_view(p.job.tenant_id)},
        "devices": device_rows(found, placements),
        "beside": pods_beside(placements),
        "held_besides": held_besides(found, placements),
        "facts": sorted(found.facts.items()),
    }
    return render(request, live_or_whole(request, "metrics/nodes/node.html"), context)
