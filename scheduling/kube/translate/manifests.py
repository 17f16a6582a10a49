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
# On a stand-in, a pod for autoscalers only: the job whose pod it stands in for, and what it was
# made of.
STANDS_IN_FOR = "kant.io/stands-in-for"
MADE_OF = "kant.io/made-of"
# On a ProvisioningRequest: the job that its nodes are for.
PROVISIONS_FOR = "kant.io/provisions-for"
# Labels by which Kant recognises the pods that it made.
IDENTITY = frozenset({JOB, ATTEMPT, POD_SET, ORDINAL})
DEVICES = "kant.io/devices"
DEVICE_MILLI = "kant.io/milli"
NICS = "kant.io/nics"

# Where a pod that is warned before its deletion finds its annotations, one per line.
TOLD_AT = "/etc/kant"
SHM_AT = "/dev/shm"
OWN_VOLUMES = {"kant": TOLD_AT, "shm": SHM_AT}

# The container that runs the program.
MAIN = "main"

# What a volume is made of -> its Kubernetes field, and the field inside that names the source.
VOLUME_SOURCES = {
    "persistent_volume_claim": ("persistentVolumeClaim", "claimName"),
    "config_map": ("configMap", "name"),
    "secret": ("secret", "secretName"),
}

# Pod names may be longer, but host names are made from them.
NAME_LIMIT = 63
# Replaces the attempt in the name of a stand-in.
WAITS = "waits"
POD_SET_LIMIT = 20
# In the name of a ProvisioningRequest; its templates have that name and two more digits.
NODES = "nodes"
TEMPLATE_ROOM = 3
_PROVISIONING = re.compile(rf"-[0-9a-f]{{8}}-{NODES}-[0-9a-f]{{6}}-[0-9]+$")
_ILLEGAL = re.compile(r"[^a-z0-9-]+")

# Where torch and similar frameworks meet; each pod has its own address.
MASTER_PORT = "29500"


class PodSettings(Struct, frozen=True, kw_only=True):
    """What a pod set's pods use from their namespace, all of it by name.

    - `shm_mib`: size of /dev/shm in MiB, 0 = the node's default.
    - `volumes`: mappings of `name`, `mount_path`, `read_only` and one of VOLUME_SOURCES.
    - `env_from_secrets`: variable → `secret` and `key`.
    - `device_claims`: name → `template`, or `device_class`, `count` and `selectors`. The pod
      contains only the names; the claims are made for them.
    - `security_context`, `init_containers`, `sidecars`, `probes`: as in documents of jobs
      (`job_fields.containers`), without unset fields; in a security context, `restricted` is
      expanded to the fields that it stands for.
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
    """What the pods of one pod set are told of the other pods of their job.

    `first_rank`: the rank of ordinal 0; pod sets are ranked in their order, and ordinals follow the
    topology. `world_size`: number of pods that the job asks for. `head`: host name of the pod with
    rank 0.
    """

    job_name: str
    pod_set_name: str
    first_rank: int
    world_size: int
    head: str


class PodTemplate(Struct, frozen=True, kw_only=True):
    """What the pods of one pod set and one attempt have in common.

    - `gpus`, `cpu_milli`, `memory_mib`, `extended`: per pod.
    - `gpu_resource`: the resource as which the node advertises whole GPUs, "" = unknown, use the
      most common one.
    - `pod_set`: the index.
    - `is_told`: its containers can read its annotations, in the file `annotations` of TOLD_AT.
    - `gang`: None if the job has only one pod.
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
    """Return `{job}-{8 hex of the job's id}-{attempt}-{pod set}-{ordinal}`, at most 63 characters.

    A pod set's name of more than 20 characters is cut and followed by its index. The job's name is
    cut to the room left. The parts that make the name unique are never cut.
    """
    middle = _middle(job_id, attempt)
    end = host_name(pod_set, pod_set_name, ordinal)
    room = NAME_LIMIT - len(middle) - len(end)
    return f"{_legal(job_name)[:room].strip('-') or 'job'}{middle}{end}"


def name_of_claim(pod: str, name: str) -> str:
    """Return the name of the ResourceClaim for a claim that Kant's pod calls `name`."""
    return f"{pod}-{name}"


def is_made(name: str, labels: Mapping[str, str]) -> bool:
    """Whether a pod of this name with these labels is one that Kant made."""
    if not labels.keys() >= IDENTITY:
        return False
    middle, ordinal = _middle(labels[JOB], labels[ATTEMPT]), labels[ORDINAL]
    return middle in name and name.endswith(f"-{ordinal}")


def is_stand_in(name: str, labels: Mapping[str, str]) -> bool:
    """Whether a pod of this name with these labels is a stand-in that Kant made."""
    if not labels.keys() >= {STANDS_IN_FOR, POD_SET, ORDINAL}:
        return False
    middle = _middle(labels[STANDS_IN_FOR], WAITS)
    return middle in name and name.endswith(f"-{labels[ORDINAL]}")


