"""What a plain pod asks for, and the job document that it, or a gang, stands for. Pure.

GPUs, CPU, memory, node selector, node affinity and tolerations are those of the pod; what
Kubernetes has no field for is in its annotations. The document is then checked like any other
(`services.jobs.validation`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from scheduling.engine.types import MILLI, JobKind, NodeRules
from scheduling.job_fields.definition import IMAGE
from scheduling.job_fields.faults import MAX_PODS, SLUG, SLUG_RULE, Faults
from scheduling.job_fields.nouns import document_of_rules
from scheduling.job_fields.values import OWN_PREFIX
from scheduling.kube.seam import PlainPod, PodFacts, PodLevels
from scheduling.kube.translate.manifests import DEVICE_MILLI, DEVICES, NICS, TENANT
from scheduling.kube.translate.node_rules import PLACES_IN_POD
from scheduling.kube.translate.plain_pods import GANG, GANG_SIZE
from scheduling.kube.translate.quantities import is_space
from scheduling.kube.workloads.members import gang_of, workload_of
from scheduling.services.jobs.pod_set_spec import check_pod_set
from scheduling.services.plain_pods.queue_names import (
    OTHERS,
    QUEUE,
    QueueNames,
    WrongQueue,
    queue_of,
)
from scheduling.session.memory.live import Cause
from scheduling.session.pods.pod import CHECKPOINT_BY, CHECKPOINTED_AT
from tenants import texts
from tenants.errors import DomainError, FieldError

# Kant's own annotations of pods, which a copied pod brings along; they ask for nothing.
TOLD_BY_KANT = frozenset({DEVICES, DEVICE_MILLI, NICS, CHECKPOINT_BY, CHECKPOINTED_AT})
IMAGE_LENGTH = 500  # of the column, shown to people

# How others give shares of a GPU, and the slices that a device plugin names one by one.
SHARES_BY_ANNOTATION = ("gpu-fraction", "gpu-memory")
BY_CLAIM = (
    "On nodes whose GPUs belong to a device driver, claim a part of one with capacity.requests "
    "of a ResourceClaim (spec.resourceClaims)."
)
MIG = "nvidia.com/mig-"
LEVELS = ("required_level", "preferred_level")
REQUESTS = "spec.containers[].resources.requests"
ASK_FOR_GPUS = (
    "Request nvidia.com/gpu, or kant.io/gpu-milli for a share of one, or leave it to another "
    "scheduler (spec.schedulerName)."
)
# The place in the pod of each field of the document.
PLACES = {
    "tenant": f"label {TENANT}",
    "queue": f"label {QUEUE}",
    "gpus": f"{REQUESTS}[nvidia.com/gpu]",
    "gpu_milli": f"{REQUESTS}[kant.io/gpu-milli]",
    "gpu_type": "annotation kant.io/gpu-models",
    "cpu_milli": f"{REQUESTS}[cpu]",
    "memory_mib": f"{REQUESTS}[memory]",
    "extended": REQUESTS,
    **PLACES_IN_POD,
    "annotations": "metadata.annotations",
    "env": "spec.containers[].env",
    "service_account": "spec.serviceAccountName",
    "image": "spec.containers[0].image",
    "labels": "metadata.labels",
    "pod_sets": f"{REQUESTS}[nvidia.com/gpu]",
    "size": f"annotation {GANG_SIZE}",
    "preempts": "spec.preemptionPolicy",
    "preemptible": "annotation kant.io/preemptible",
    "kind": "annotation kant.io/kind",
    "declared_s": "annotation kant.io/declared-seconds",
    "required_level": "annotation kant.io/required-level",
    "preferred_level": "annotation kant.io/preferred-level",
    "checkpoint_notice_s": "annotation kant.io/checkpoint-notice-seconds",
    "priority": "spec.priority or annotation kant.io/priority",
}


class Refused(Exception):
    """Pods of which no job can be made, and what helps.

    `own`: by uid, what to tell single pods instead.
    """

    def __init__(self, reason: str, text: str, own: Mapping[str, Cause] | None = None) -> None:
        super().__init__(text)
        self.cause = Cause(reason, text)
        self.own = own or {}


class PodRequest(NamedTuple):
    """What a pod asks for, in fields of a job document.

    `of_job` has those of the whole job and how many pods its gang has (`size`), `of_set` those of
    its pod set.
    """

    pod: PodFacts
    of_job: Mapping[str, Any]
    of_set: Mapping[str, Any]


PodSets = Sequence[Sequence[PodRequest]]  # pods that ask for the same, together


def refusal_of(error: DomainError, sets: PodSets = ()) -> Refused:
    """Return what a service says of the document, in terms of the pods."""
    reason = error.code if error.code[0].isupper() else "InvalidPod"
    if not error.errors:
        return Refused(reason, error.detail)
    return Refused(reason, " ".join(f"{place_of(e, sets)}: {e.detail}" for e in error.errors))


def place_of(error: FieldError, sets: PodSets = ()) -> str:
    """Return the place of an error in the pods."""
    if error.path[0] != "pod_sets" or len(error.path) < 3:
        return PLACES.get(str(error.path[0]), error.field)
    place = PLACES.get(str(error.path[2]), error.field)
    return place if len(sets) < 2 else f"{place} of {sets[int(error.path[1])][0].pod.name}"


def tenant_of(pod: PodFacts, names: QueueNames) -> tuple[str, str]:
    """Return the names of the tenant and queue by its labels, or else the tenant of its namespace.

    Raises Refused.
    """
    try:
        name, queue = queue_of(pod, names)
    except WrongQueue as wrong:
        raise Refused(wrong.reason, str(wrong)) from None
    name = name or names.tenant
    if not SLUG.fullmatch(name):
        text = f"Set the label {TENANT} to the tenant whose quota the pod uses."
        if not name and not names.queue_map and any(label in pod.labels for label in OTHERS):
            text = f"{text} For queue labels of other schedulers, the cluster needs a queue_map."
        raise Refused("NoTenant", f"The label is {name!r}. {text}" if name else text)
    return name, queue


def where_to(plain: PlainPod) -> Mapping[str, Any]:
    """Return what the pod says of the nodes that it may run on.

    Raises Refused for requirements that Kant would break by binding the pod.
    """
    if plain.unhonoured:
        raise Refused("NotHonoured", " ".join(f"{f.field}: {f.remedy}" for f in plain.unhonoured))
    return _checked(plain.nodes)


@lru_cache(maxsize=256)
def _checked(nodes: NodeRules) -> Mapping[str, Any]:
    """Check node rules; cached, as most pods say the same, or nothing."""
    found = document_of_rules(nodes)
    faults = Faults()
    check_pod_set({"name": "worker", **found}, (), faults)
    try:
        faults.raise_if_any()
    except DomainError as error:
        raise refusal_of(error) from None
    return found


def asked_by(pod: PodFacts, plain: PlainPod, names: QueueNames) -> PodRequest:
    """Return what one pod asks for. Raises Refused."""
    if plain.workload is not None and plain.workload.wait is not None:
        raise Refused(*plain.workload.wait[:2])
    if plain.devices is not None and plain.devices.wait is not None:
        raise Refused(*plain.devices.wait[:2])
    (tenant, queue), where = tenant_of(pod, names), where_to(plain)
    wishes = {**_wishes(pod), **_gpus(pod)}
    if plain.devices is not None and plain.devices.models:
        wishes.setdefault("gpu_types", list(plain.devices.models))
    of_job = {
        "tenant": tenant,
        "queue": queue,
        "size": _size(pod, wishes.pop("size", None)),
        "priority": wishes.pop("priority", pod.priority),
        "preempts": plain.preempts,
        "kind": wishes.pop("kind", JobKind.TRAINING.value),
        "preemptible": wishes.pop("preemptible", True),
        "declared_s": wishes.pop("declared_s", None),
        "checkpoint_notice_s": wishes.pop("checkpoint_notice_s", None),
        **{level: wishes.pop(level, _level(plain, level)) for level in LEVELS},
    }
    of_set = {
        **wishes,
        "cpu_milli": pod.cpu_milli,
        "memory_mib": pod.memory_mib,
        "extended": dict(pod.extended),
        **where,
        **_levels_of_set(plain),
        "image": plain.image[:IMAGE_LENGTH] or IMAGE,
        "command": list(plain.command),
    }
    return PodRequest(pod, of_job, of_set)


def _levels_of_set(plain: PlainPod) -> dict[str, str]:
    """Return the network levels that pods of its kind have to share. Raises Refused."""
    own = plain.levels
    if own.wrong:
        raise Refused("NotHonoured", own.wrong)
    of_group = plain.workload.of_group if plain.workload is not None else PodLevels()
    levels = {
        "required_level": own.required or of_group.required,
        "preferred_level": own.preferred or of_group.preferred,
    }
    return {name: level for name, level in levels.items() if level}


def _level(plain: PlainPod, name: str) -> str:
    """Return the network level that the pod's group names."""
    return getattr(plain.workload, name) if plain.workload is not None else ""


