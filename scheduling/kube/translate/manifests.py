"""Pod manifests of Kant's own jobs: plain values in, a Kubernetes object out."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scheduling.engine.types import ANY_NODE, MILLI, NodeRules
from scheduling.kube.translate.containers import (
    basic_amounts,
    container_rights,
    extra_container,
    pod_rights,
    probes_of,
)
from scheduling.kube.translate.health import DEAD, TOLERATED
from scheduling.kube.translate.node_rules import rules_in_pod
from scheduling.kube.translate.quantities import DISK, GPU_MILLI, GPU_RESOURCES, is_space

SCHEDULER_NAME = "kant"
JOB = "kant.io/job"
TENANT = "kant.io/tenant"
ATTEMPT = "kant.io/attempt"
POD_SET = "kant.io/pod-set"
ORDINAL = "kant.io/ordinal"
# On a pod that is to be seen by autoscalers only: the job for one of whose pods it stands, and what
# it was made of.
STANDS_IN_FOR = "kant.io/stands-in-for"
MADE_OF = "kant.io/made-of"
# On a ProvisioningRequest: the job for whose pods it is.
PROVISIONS_FOR = "kant.io/provisions-for"
# Labels by which Kant knows the pods that it made.
IDENTITY = frozenset({JOB, ATTEMPT, POD_SET, ORDINAL})
DEVICES = "kant.io/devices"
DEVICE_MILLI = "kant.io/milli"
NICS = "kant.io/nics"

# A pod that is to be told before it is deleted finds its annotations there, one a line.
TOLD_AT = "/etc/kant"
SHM_AT = "/dev/shm"
OWN_VOLUMES = {"kant": TOLD_AT, "shm": SHM_AT}

# The container of the program.
MAIN = "main"

# What a volume is made of -> its field in Kubernetes, and the one in that which names it.
VOLUME_SOURCES = {
    "persistent_volume_claim": ("persistentVolumeClaim", "claimName"),
    "config_map": ("configMap", "name"),
    "secret": ("secret", "secretName"),
}

# Pod names may be longer, but a host name is made of them.
NAME_LIMIT = 63
# In place of an attempt in the name of a pod that stands in for one of a job.
WAITS = "waits"
POD_SET_LIMIT = 20
# In the name of a ProvisioningRequest; its templates have its name and two digits more.
NODES = "nodes"
TEMPLATE_ROOM = 3
_PROVISIONING = re.compile(rf"-[0-9a-f]{{8}}-{NODES}-[0-9a-f]{{6}}-[0-9]+$")
_ILLEGAL = re.compile(r"[^a-z0-9-]+")

# Where torch and what is built like it meet; each pod has an address of its own.
MASTER_PORT = "29500"


class PodSettings(Struct, frozen=True, kw_only=True):
    """What the pods of a pod set use of their namespace, all of it by name.

    `shm_mib`: size of /dev/shm in MiB, 0 = as the node gives it. `volumes`: mappings of `name`,
    `mount_path`, `read_only` and one of VOLUME_SOURCES. `env_from_secrets`: variable → `secret`
    and `key`. `device_claims`: name → `template`, or `device_class`, `count` and `selectors`;
    only the names stand in the pod, for which the claims are made. `security_context`,
    `init_containers`, `sidecars`, `probes`: as documents of jobs have them
    (`job_fields.containers`), without what is not said; of a security context what `restricted`
    stands for too.
    """

    service_account: str = ""
    image_pull_secrets: Sequence[str] = ()
    shm_mib: int = 0
    volumes: Sequence[Mapping[str, Any]] = ()
    env_from_secrets: Mapping[str, Mapping[str, str]] = {}
    security_context: Mapping[str, Any] = {}
    runtime_class: str = ""
    host_network: bool = False
    priority_class: str = ""
    init_containers: Sequence[Mapping[str, Any]] = ()
    sidecars: Sequence[Mapping[str, Any]] = ()
    device_claims: Mapping[str, Mapping[str, Any]] = {}
    probes: Mapping[str, Mapping[str, Any]] = {}


class Gang(Struct, frozen=True, kw_only=True):
    """What the pods of one pod set are told of the others of their job.

    `first_rank`: the rank of ordinal 0, by the order of the pod sets; ordinals rise along the
    topology. `world_size`: pods that the job asks for. `head`: host name of the pod of rank 0.
    """

    job_name: str
    pod_set_name: str
    first_rank: int
    world_size: int
    head: str


class PodTemplate(Struct, frozen=True, kw_only=True):
    """What the pods of one pod set of one attempt have in common.

    `gpus`, `cpu_milli`, `memory_mib`, `extended`: per pod. `gpu_resource`: the resource that the
    node advertises whole GPUs as, "" = not known, the most usual one. `pod_set` is the index.
    `is_told`: its annotations can be read inside, in the file `annotations` of TOLD_AT. `gang`:
    None where the job has one pod only.
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
    settings: PodSettings = PodSettings()
    nodes: NodeRules = ANY_NODE
    gpu_resource: str = ""
    scheduler_name: str = SCHEDULER_NAME
    is_told: bool = False
    gang: Gang | None = None


