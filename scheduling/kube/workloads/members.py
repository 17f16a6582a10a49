"""Which waiting pods form a gang, and which pods it lacks. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from scheduling.kube.seam import PodFacts, Workload
from scheduling.kube.translate.plain_pods import GANG, GANG_SIZE

COUNT = re.compile("[0-9]{1,6}")


class Members(NamedTuple):
    """The pods of a gang that start together, and those beyond its minimum."""

    gang: list[PodFacts]
    others: list[PodFacts]


def workload_of(pod: PodFacts) -> Workload | None:
    return pod.plain.workload if pod.plain is not None else None


def gang_of(pod: PodFacts) -> str:
    """Return the name of a waiting pod's gang, unique in its namespace; "" = it has none."""
    if GANG in pod.labels:
        return pod.labels[GANG]
    workload = workload_of(pod)
    return workload.gang if workload is not None else ""


def is_elastic(pods: Sequence[PodFacts]) -> bool:
    """Whether pods beyond the gang's minimum start one by one."""
    workload = workload_of(pods[0])
    return workload is not None and workload.elastic


def missing(pods: Sequence[PodFacts]) -> dict[str, int]:
    """Return how many pods their gang lacks, by group of its workload."""
    workload = workload_of(pods[0])
    if workload is None:
        return {}
    here = Counter(_group(pod, workload) for pod in pods)
    return {g.name: g.minimum - here[g.name] for g in workload.groups if here[g.name] < g.minimum}


def is_short(pods: Sequence[PodFacts]) -> bool:
    """Whether more pods of this gang are still to come, if these agree on its size."""
    if workload_of(pods[0]) is not None:
        return bool(missing(pods))
    sizes = {pod.annotations.get(GANG_SIZE, "") for pod in pods}
    return len(sizes) == 1 and bool(COUNT.fullmatch(size := sizes.pop())) and len(pods) < int(size)


def members(pods: Sequence[PodFacts]) -> Members:
    """Split the pods: per group, as many as the gang starts with, first by name; and the others."""
    workload = workload_of(pods[0])
    if workload is None or not workload.elastic:
        return Members(list(pods), [])
    found = Members([], [])
    left = defaultdict[str, int](int, {g.name: g.minimum for g in workload.groups})
    for pod in sorted(pods, key=lambda pod: natural(pod.name)):
        group = _group(pod, workload)
        (found.gang if left[group] > 0 else found.others).append(pod)
        left[group] -= 1
    return found


def natural(name: str) -> list[str | int]:
    """Return a sort key that puts worker-2 before worker-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _group(pod: PodFacts, workload: Workload) -> str:
    """Return the group that the pod counts in; "" if the gang has one group without a name."""
    if workload.groups and not workload.groups[0].name:
        return ""
    own = workload_of(pod)
    return own.group if own is not None else ""