def provisioning_name(job_name: str, job_id: str, digest: str, number: int) -> str:
    """Return `{job}-{8 hex of the job's id}-nodes-{6 hex of the digest}-{number}`.

    It is cut as in `pod_name`.
    """
    end = f"{_middle(job_id, NODES)}{digest[:6]}-{number}"
    room = NAME_LIMIT - TEMPLATE_ROOM - len(end)
    return f"{_legal(job_name)[:room].strip('-') or 'job'}{end}"


def provisioning_number(name: str, job_id: str) -> int:
    """Return the number in a ProvisioningRequest's name.

    0 = Kant gives no such name for this job.
    """
    ours = is_provisioning_name(name) and _middle(job_id, NODES) in name
    return int(name.rpartition("-")[2]) if ours else 0


def is_provisioning_name(name: str) -> bool:
    """Whether Kant gives such names to ProvisioningRequests."""
    return _PROVISIONING.search(name) is not None


def _middle(job_id: str, attempt: int | str) -> str:
    return f"-{job_id.replace('-', '')[:8]}-{attempt}-"


def host_name(pod_set: int, pod_set_name: str, ordinal: int) -> str:
    """Return `{pod set}-{ordinal}`, the same in each attempt and unique in the job.

    A pod set's name of more than 20 characters is cut and followed by its index.
    """
    whole = _legal(pod_set_name) or "pods"
    # With its index a cut name is longer than any uncut name, so the two never clash.
    set_name = f"{whole[:POD_SET_LIMIT]}-{pod_set}" if len(whole) > POD_SET_LIMIT else whole
    return f"{set_name}-{ordinal}"


def subdomain(job_id: str) -> str:
    """Return the part after the host name in the addresses of a job's pods.

    Names of Services have to begin with a letter.
    """
    return f"job-{job_id}"


def pod_manifest(
    template: PodTemplate, name: str, ordinal: int, milli: int = MILLI
) -> dict[str, Any]:
    """Return the pod of this name and ordinal.

    `milli`: how much of its GPU it gets (1000 = whole GPUs).
    """
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
        # With the default policy it would ask the node's resolver, which knows no Services.
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
    """Return a stand-in: a pod with the requests of `pod_manifest` that is not part of the job.

    No Service selects it and no disruption budget counts it. Kubernetes makes its device claims
    from their templates; if one has no template, the stand-in has no claims.
    """
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
    """Return a digest that differs for different manifests."""
    text = json.dumps(manifest, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def service_manifest(namespace: str, job_id: str, tenant: str) -> dict[str, Any]:
    """Return the Service that gives the pods of a job their addresses.

    It also publishes pods that are not ready: they need each other to become ready.
    """
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
    """Return the labels that say which pod of which attempt of which job this is."""
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
    """Return the device choice as annotations, which travel with the Binding into the pod."""
    if not devices:
        return {}
    chosen = {DEVICES: json.dumps(list(devices)), DEVICE_MILLI: str(milli)}
    if nics:
        chosen[NICS] = json.dumps(list(nics))
    return chosen


def bound_devices(
    annotations: Mapping[str, str],
) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Return the device choice that `binding_annotations` wrote: devices, milli of each, NICs.

    Raises ValueError for anything that it did not write.
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
    """Return the environment, Kant's own variables first.

    The user's variables may refer to those, as $(KANT_RANK), or replace them.
    """
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
    """Return each volume of the pod with its mount in the container."""
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
        source["readOnly"] = True  # some storage lets several nodes mount it only read-only
    mount = {"name": name, "mountPath": volume["mount_path"], "readOnly": read_only}
    return {"name": name, field: source}, mount


def _resources(template: PodTemplate, milli: int) -> dict[str, dict[str, str]]:
    beside = template.settings.sidecars
    amounts = basic_amounts(
        template.cpu_milli - sum(each.get("cpu_milli", 0) for each in beside),
        template.memory_mib - sum(each.get("memory_mib", 0) for each in beside),
    )
    # Kubernetes requires equal requests and limits for extended resources.
    extended = {
        name: f"{amount}Mi" if is_space(name) else str(amount)
        for name, amount in template.extended.items()
        if amount
    }
    # A pod that exceeds a limit on disk space is evicted, so set only the request.
    if disk := extended.pop(DISK, ""):
        amounts[DISK] = disk
    if template.gpus and milli < MILLI:
        extended[GPU_MILLI] = str(milli)
    elif template.gpus:
        extended[template.gpu_resource or GPU_RESOURCES[0]] = str(template.gpus)
    return {"requests": {**amounts, **extended}, "limits": extended}


def _own_tolerations() -> list[dict[str, str]]:
    own = [{"key": key, "operator": "Exists"} for key in sorted(TOLERATED)]
    # Only Kant decides how long they stay on a node that does not answer (session.pods.node_loss).
    return own + [{"key": k, "operator": "Exists", "effect": "NoExecute"} for k in sorted(DEAD)]


def _legal(name: str) -> str:
    return _ILLEGAL.sub("-", name.lower()).strip("-")
