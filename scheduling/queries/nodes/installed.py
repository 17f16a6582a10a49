"""Which GPUs a cluster has, by the projection of its nodes, and which an autoscaler may add."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.db.models import Max, Q, QuerySet, Sum
from django.db.models.fields.json import KeyTextTransform, KeyTransform

from scheduling.kube.translate.node_groups import NodeGroup, groups_of
from scheduling.models import Cluster, NodeRecord

# Nodes that have not reported yet what pods may request.
REGISTERS = Q(cpu_milli=0) | Q(memory_mib=0)


# As found by the translator of nodes (`kube.translate.nodes`).
_RESOURCE = KeyTextTransform("value", KeyTransform("gpu_resource", "facts"))


class Pool(NamedTuple):
    """Installed GPUs of one model in a cluster, and the most on one node.

    `resource`: the resource by which pods request them, "" = unknown.
    """

    gpus: int
    per_node: int
    resource: str = ""


def groups_to_come(cluster: Cluster, gpu_model: str | None = None) -> list[tuple[NodeGroup, int]]:
    """Return how many nodes an autoscaler may still add to each node group.

    With `gpu_model`, only of groups of that model.
    """
    groups = groups_of(cluster.node_groups, cluster.label_map)
    if gpu_model is not None:
        groups = tuple(group for group in groups if group.example.gpu_model == gpu_model)
    there = [_of_group(cluster, group).exclude(REGISTERS).count() for group in groups]
    return [(g, max(g.most - has, 0)) for g, has in zip(groups, there, strict=True)]


def pools_of(
    cluster: Cluster,
    to_come: Sequence[tuple[NodeGroup, int]],
    installed: Mapping[str, Pool] | None = None,
) -> dict[str, Pool]:
    """Return {GPU model: what is installed, or may come}. `installed`: if it was read before."""
    pools = dict(_installed(cluster) if installed is None else installed)
    for group, count in to_come:
        node = group.example
        if count and node.devices:
            gpus, most, resource = pools.get(node.gpu_model, Pool(0, 0, node.gpu_resource))
            size = len(node.devices)
            # A node that is registering already counts as installed.
            more = count - _of_group(cluster, group).filter(REGISTERS).count()
            pools[node.gpu_model] = Pool(gpus + more * size, max(most, size), resource)
    return pools


def _installed(cluster: Cluster) -> dict[str, Pool]:
    rows = (
        NodeRecord.objects.filter(cluster=cluster, gpus__gt=0)
        .order_by()
        .values_list("gpu_model")
        .annotate(Sum("gpus"), Max("gpus"), resource=Max(_RESOURCE))
    )
    return {model: Pool(total, most, resource or "") for model, total, most, resource in rows}


def _of_group(cluster: Cluster, group: NodeGroup) -> QuerySet[NodeRecord]:
    """Return the nodes of a group that the cluster has.

    `NodeGroup.has` is true for those that have reported their amounts.
    """
    mine = group.example
    rows = NodeRecord.objects.filter(
        cluster=cluster, gpu_model=mine.gpu_model, gpus=len(mine.devices)
    )
    for at, (key, value) in enumerate(sorted(group.labels.items())):
        of_label = KeyTransform(key, "labels")
        rows = rows.annotate(**{f"label_{at}": of_label}).filter(**{f"label_{at}": value})
    return rows
