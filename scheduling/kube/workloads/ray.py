"""RayCluster: alone, or owned by a RayJob or a RayService.

The head and the minimum of each worker group are one gang; pods that Ray's autoscaler adds start
one by one. Source: ray.io/v1 RayClusterSpec.
"""

from collections.abc import Mapping
from typing import Any

from scheduling.kube.seam import GangGroup, PodFacts, Workload
from scheduling.kube.workloads.reading import (
    Found,
    Rule,
    count_of,
    gang,
    list_of,
    part_of,
    suspended,
)

KIND = "RayCluster"
GROUP = "ray.io/group"
HEAD = "headgroup"


def read(pod: PodFacts, cluster: Found) -> Workload:
    spec = part_of(cluster, "spec")
    if spec.get("suspend"):
        return suspended(KIND, cluster)
    groups = [GangGroup(HEAD, 1)]
    groups += [_workers(i, group) for i, group in enumerate(list_of(spec, "workerGroupSpecs"))]
    return gang(KIND, cluster, groups, group=pod.labels.get(GROUP, HEAD), elastic=True)


def _workers(index: int, group: Mapping[str, Any]) -> GangGroup:
    name = str(group.get("groupName") or f"worker-group-{index}")
    field = f"spec.workerGroupSpecs[{name}]"
    least = count_of(group, "minReplicas", 0, f"{field}.minReplicas")
    wanted = count_of(group, "replicas", 0, f"{field}.replicas")
    hosts = count_of(group, "numOfHosts", 1, f"{field}.numOfHosts")
    return GangGroup(name, 0 if group.get("suspend") else (least or wanted) * hosts)


RULE = Rule("ray.io", KIND, "rayclusters", read)
