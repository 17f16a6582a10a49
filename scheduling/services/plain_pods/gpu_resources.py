"""Pods get GPUs of the resource they ask for: no kubelet gives nvidia.com/gpu for amd.com/gpu.

GPU types say nothing of resources, so the job of such pods names the types that matching nodes
have.
"""

from collections.abc import Mapping
from typing import Any

from scheduling.kube.translate.quantities import GPU_RESOURCES
from scheduling.services.jobs.capacity import Installed
from scheduling.services.plain_pods.spec import REQUESTS, PodSets, Refused


def of_its_resource(
    document: Mapping[str, Any], sets: PodSets, installed: Installed
) -> Mapping[str, Any]:
    """Return the document with the GPU types that nodes offer under each pod set's resource.

    Only if the cluster has other resources, too. Raises Refused if no type is left.
    """
    resources = {pool.resource for pool in installed.pools.values()} - {""}
    asked = [(part[0].pod.gpu_resources or GPU_RESOURCES)[0] for part in sets]
    if resources <= set(asked) and len(set(asked)) == 1:
        return document
    pairs = zip(document["pod_sets"], sets, asked, strict=True)
    found = [
        _narrowed(pod_set, resource, installed) if part[0].pod.gpus else pod_set
        for pod_set, part, resource in pairs
    ]
    return {**document, "pod_sets": found}


def _narrowed(pod_set: dict[str, Any], resource: str, installed: Installed) -> dict[str, Any]:
    pools = installed.pools
    others = {model for model, pool in pools.items() if pool.resource not in ("", resource)}
    named = pod_set.get("gpu_types")
    left = [model for model in named or sorted(pools) if model not in others]
    if left:
        return {**pod_set, "gpu_types": left}
    by = sorted({pools[model].resource for model in named or pools if model in pools})
    whose = f"GPUs of {', '.join(named)}" if named else f"GPUs of cluster {installed.cluster.name}"
    text = f"{whose} are requested by {' or '.join(by)}. Request them by that resource."
    raise Refused("NoMatchingGpuType", f"{REQUESTS}[{resource}]: {text}")
