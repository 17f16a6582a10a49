"""The job document that a plain pod stands for. Pure.

GPUs, CPU, memory, node selector and tolerations are those of the pod; what Kubernetes has no field
for is written in its annotations. The document is then judged as any other (`services.job_spec`).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from scheduling.engine.types import MILLI
from scheduling.kube.manifests import DEVICE_MILLI, DEVICES, NICS, TENANT
from scheduling.kube.plain_pods import ALL_NODES, CLAIMS_WISH
from scheduling.kube.seam import PlainPod, PodFacts
from scheduling.services.faults import SLUG, Faults
from scheduling.services.pod_set_spec import IMAGE, OWN_PREFIX, check_pod_set
from scheduling.session.live import Cause
from scheduling.session.pods import CHECKPOINT_BY, CHECKPOINTED_AT
from tenants.errors import DomainError

# Kant's own annotations of pods, which a copy of one brings along; they wish for nothing.
TOLD_BY_KANT = frozenset({DEVICES, DEVICE_MILLI, NICS, CHECKPOINT_BY, CHECKPOINTED_AT})
IMAGE_LENGTH = 500  # of the column, for people to see

REQUESTS = "spec.containers[].resources.requests"
# Where a field of the document stands in the pod.
PLACES = {
    "tenant": f"label {TENANT}",
    "gpus": f"{REQUESTS}[nvidia.com/gpu]",
    "gpu_milli": f"{REQUESTS}[kant.io/gpu-milli]",
    "gpu_type": "annotation kant.io/gpu-models",
    "cpu_milli": f"{REQUESTS}[cpu]",
    "memory_mib": f"{REQUESTS}[memory]",
    "extended": REQUESTS,
    "node_selector": "spec.nodeSelector",
    "tolerations": "spec.tolerations",
    "image": "spec.containers[0].image",
    "labels": "metadata.labels",
    "kind": "annotation kant.io/kind",
    "declared_s": "annotation kant.io/declared-seconds",
    "priority": "spec.priority or annotation kant.io/priority",
}


class Refused(Exception):
    """A pod of which no job can be made, and what helps."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.cause = Cause(reason, text)


def refusal_of(error: DomainError) -> Refused:
    """What a service says of the document, in the terms of the pod."""
    reason = error.code if error.code[0].isupper() else "InvalidPod"
    if not error.errors:
        return Refused(reason, error.detail)
    return Refused(
        reason,
        " ".join(f"{PLACES.get(str(e.path[0]), e.field)}: {e.detail}" for e in error.errors),
    )


def tenant_of(pod: PodFacts) -> str:
    """The name of the tenant that its label says; raises Refused."""
    name = pod.labels.get(TENANT, "")
    if not SLUG.fullmatch(name):
        text = f"Set the label {TENANT} to the tenant whose quota the pod uses."
        raise Refused("NoTenant", f"The label is {name!r}. {text}" if name else text)
    return name


def where_to(plain: PlainPod) -> dict[str, Any]:
    """What the pod says of the nodes that it may run on; raises Refused for what Kant would break
    if it bound the pod."""
    if plain.unhonoured:
        raise Refused("NotHonoured", " ".join(f"{f.field}: {f.remedy}" for f in plain.unhonoured))
    found = {
        "node_selector": dict(plain.node_selector),
        "tolerations": [
            {"key": t.key, "operator": t.operator, "value": t.value, "effect": t.effect}
            for t in plain.tolerations
        ],
    }
    faults = Faults()
    check_pod_set({"name": "worker", **found}, (), faults)
    try:
        faults.raise_if_any()
    except DomainError as error:
        raise refusal_of(error) from None
    return found


def document_of(pod: PodFacts, plain: PlainPod, cluster: str) -> dict[str, Any]:
    """The document of a job of one pod; raises Refused."""
    return {
        "name": _job_name(pod.name),
        "tenant": tenant_of(pod),
        "cluster": cluster,
        "labels": {k: v for k, v in pod.labels.items() if not k.startswith(OWN_PREFIX)},
        "priority": pod.priority,
        "preempts": plain.preempts,
        **_wishes(pod),
        **_gpus(pod),
        "cpu_milli": pod.cpu_milli,
        "memory_mib": pod.memory_mib,
        "extended": dict(pod.extended),
        **where_to(plain),
        "image": plain.image[:IMAGE_LENGTH] or IMAGE,
        "command": list(plain.command),
    }


def hold_of(plain: PlainPod) -> str:
    """Why the pod cannot be bound now although nothing is wrong with it; "" = it can."""
    if not plain.gates:
        return ""
    gates = "gate" if len(plain.gates) == 1 else "gates"
    return f"Its pod has the scheduling {gates} {', '.join(plain.gates)}."


def _job_name(pod: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", pod)[:63].strip("-")


def _gpus(pod: PodFacts) -> dict[str, int]:
    if pod.gpus and pod.gpu_milli:
        raise Refused(
            "InvalidPod",
            f"{REQUESTS}: Request nvidia.com/gpu for whole GPUs, or kant.io/gpu-milli for a share "
            "of one, not both.",
        )
    if not (pod.gpus or pod.gpu_milli):
        raise Refused(
            "InvalidPod",
            f"{REQUESTS}: The pod asks for no GPU. Request nvidia.com/gpu, or kant.io/gpu-milli "
            "for a share of one, or leave it to another scheduler (spec.schedulerName).",
        )
    return {"gpus": pod.gpus or 1, "gpu_milli": pod.gpu_milli or MILLI}


def _models(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _whole(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,10}", text):
        raise ValueError("Must be a whole number.")
    return int(text)


def _yes_or_no(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("Choose true or false.")
    return text == "true"


# Annotation, field of the document, and how its text is read.
WISHES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "kant.io/gpu-models": ("gpu_types", _models),
    "kant.io/kind": ("kind", str),
    "kant.io/preemptible": ("preemptible", _yes_or_no),
    "kant.io/declared-seconds": ("declared_s", _whole),
    "kant.io/priority": ("priority", _whole),
}


def _wishes(pod: PodFacts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    faults: list[str] = []
    for name, text in sorted(pod.annotations.items()):
        if name in WISHES:
            field, read = WISHES[name]
            try:
                found[field] = read(text)
            except ValueError as wrong:
                faults.append(f"annotation {name}: {wrong}")
        elif name == CLAIMS_WISH:
            if text != ALL_NODES:
                faults.append(f"annotation {name}: Write {ALL_NODES}, or leave it out.")
        elif name.startswith(OWN_PREFIX) and name not in TOLD_BY_KANT:
            known = ", ".join((*WISHES, CLAIMS_WISH))
            faults.append(f"annotation {name}: There is no such wish; there are {known}.")
    for name in sorted(pod.labels.keys() & WISHES.keys()):
        faults.append(f"label {name}: Write it as an annotation of that name.")
    if faults:
        raise Refused("InvalidPod", " ".join(faults))
    return found