def pod_name(
    job_name: str, job_id: str, attempt: int | str, pod_set: int, pod_set_name: str, ordinal: int
) -> str:
    """`{job}-{8 hex of the job's id}-{attempt}-{pod set}-{ordinal}`, a legal name of ≤ 63
    characters; a pod set's name of more than 20 is cut and followed by its index, the job's name
    is cut to what is left, what makes it unique never is."""
    middle = _middle(job_id, attempt)
    end = host_name(pod_set, pod_set_name, ordinal)
    room = NAME_LIMIT - len(middle) - len(end)
    return f"{_legal(job_name)[:room].strip('-') or 'job'}{middle}{end}"


def name_of_claim(pod: str, name: str) -> str:
    """Of the ResourceClaim that is made for a pod of Kant's by the name that it has in the pod."""
    return f"{pod}-{name}"


def is_made(name: str, labels: Mapping[str, str]) -> bool:
    """Whether Kant gives a pod of this name these labels, by what of the name they tell."""
    if not labels.keys() >= IDENTITY:
        return False
    middle, ordinal = _middle(labels[JOB], labels[ATTEMPT]), labels[ORDINAL]
    return middle in name and name.endswith(f"-{ordinal}")


def is_stand_in(name: str, labels: Mapping[str, str]) -> bool:
    """Whether Kant gives these labels to a pod of this name that stands in for one of a job."""
    if not labels.keys() >= {STANDS_IN_FOR, POD_SET, ORDINAL}:
        return False
    middle = _middle(labels[STANDS_IN_FOR], WAITS)
    return middle in name and name.endswith(f"-{labels[ORDINAL]}")


def provisioning_name(job_name: str, job_id: str, digest: str, number: int) -> str:
    """`{job}-{8 hex of the job's id}-nodes-{6 hex of the digest}-{number}`, cut as `pod_name`."""
    end = f"{_middle(job_id, NODES)}{digest[:6]}-{number}"
    room = NAME_LIMIT - TEMPLATE_ROOM - len(end)
    return f"{_legal(job_name)[:room].strip('-') or 'job'}{end}"


def provisioning_number(name: str, job_id: str) -> int:
    """The number in the name of a ProvisioningRequest for the job; 0 = Kant gives it no such
    name."""
    ours = is_provisioning_name(name) and _middle(job_id, NODES) in name
    return int(name.rpartition("-")[2]) if ours else 0


def is_provisioning_name(name: str) -> bool:
    """Whether Kant gives ProvisioningRequests such names."""
    return _PROVISIONING.search(name) is not None


def _middle(job_id: str, attempt: int | str) -> str:
    return f"-{job_id.replace('-', '')[:8]}-{attempt}-"


def host_name(pod_set: int, pod_set_name: str, ordinal: int) -> str:
    """`{pod set}-{ordinal}`, the same in every attempt and unique in the job; a pod set's name of
    more than 20 characters is cut and followed by its index."""
    whole = _legal(pod_set_name) or "pods"
    # With its index a cut name is longer than any that is not cut, and so never the same.
    set_name = f"{whole[:POD_SET_LIMIT]}-{pod_set}" if len(whole) > POD_SET_LIMIT else whole
    return f"{set_name}-{ordinal}"


def subdomain(job_id: str) -> str:
    """What comes after the host name in the address of a pod of the job; a Service has to begin
    with a letter."""
    return f"job-{job_id}"


