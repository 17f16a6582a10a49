"""Jobs that lack nodes, and stand-ins for their pods on nodes of groups that may grow."""

from collections.abc import Iterator
from typing import Any

from scheduling.engine.states import HOLDING, JobState
from scheduling.engine.types import PodSetSpec
from scheduling.engine.verdict import Reason
from scheduling.kube.translate.node_groups import NodeGroup
from scheduling.session.memory.live import LiveJob
from scheduling.session.pods import pod as kant_pods
from scheduling.session.pods.autoscaling.waits import would_help

Name = tuple[str, str]  # namespace and name
Groups = tuple[NodeGroup, ...]


def lacks_nodes(job: LiveJob, has: bool) -> bool:
    """Whether an autoscaler is to hear of a waiting job. `has`: it already has.

    A job that it knows stays while others are ahead: if jobs came and went, nodes would be added
    and removed.
    """
    if job.state != JobState.QUOTA_RESERVED or job.is_held:
        return False
    if job.leaving is not None or job.pods:
        return False
    return would_help(job.reason) or (has and job.reason != Reason.BACKING_OFF)


def misses_nodes(job: LiveJob, has: bool) -> bool:
    """Whether an autoscaler is to hear of a running job that misses some of its pods."""
    if job.state not in HOLDING or job.complete or job.is_held or job.leaving is not None:
        return False
    reason = job.waits_for.partition(":")[0]
    return would_help(reason) or (has and reason == Reason.BEHIND_IN_QUEUE)


def starts_with(job: LiveJob) -> Iterator[tuple[int, PodSetSpec, int]]:
    """Yield (index, pod set, pods that need nodes); of a gang, those it cannot start without."""
    for index, pod_set in enumerate(job.asked.pod_sets):
        count = pod_set.least if job.request.gang else pod_set.count
        if count:
            yield index, pod_set, count


def groups_for(job: LiveJob, pod_set: int, groups: Groups) -> list[NodeGroup]:
    """Return the groups whose nodes could hold a pod of the set by their GPUs.

    Groups with the models that the job prefers come first.
    """
    asked = job.asked.pod_sets[pod_set]
    if not asked.gpus:
        return [g for g in groups if g.example.without_gpus or not asked.avoids_gpus]
    fit = [g for g in groups if len(g.example.devices) >= asked.gpus]
    if not asked.gpu_models:
        return fit
    fit = [g for g in fit if g.example.gpu_model in asked.gpu_models]
    return sorted(fit, key=lambda g: asked.gpu_models.index(g.example.gpu_model))


def may_be_held(job: LiveJob, groups: Groups) -> bool:
    """Whether the groups have GPUs for each pod that the job needs nodes for."""
    return all(groups_for(job, index, groups) for index, *_ in starts_with(job))


def such_a_pod(
    job: LiveJob, pod_set: int, ordinal: int, groups: Groups, name: Name
) -> dict[str, Any]:
    """Return a stand-in for a pod of the job, on a node of one of the groups."""
    fit = groups_for(job, pod_set, groups)
    terms = tuple(dict.fromkeys(group.term for group in fit))
    of_group = () if any(not term for term in terms) else terms
    return kant_pods.stand_in(job, pod_set, ordinal, fit[0].example, of_group, name)
