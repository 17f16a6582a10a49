"""What Kant writes on its pods: names, labels, the device choice; and how it reads them back."""

import json
import re
from collections.abc import Mapping
from typing import Any

from scheduling.engine.types import MILLI, PodPlacement, PodSet
from scheduling.kube.seam import CreateAndBind, PodFacts
from scheduling.session.live import LiveJob, LivePod, PodKey, PodTemplate

JOB, TENANT, ATTEMPT = "kant.io/job", "kant.io/tenant", "kant.io/attempt"
POD_SET, ORDINAL = "kant.io/pod-set", "kant.io/ordinal"

# Reasons with which a pod ends as Failed although its own program is not to blame: the kubelet
# rejected it, or the node took it down (kubelet eviction, node shutdown).
NOT_ITS_FAULT = re.compile(
    r"OutOf\S+|UnexpectedAdmissionError|TopologyAffinityError|Node(Affinity|Name|Ports|Lost)"
    r"|TaintToleration|PodOS\w+|SupplementalGroupsPolicyNotSupported|InvalidNodeInfo"
    r"|Evicted|Preempting|Shutdown|NodeShutdown|TerminationByKubelet|AdmissionFailed"
)
LABEL_LIMIT = 63


def pod_name(job: LiveJob, place: PodPlacement) -> str:
    """A legal pod and host name (63 characters): unique by job id, attempt, set and ordinal."""
    pod_set = job.request.pod_sets[place.pod_set].name
    name = f"{job.name}-{job.id[:8]}-{job.attempt}-{pod_set}-{place.ordinal}"
    if len(name) <= LABEL_LIMIT:
        return name
    # What makes the name unique stays whole; the names that people chose give way.
    tail = f"-{job.id[:8]}-{job.attempt}-{place.pod_set}-{place.ordinal}"
    return job.name[: LABEL_LIMIT - len(tail)].rstrip("-") + tail


def create_and_bind(job: LiveJob, pod: LivePod, namespace: str) -> CreateAndBind:
    """The effect that brings one pod of the job to its place."""
    pod_set = job.request.pod_sets[pod.place.pod_set]
    template = job.templates[pod.place.pod_set]
    return CreateAndBind(
        key=job.effect_key(pod),
        namespace=namespace,
        name=pod.name,
        manifest=_manifest(job, pod, pod_set, template, namespace),
        node=pod.place.node,
        annotations=binding_annotations(pod.place),
    )


def binding_annotations(place: PodPlacement) -> dict[str, str]:
    """The device choice, carried by the Binding so that it arrives with the node, atomically."""
    return {
        "kant.io/devices": json.dumps(list(place.devices)),
        "kant.io/milli": str(place.milli),
        "kant.io/nics": json.dumps(list(place.nics)),
    }


def _manifest(
    job: LiveJob, pod: LivePod, pod_set: PodSet, template: PodTemplate, namespace: str
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "main",
        "image": template.image,
        "resources": _resources(pod_set, pod.place),
    }
    if template.command:
        container["command"] = list(template.command)
    if template.env:
        container["env"] = [{"name": k, "value": v} for k, v in template.env.items()]
    spec: dict[str, Any] = {
        "schedulerName": "kant",
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    if pod_set.node_selector:
        spec["nodeSelector"] = dict(pod_set.node_selector)
    if pod_set.tolerations:
        spec["tolerations"] = [
            {
                name: value
                for name, value in (
                    ("key", t.key),
                    ("operator", t.operator),
                    ("value", t.value),
                    ("effect", t.effect),
                )
                if value
            }
            for t in pod_set.tolerations
        ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "namespace": namespace,
            "labels": {
                JOB: job.id,
                TENANT: job.request.tenant,
                ATTEMPT: str(job.attempt),
                POD_SET: str(pod.place.pod_set),
                ORDINAL: str(pod.place.ordinal),
            },
            "annotations": dict(template.annotations),
        },
        "spec": spec,
    }


def _resources(pod_set: PodSet, place: PodPlacement) -> dict[str, dict[str, str]]:
    requests: dict[str, str] = {}
    if pod_set.cpu_milli:
        requests["cpu"] = f"{pod_set.cpu_milli}m"
    if pod_set.memory_mib:
        requests["memory"] = f"{pod_set.memory_mib}Mi"
    # Extended resources are never overcommitted: Kubernetes wants them as limits too.
    extended = {name: str(amount) for name, amount in pod_set.extended.items()}
    if place.devices and place.milli == MILLI:
        extended["nvidia.com/gpu"] = str(len(place.devices))
    elif place.devices:
        extended["kant.io/gpu-milli"] = str(place.milli * len(place.devices))
    resources = {"requests": requests | extended}
    if extended:
        resources["limits"] = extended
    return resources


def identity(labels: Mapping[str, str]) -> tuple[str, int, PodKey] | None:
    """(job id, attempt, pod key) of a pod of Kant's own, None for any other."""
    try:
        key = int(labels[POD_SET]), int(labels[ORDINAL])
        return labels[JOB], int(labels[ATTEMPT]), key
    except (KeyError, ValueError):
        return None


def was_rejected(pod: PodFacts) -> bool:
    """A Failed pod that did not fail by its own program: the place is to blame, not the job."""
    if NOT_ITS_FAULT.fullmatch(pod.reason):
        return True
    return pod.exit_code is None and pod.reason != "DeadlineExceeded"


def failure_text(pod: PodFacts) -> str:
    """One sentence on why a pod failed."""
    code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
    reason = f" ({pod.reason})" if pod.reason else ""
    detail = f": {pod.message}" if pod.message else ""
    return f"Pod {pod.name} on node {pod.node or '—'} failed{code}{reason}{detail}"