def pod_manifest(
    template: PodTemplate, name: str, ordinal: int, milli: int = MILLI
) -> dict[str, Any]:
    """The pod of that name and ordinal. `milli` of its GPU where it gets a fraction (1000 = whole
    GPUs)."""
    container: dict[str, Any] = {
        "name": MAIN,
        "image": template.image,
        "resources": _resources(template, milli),
    }
    settings = template.settings
    if template.command:
        container["command"] = list(template.command)
    if env := _env(template, ordinal):
        container["env"] = env
    spec: dict[str, Any] = {
        "schedulerName": template.scheduler_name,
        "restartPolicy": "Never",
        "containers": [container],
        **rules_in_pod(template.nodes),
    }
    spec["tolerations"] = [*_own_tolerations(), *spec["tolerations"]]
    if template.gang is not None:
        spec["hostname"] = host_name(template.pod_set, template.gang.pod_set_name, ordinal)
        spec["subdomain"] = subdomain(template.job_id)
    container |= probes_of(settings.probes)
    if beside := [
        *(extra_container(each, env) for each in settings.init_containers),
        *({**extra_container(each, env), "restartPolicy": "Always"} for each in settings.sidecars),
    ]:
        spec["initContainers"] = beside
    every = [container, *beside]
    if volumes := _volumes(template):
        spec["volumes"] = [volume for volume, _ in volumes]
        for each in every:
            each["volumeMounts"] = [mount for _, mount in volumes]
    if claims := settings.device_claims:
        spec["resourceClaims"] = [
            {"name": each, "resourceClaimName": name_of_claim(name, each)} for each in claims
        ]
        container["resources"]["claims"] = [{"name": each} for each in claims]
    if of_pod := pod_rights(settings.security_context):
        spec["securityContext"] = of_pod
    if of_container := container_rights(settings.security_context):
        for each in every:
            each["securityContext"] = of_container
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    else:
        spec["automountServiceAccountToken"] = False
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    if settings.runtime_class:
        spec["runtimeClassName"] = settings.runtime_class
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if settings.host_network:
        # Else it would ask the resolver of the node, which knows no Service.
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
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


def stand_in_manifest(
    template: PodTemplate, name: str, ordinal: int, milli: int = MILLI
) -> dict[str, Any]:
    """A pod that asks for what that of `pod_manifest` does and is none of the job: no Service finds
    it, and no disruption budget counts it. Kubernetes makes its claims of their templates; if
    one has none, it has no claims."""
    claims = template.settings.device_claims
    if not all("template" in of for of in claims.values()):
        claims = {}
    template = replace(template, settings=replace(template.settings, device_claims=claims))
    manifest = pod_manifest(template, name, ordinal, milli)
    if claims:
        manifest["spec"]["resourceClaims"] = [
            {"name": each, "resourceClaimTemplateName": of["template"]}
            for each, of in claims.items()
        ]
    manifest["metadata"]["labels"] = {
        STANDS_IN_FOR: template.job_id,
        TENANT: template.tenant,
        POD_SET: str(template.pod_set),
        ORDINAL: str(ordinal),
    }
    manifest["metadata"]["annotations"] = {}
    for field in ("hostname", "subdomain"):
        manifest["spec"].pop(field, None)
    return manifest


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Another one for another manifest."""
    text = json.dumps(manifest, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def service_manifest(namespace: str, job_id: str, tenant: str) -> dict[str, Any]:
    """The Service that gives the pods of a job their addresses, also before they are ready: they
    look for each other to become so."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": subdomain(job_id),
            "namespace": namespace,
            "labels": {JOB: job_id, TENANT: tenant},
        },
        "spec": {
            "clusterIP": "None",
            "selector": {JOB: job_id},
            "publishNotReadyAddresses": True,
        },
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


def bound_devices(
    annotations: Mapping[str, str],
) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """The device choice that `binding_annotations` wrote: devices, milli of each, NICs.

    Raises ValueError for what it has not written.
    """
    if DEVICES not in annotations:
        return (), MILLI, ()
    milli = int(annotations.get(DEVICE_MILLI, MILLI))
    if not 0 < milli <= MILLI:
        raise ValueError(f"{DEVICE_MILLI} {milli} is not between 1 and {MILLI}")
    return _indices(annotations, DEVICES), milli, _indices(annotations, NICS)


