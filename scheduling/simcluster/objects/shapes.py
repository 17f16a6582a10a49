"""The types of the fields that the embedded cluster reads, per kind.

An object with fields of other types is refused with 400, as by kube-apiserver; fields not named
here are stored as they come.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from scheduling.simcluster.objects.kinds import ResourceKind
from scheduling.simcluster.objects.quantities import canonicalize
from scheduling.simcluster.objects.status import ApiError, bad_request

Map = dict[str, str] | None
Amounts = dict[str, str | int | float] | None


class Meta(msgspec.Struct, gc=False):
    name: str | None = None
    generateName: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resourceVersion: str | None = None
    labels: Map = None
    annotations: Map = None
    finalizers: list[str] | None = None
    ownerReferences: list[dict[str, Any]] | None = None
    deletionTimestamp: str | None = None
    deletionGracePeriodSeconds: int | None = None


class Resources(msgspec.Struct, gc=False):
    requests: Amounts = None
    limits: Amounts = None


class Port(msgspec.Struct, gc=False):
    containerPort: int | None = None
    hostPort: int | None = None
    protocol: str | None = None
    hostIP: str | None = None


class Container(msgspec.Struct, gc=False):
    name: str | None = None
    image: str | None = None
    imagePullPolicy: str | None = None
    restartPolicy: str | None = None
    resources: Resources | None = None
    ports: list[Port] | None = None


class Toleration(msgspec.Struct, gc=False):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    tolerationSeconds: int | None = None


class Requirement(msgspec.Struct, gc=False):
    key: str
    operator: str
    values: list[str] | None = None


class SelectorTerm(msgspec.Struct, gc=False):
    matchExpressions: list[Requirement] | None = None
    matchFields: list[Requirement] | None = None


class NodeSelector(msgspec.Struct, gc=False):
    nodeSelectorTerms: list[SelectorTerm]


class NodeAffinity(msgspec.Struct, gc=False):
    requiredDuringSchedulingIgnoredDuringExecution: NodeSelector | None = None


class Affinity(msgspec.Struct, gc=False):
    nodeAffinity: NodeAffinity | None = None


class Gate(msgspec.Struct, gc=False):
    name: str


class PodSpec(msgspec.Struct, gc=False):
    containers: list[Container] | None = None
    initContainers: list[Container] | None = None
    nodeName: str | None = None
    nodeSelector: Map = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    schedulingGates: list[Gate] | None = None
    schedulerName: str | None = None
    restartPolicy: str | None = None
    priority: int | None = None
    priorityClassName: str | None = None
    preemptionPolicy: str | None = None
    terminationGracePeriodSeconds: int | None = None
    activeDeadlineSeconds: int | None = None
    overhead: Amounts = None
    resources: Resources | None = None
    hostNetwork: bool | None = None
    volumes: "list[PodVolume] | None" = None


class Condition(msgspec.Struct, gc=False):
    type: str
    status: str | None = None


class PodStatus(msgspec.Struct, gc=False):
    phase: str | None = None
    conditions: list[Condition] | None = None


class ClaimSource(msgspec.Struct, gc=False):
    claimName: str


class Ephemeral(msgspec.Struct, gc=False):
    volumeClaimTemplate: "Claim"


class PodVolume(msgspec.Struct, gc=False):
    name: str
    persistentVolumeClaim: ClaimSource | None = None
    ephemeral: Ephemeral | None = None


class Pod(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    spec: PodSpec | None = None
    status: PodStatus | None = None


class Taint(msgspec.Struct, gc=False):
    key: str | None = None
    effect: str | None = None
    value: str | None = None


class NodeSpec(msgspec.Struct, gc=False):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeStatus(msgspec.Struct, gc=False):
    capacity: Amounts = None
    allocatable: Amounts = None
    conditions: list[Condition] | None = None


class Node(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class LabelSelector(msgspec.Struct, gc=False):
    matchLabels: Map = None
    matchExpressions: list[Requirement] | None = None


class BudgetSpec(msgspec.Struct, gc=False):
    minAvailable: int | str | None = None
    maxUnavailable: int | str | None = None
    selector: LabelSelector | None = None


class Budget(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    spec: BudgetSpec | None = None
    status: dict[str, Any] | None = None


class LeaseSpec(msgspec.Struct, gc=False):
    holderIdentity: str | None = None
    leaseDurationSeconds: int | None = None
    leaseTransitions: int | None = None
    acquireTime: datetime | None = None
    renewTime: datetime | None = None


class Lease(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    spec: LeaseSpec | None = None


class PriorityClass(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    value: int | None = None
    globalDefault: bool | None = None
    preemptionPolicy: str | None = None


class Namespace(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class ServicePort(msgspec.Struct, gc=False):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None
    targetPort: int | str | None = None


class ServiceSpec(msgspec.Struct, gc=False):
    clusterIP: str | None = None
    type: str | None = None
    selector: Map = None
    ports: list[ServicePort] | None = None
    publishNotReadyAddresses: bool | None = None


class Service(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    spec: ServiceSpec | None = None
    status: dict[str, Any] | None = None


class ClaimSpec(msgspec.Struct, gc=False):
    accessModes: list[str] | None = None
    storageClassName: str | None = None
    volumeName: str | None = None
    volumeMode: str | None = None
    resources: Resources | None = None


class Claim(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    spec: ClaimSpec | None = None
    status: dict[str, Any] | None = None


class VolumeAffinity(msgspec.Struct, gc=False):
    required: NodeSelector | None = None


class VolumeSpec(msgspec.Struct, gc=False):
    accessModes: list[str] | None = None
    capacity: Amounts = None
    claimRef: Map = None
    nodeAffinity: VolumeAffinity | None = None
    persistentVolumeReclaimPolicy: str | None = None
    storageClassName: str | None = None


class Volume(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    spec: VolumeSpec | None = None
    status: dict[str, Any] | None = None


class Topology(msgspec.Struct, gc=False):
    matchLabelExpressions: list[dict[str, Any]] | None = None


class StorageClass(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    provisioner: str | None = None
    parameters: Map = None
    reclaimPolicy: str | None = None
    volumeBindingMode: str | None = None
    allowedTopologies: list[Topology] | None = None


class Series(msgspec.Struct, gc=False):
    count: int | None = None
    lastObservedTime: datetime | None = None


class Event(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    involvedObject: dict[str, Any] | None = None
    regarding: dict[str, Any] | None = None
    source: dict[str, Any] | None = None
    series: Series | None = None
    reason: str | None = None
    message: str | None = None
    note: str | None = None
    type: str | None = None
    action: str | None = None
    eventTime: datetime | None = None
    reportingController: str | None = None
    reportingComponent: str | None = None
    reportingInstance: str | None = None


class Defined(msgspec.Struct, gc=False):
    metadata: Meta | None = None
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


_SHAPES: dict[str, type[msgspec.Struct]] = {
    "Pod": Pod,
    "Node": Node,
    "PodDisruptionBudget": Budget,
    "Lease": Lease,
    "PriorityClass": PriorityClass,
    "Namespace": Namespace,
    "Service": Service,
    "Event": Event,
    "PersistentVolumeClaim": Claim,
    "PersistentVolume": Volume,
    "StorageClass": StorageClass,
}


def check(kind: ResourceKind, obj: dict[str, Any]) -> None:
    """Check the types of an object and write its quantities in canonical form.

    Raises:
        ApiError: 400 naming the field with the wrong type.
    """
    try:
        msgspec.convert(obj, Defined if kind.defined else _SHAPES[kind.kind])
        for resources in _resource_lists(kind, obj):
            canonicalize(resources)
    except (msgspec.ValidationError, ValueError) as error:
        raise _mistyped(kind, str(error)) from None


def _resource_lists(kind: ResourceKind, obj: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    if kind.kind == "Node":
        status = obj.get("status") or {}
        yield status.get("capacity")
        yield status.get("allocatable")
    elif kind.kind == "PersistentVolumeClaim":
        resources = (obj.get("spec") or {}).get("resources") or {}
        yield resources.get("limits")
        yield resources.get("requests")
    elif kind.kind == "PersistentVolume":
        yield (obj.get("spec") or {}).get("capacity")
    elif kind.kind == "Pod":
        spec = obj.get("spec") or {}
        yield spec.get("overhead")
        for part in (spec, *(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            resources = part.get("resources") or {}
            yield resources.get("limits")
            yield resources.get("requests")


def _mistyped(kind: ResourceKind, why: str) -> ApiError:
    version = kind.api_version
    return bad_request(
        f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: {why}'
    )