def document_of(sets: PodSets, cluster: str) -> dict[str, Any]:
    """Return the document of the job of these pods, which agree on what concerns the whole job."""
    first = sets[0][0]
    labels = set.intersection(*(set(one.pod.labels.items()) for part in sets for one in part))
    return {
        "name": _name_of(first.pod, alone=sum(map(len, sets)) == 1),
        "cluster": cluster,
        "labels": {k: v for k, v in sorted(labels) if not k.startswith(OWN_PREFIX)},
        **{name: value for name, value in first.of_job.items() if name != "size"},
        "pod_sets": [{**part[0].of_set, "count": len(part)} for part in sets],
    }


def hold_of(plain: PlainPod) -> str:
    """Return why the pod cannot be bound now although nothing is wrong with it; "" = it can."""
    if not plain.gates:
        return ""
    gates = "gate" if len(plain.gates) == 1 else "gates"
    return f"Its pod has the scheduling {gates} {', '.join(plain.gates)}."


def _size(pod: PodFacts, size: int | None) -> int:
    """Return how many pods belong to the pod's gang; 1 for a pod without a gang."""
    name = pod.labels.get(GANG)
    if (workload := workload_of(pod)) is not None:
        return workload.size or 1
    if name is None and size is None:
        return 1
    if name is None:
        text = f"Name the gang, or leave out the annotation {GANG_SIZE}."
        raise Refused("InvalidPod", f"label {GANG}: {text}")
    if not SLUG.fullmatch(name):
        raise Refused("InvalidPod", f"label {GANG}: {SLUG_RULE}")
    if size is None:
        raise Refused("InvalidPod", f"annotation {GANG_SIZE}: Give the number of pods of the gang.")
    if not 1 <= size <= MAX_PODS:
        raise Refused("InvalidPod", f"annotation {GANG_SIZE}: {texts.between(1, MAX_PODS)}")
    return size