def _indices(annotations: Mapping[str, str], name: str) -> tuple[int, ...]:
    found = json.loads(annotations.get(name, "[]"))
    if not isinstance(found, list) or not all(type(i) is int and i >= 0 for i in found):
        raise ValueError(f"{name} {annotations[name]} is not a list of indices")
    return tuple(found)


def _env(template: PodTemplate, ordinal: int) -> list[dict[str, Any]]:
    """Kant's own first: what the user sets may refer to them, as $(KANT_RANK), or replace them."""
    told = {} if template.gang is None else _told_of_gang(template, template.gang, ordinal)
    secrets = template.settings.env_from_secrets
    own = [(n, v) for n, v in told.items() if n not in template.env and n not in secrets]
    return [
        *({"name": name, "value": value} for name, value in own),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": s["secret"], "key": s["key"]}}}
            for name, s in secrets.items()
        ),
        *({"name": name, "value": value} for name, value in template.env.items()),
    ]


def _told_of_gang(template: PodTemplate, gang: Gang, ordinal: int) -> dict[str, str]:
    return {
        "KANT_JOB_ID": template.job_id,
        "KANT_JOB_NAME": gang.job_name,
        "KANT_RANK": str(gang.first_rank + ordinal),
        "KANT_WORLD_SIZE": str(gang.world_size),
        "KANT_POD_SET": gang.pod_set_name,
        "KANT_ORDINAL": str(ordinal),
        "MASTER_ADDR": f"{gang.head}.{subdomain(template.job_id)}",
        "MASTER_PORT": MASTER_PORT,
    }


def _volumes(template: PodTemplate) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each volume of the pod, and where the container mounts it."""
    made = []
    if template.is_told:
        field = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}
        mount: dict[str, Any] = {"name": "kant", "mountPath": TOLD_AT, "readOnly": True}
        made.append(({"name": "kant", "downwardAPI": {"items": [field]}}, mount))
    if template.settings.shm_mib:
        empty = {"medium": "Memory", "sizeLimit": f"{template.settings.shm_mib}Mi"}
        mount = {"name": "shm", "mountPath": SHM_AT}
        made.append(({"name": "shm", "emptyDir": empty}, mount))
    return made + [_volume(volume) for volume in template.settings.volumes]


def _volume(volume: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    name, read_only = volume["name"], volume["read_only"]
    kind = next(kind for kind in VOLUME_SOURCES if kind in volume)
    field, reference = VOLUME_SOURCES[kind]
    source = {reference: volume[kind]}
    if read_only and kind == "persistent_volume_claim":
        source["readOnly"] = True  # some storage lets many nodes in only as readers
    mount = {"name": name, "mountPath": volume["mount_path"], "readOnly": read_only}
    return {"name": name, field: source}, mount


def _resources(template: PodTemplate, milli: int) -> dict[str, dict[str, str]]:
    beside = template.settings.sidecars
    amounts = basic_amounts(
        template.cpu_milli - sum(each.get("cpu_milli", 0) for each in beside),
        template.memory_mib - sum(each.get("memory_mib", 0) for each in beside),
    )
    # Kubernetes asks requests and limits of extended resources to be equal.
    extended = {
        name: f"{amount}Mi" if is_space(name) else str(amount)
        for name, amount in template.extended.items()
        if amount
    }
    # Beyond a limit of its disk space a pod is evicted; what it asks for is none.
    if disk := extended.pop(DISK, ""):
        amounts[DISK] = disk
    if template.gpus and milli < MILLI:
        extended[GPU_MILLI] = str(milli)
    elif template.gpus:
        extended[template.gpu_resource or GPU_RESOURCES[0]] = str(template.gpus)
    return {"requests": {**amounts, **extended}, "limits": extended}


def _own_tolerations() -> list[dict[str, str]]:
    own = [{"key": key, "operator": "Exists"} for key in sorted(TOLERATED)]
    # How long they stay where nothing answers is for Kant alone to say (session.pods.node_loss).
    return own + [{"key": k, "operator": "Exists", "effect": "NoExecute"} for k in sorted(DEAD)]


def _legal(name: str) -> str:
    return _ILLEGAL.sub("-", name.lower()).strip("-")
