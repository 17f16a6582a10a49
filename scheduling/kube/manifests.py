"""Pod manifests of Kant's own jobs: plain values in, a Kubernetes object out."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from scheduling.engine.types import MILLI, Toleration
from scheduling.kube.nodes import TOLERATED
from scheduling.kube.quantities import GPU_MILLI

SCHEDULER_NAME = "kant"
JOB = "kant.io/job"
TENANT = "kant.io/tenant"
ATTEMPT = "kant.io/attempt"
POD_SET = "kant.io/pod-set"
ORDINAL = "kant.io/ordinal"
DEVICES = "kant.io/devices"
DEVICE_MILLI = "kant.io/milli"
NICS = "kant.io/nics"

# A pod that is to be told before it is deleted finds its annotations there, one a line.
TOLD_AT = "/etc/kant"

# Pod names may be longer, but a host name is made of them.
NAME_LIMIT = 63
POD_SET_LIMIT = 20
_ILLEGAL = re.compile(r"[^a-z0-9-]+")


class PodTemplate(Struct, frozen=True, kw_only=True):
    """What the pods of one pod set of one attempt have in common.

    `gpus`, `cpu_milli`, `memory_mib`, `extended`: per pod. `gpu_resource`: the resource that the
    nodes advertise whole GPUs as. `pod_set` is the index. `is_told`: its annotations can be read
    inside, in the file `annotations` of TOLD_AT.
    """

    namespace: str
    job_id: str
    tenant: str
    attempt: int
    pod_set: int
    image: str
    command: Sequence[str] = ()
    env: Mapping[str, str] = {}
    gpus: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    extended: Mapping[str, int] = {}
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    node_selector: Mapping[str, str] = {}
    tolerations: Iterable[Toleration] = ()
    gpu_resource: str = "nvidia.com/gpu"
    scheduler_name: str = SCHEDULER_NAME
    is_told: bool = False


def pod_name(
    job_name: str, job_id: str, attempt: int, pod_set: int, pod_set_name: str, ordinal: int
) -> str:
    """`{job}-{8 hex of the job's id}-{attempt}-{pod set}-{ordinal}`, a legal name of ≤ 63
    characters; a pod set's name of more than 20 is cut and followed by its index, the job's name
    is cut to what is left, what makes it unique never is."""
    middle = f"-{job_id.replace('-', '')[:8]}-{attempt}-"
    end = f"-{ordinal}"
    whole = _legal(pod_set_name) or "pods"
    # With its index a cut name is longer than any that is not cut, and so never the same.
    set_name = f"{whole[:POD_SET_LIMIT]}-{pod_set}" if len(whole) > POD_SET_LIMIT else whole
    room = NAME_LIMIT - len(middle) - len(set_name) - len(end)
    return f"{_legal(job_name)[:room].strip('-') or 'job'}{middle}{set_name}{end}"


def pod_manifest(
    template: PodTemplate, name: str, ordinal: int, milli: int = MILLI
) -> dict[str, Any]:
    """The pod of that name and ordinal. `milli` of its GPU where it gets a fraction (1000 = whole
    GPUs)."""
    container: dict[str, Any] = {
        "name": "main",
        "image": template.image,
        "resources": _resources(template, milli),
    }
    if template.command:
        container["command"] = list(template.command)
    if template.env:
        container["env"] = [{"name": key, "value": value} for key, value in template.env.items()]
    spec: dict[str, Any] = {
        "schedulerName": template.scheduler_name,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
        "tolerations": _tolerations(template.tolerations),
    }
    if template.node_selector:
        spec["nodeSelector"] = dict(template.node_selector)
    if template.is_told:
        field = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}
        spec["volumes"] = [{"name": "kant", "downwardAPI": {"items": [field]}}]
        container["volumeMounts"] = [{"name": "kant", "mountPath": TOLD_AT, "readOnly": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": template.namespace,
            "labels": {
                **template.labels,
                **own_labels(
                    template.job_id, template.tenant, template.attempt, template.pod_set, ordinal
                ),
            },
            "annotations": dict(template.annotations),
        },
        "spec": spec,
    }


def own_labels(
    job_id: str, tenant: str, attempt: int, pod_set: int, ordinal: int
) -> dict[str, str]:
    """The labels that say which pod of which attempt of which job it is."""
    return {
        JOB: job_id,
        TENANT: tenant,
        ATTEMPT: str(attempt),
        POD_SET: str(pod_set),
        ORDINAL: str(ordinal),
    }


def binding_annotations(
    devices: Sequence[int], milli: int, nics: Sequence[int] = ()
) -> dict[str, str]:
    """The device choice as it travels with the Binding into the pod."""
    if not devices:
        return {}
    chosen = {DEVICES: json.dumps(list(devices)), DEVICE_MILLI: str(milli)}
    if nics:
        chosen[NICS] = json.dumps(list(nics))
    return chosen


def _resources(template: PodTemplate, milli: int) -> dict[str, dict[str, str]]:
    amounts: dict[str, str] = {}
    if template.cpu_milli:
        amounts["cpu"] = f"{template.cpu_milli}m"
    if template.memory_mib:
        amounts["memory"] = f"{template.memory_mib}Mi"
    # Kubernetes asks requests and limits of extended resources to be equal.
    extended = {name: str(amount) for name, amount in template.extended.items() if amount}
    if template.gpus and milli < MILLI:
        extended[GPU_MILLI] = str(milli)
    elif template.gpus:
        extended[template.gpu_resource] = str(template.gpus)
    return {"requests": {**amounts, **extended}, "limits": extended}


def _tolerations(wanted: Iterable[Toleration]) -> list[dict[str, str]]:
    own = [{"key": key, "operator": "Exists"} for key in sorted(TOLERATED)]
    for each in wanted:
        toleration = {"operator": each.operator}
        if each.key:
            toleration["key"] = each.key
        if each.value:
            toleration["value"] = each.value
        if each.effect:
            toleration["effect"] = each.effect
        own.append(toleration)
    return own


def _legal(name: str) -> str:
    return _ILLEGAL.sub("-", name.lower()).strip("-")