def _name_of(pod: PodFacts, *, alone: bool) -> str:
    """Return the name of the job of a pod, or of its gang."""
    workload = workload_of(pod)
    if workload is not None and workload.groups and not alone:
        return _job_name("-".join(filter(None, (workload.name, workload.part))))
    return _job_name(pod.labels.get(GANG, pod.name))


def _job_name(pod: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", pod)[:63].strip("-")


def _gpus(pod: PodFacts) -> dict[str, int]:
    if len(pod.gpu_resources) > 1:
        text = f"Request GPUs with only one of {' and '.join(pod.gpu_resources)}: no node has both."
        raise Refused("InvalidPod", f"{REQUESTS}: {text}")
    if pod.gpus and pod.gpu_milli:
        raise Refused(
            "InvalidPod",
            f"{REQUESTS}: Request nvidia.com/gpu for whole GPUs, or kant.io/gpu-milli for a share "
            "of one, not both.",
        )
    by_claims = pod.plain.devices if pod.plain is not None else None
    if by_claims is not None and by_claims.gpus and pod.gpu_milli:
        text = "Claim whole GPUs, or request kant.io/gpu-milli for a share of one, not both."
        raise Refused("InvalidPod", f"spec.resourceClaims: {text}")
    if by_claims is not None and pod.gpus and by_claims.gpu_milli < MILLI:
        text = "Claim a part of a GPU, or request whole GPUs, not both."
        raise Refused("InvalidPod", f"spec.resourceClaims: {text}")
    if by_claims is not None and not pod.gpu_milli:
        return {"gpus": pod.gpus + by_claims.gpus, "gpu_milli": by_claims.gpu_milli}
    if not (pod.gpus or pod.gpu_milli):
        if gang_of(pod) and (pod.cpu_milli or pod.memory_mib):
            return {"gpus": 0}
        if gang_of(pod):
            text = "The pod asks for nothing. Request cpu and memory, or GPUs."
            raise Refused("InvalidPod", f"{REQUESTS}: {text}")
        if workload_of(pod) is not None and _asks_for_cpu(pod):
            return {"gpus": 0}
        raise Refused("InvalidPod", _no_gpu(pod))
    return {"gpus": pod.gpus or 1, "gpu_milli": pod.gpu_milli or MILLI}


def _asks_for_cpu(pod: PodFacts) -> bool:
    """Whether it is meant to run without a GPU, not on a part of one that others give by name."""
    meant = any(name in pod.annotations for name in SHARES_BY_ANNOTATION)
    parts = [name for name in pod.extended if not is_space(name)]
    return not meant and not parts and bool(pod.cpu_milli or pod.memory_mib)


def _no_gpu(pod: PodFacts) -> str:
    """Return what a pod without a GPU request asks for instead, and what helps."""
    for name in SHARES_BY_ANNOTATION:
        if name in pod.annotations:
            return f"annotation {name}: Kant does not read it. {_instead(pod.annotations[name])}"
    for name in sorted(pod.extended):
        if name.startswith(MIG):
            return (
                f"{REQUESTS}[{name}]: Kant gives MIG slices only on nodes whose GPUs are all "
                "sliced alike (strategy single). Request nvidia.com/gpu there, and name the "
                "slice in the annotation kant.io/gpu-models."
            )
    if parts := [name for name in sorted(pod.extended) if not is_space(name)]:
        names = ", ".join(parts)
        return f"{REQUESTS}: The pod asks for {names}, but for no GPU. {ASK_FOR_GPUS}"
    what = "CPU or memory only" if pod.cpu_milli or pod.memory_mib else "nothing"
    return f"{REQUESTS}: The pod asks for {what}. {ASK_FOR_GPUS}"


def _instead(share: str) -> str:
    """Return what to write instead of another system's request for a share of a GPU."""
    ask = "Request kant.io/gpu-milli for a share of one GPU: 500 is half of it."
    if re.fullmatch(r"0?\.[0-9]{1,9}", share) and (milli := int(1000 * Fraction(share))):
        ask = f'Request kant.io/gpu-milli: "{milli}".'
    return f"{ask} {BY_CLAIM}"


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


# Annotation: field of the document, and how to read its text.
WISHES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "kant.io/gpu-models": ("gpu_types", _models),
    "kant.io/kind": ("kind", str),
    "kant.io/preemptible": ("preemptible", _yes_or_no),
    "kant.io/declared-seconds": ("declared_s", _whole),
    "kant.io/priority": ("priority", _whole),
    "kant.io/required-level": ("required_level", str),
    "kant.io/preferred-level": ("preferred_level", str),
    "kant.io/checkpoint-notice-seconds": ("checkpoint_notice_s", _whole),
    GANG_SIZE: ("size", _whole),
}


def _wishes(pod: PodFacts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    faults: list[str] = []
    workload = workload_of(pod)
    notes = dict(workload.notes) if workload is not None else {}
    for name, text in sorted((notes | dict(pod.annotations)).items()):
        if name in WISHES:
            field, read = WISHES[name]
            try:
                found[field] = read(text)
            except ValueError as wrong:
                faults.append(f"annotation {name}: {wrong}")
        elif name in (GANG, QUEUE):
            faults.append(f"annotation {name}: Set it as a label with that name.")
        elif name.startswith(OWN_PREFIX) and name not in TOLD_BY_KANT:
            known = ", ".join(WISHES)
            faults.append(f"annotation {name}: There is no such annotation; known: {known}.")
    for name in sorted(pod.labels.keys() & WISHES.keys()):
        faults.append(f"label {name}: Set it as an annotation with that name.")
    if faults:
        raise Refused("InvalidPod", " ".join(faults))
    return found
