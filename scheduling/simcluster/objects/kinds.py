"""The resource kinds that the embedded cluster serves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from sys import intern
from typing import Any


@dataclass(frozen=True)
class ResourceKind:
    """One resource kind.

    `selectable`: field paths that a fieldSelector may name besides metadata.name and
    metadata.namespace, with the value of an absent field. `create_on_update`: a PUT to an absent
    object creates it. `unconditional_update`: a PUT without resourceVersion is accepted. `defined`:
    as if by a CustomResourceDefinition; other groups may use the same plural.
    """

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    selectable: Mapping[str, str] = field(default_factory=dict)
    create_on_update: bool = False
    unconditional_update: bool = True
    defined: bool = False

    @cached_property
    def table(self) -> str:
        """The name under which its objects are stored."""
        return self.qualified if self.defined else self.plural

    @cached_property
    def paths(self) -> tuple[tuple[str, str, str], ...]:
        """(outer field, inner field or "", default) of each selectable field."""
        return tuple((*p.partition(".")[::2], d) for p, d in self.selectable.items())

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def qualified(self) -> str:
        """The resource with its group, as in messages: `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @cached_property
    def prefix(self) -> bytes:
        """What precedes the stored fields of a single object on the wire."""
        return f'{{"kind":"{self.kind}","apiVersion":"{self.api_version}",'.encode()

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


NAMESPACES = ResourceKind(
    "namespaces", "Namespace", namespaced=False, short_names=("ns",),
    subresources=("status",), selectable={"status.phase": ""},
)  # fmt: skip
NODES = ResourceKind(
    "nodes", "Node", namespaced=False, short_names=("no",),
    subresources=("status",), selectable={"spec.unschedulable": "false"},
)  # fmt: skip
PODS = ResourceKind(
    "pods", "Pod", short_names=("po",),
    subresources=("status", "binding", "eviction", "log"),
    selectable={
        "spec.nodeName": "", "spec.restartPolicy": "", "spec.schedulerName": "",
        "spec.serviceAccountName": "", "spec.hostNetwork": "false", "status.phase": "",
        "status.podIP": "", "status.nominatedNodeName": "",
    },
)  # fmt: skip
SERVICES = ResourceKind(
    "services", "Service", short_names=("svc",), subresources=("status",),
    selectable={"spec.clusterIP": "", "spec.type": ""}, create_on_update=True,
)  # fmt: skip
EVENTS = ResourceKind(
    "events", "Event", short_names=("ev",), create_on_update=True,
    selectable={
        "involvedObject.kind": "", "involvedObject.namespace": "", "involvedObject.name": "",
        "involvedObject.uid": "", "involvedObject.apiVersion": "",
        "involvedObject.resourceVersion": "", "involvedObject.fieldPath": "",
        "reason": "", "reportingComponent": "", "source.component": "", "type": "",
    },
)  # fmt: skip
# The same objects as EVENTS in the newer shape; stored as core/v1.
EVENTS_V1 = ResourceKind(
    "events", "Event", group="events.k8s.io", short_names=("ev",), create_on_update=True,
    selectable=EVENTS.selectable,
)  # fmt: skip
LEASES = ResourceKind(
    "leases", "Lease", group="coordination.k8s.io",
    create_on_update=True, unconditional_update=False,
)  # fmt: skip
PRIORITY_CLASSES = ResourceKind(
    "priorityclasses", "PriorityClass", group="scheduling.k8s.io", namespaced=False,
    short_names=("pc",),
)  # fmt: skip
DISRUPTION_BUDGETS = ResourceKind(
    "poddisruptionbudgets", "PodDisruptionBudget", group="policy", short_names=("pdb",),
    subresources=("status",), unconditional_update=False,
)  # fmt: skip
CLAIMS = ResourceKind(
    "persistentvolumeclaims", "PersistentVolumeClaim", short_names=("pvc",),
    subresources=("status",),
)  # fmt: skip
VOLUMES = ResourceKind(
    "persistentvolumes", "PersistentVolume", namespaced=False, short_names=("pv",),
    subresources=("status",),
)  # fmt: skip
STORAGE_CLASSES = ResourceKind(
    "storageclasses", "StorageClass", group="storage.k8s.io", namespaced=False,
    short_names=("sc",),
)  # fmt: skip

# Owners and groups of pods (`kube.workloads`): clients that make the pods also create these; no
# controller makes pods from them.
OWNERS: tuple[ResourceKind, ...] = tuple(
    ResourceKind(
        f"{kind.lower()}s", kind, group=group, version=version, defined=True,
        # Volcano's CRD has no status subresource.
        subresources=("status",) if kind == "PodGroup" and "volcano" not in group else (),
    )
    for group, version, kinds in (
        ("batch", "v1", ("Job",)),
        ("jobset.x-k8s.io", "v1alpha2", ("JobSet",)),
        ("leaderworkerset.x-k8s.io", "v1", ("LeaderWorkerSet",)),
        ("kubeflow.org", "v1", ("PyTorchJob", "TFJob", "XGBoostJob", "JAXJob", "PaddleJob")),
        ("kubeflow.org", "v2beta1", ("MPIJob",)),
        ("ray.io", "v1", ("RayCluster",)),
        ("scheduling.k8s.io", "v1alpha2", ("PodGroup",)),
        ("scheduling.x-k8s.io", "v1alpha1", ("PodGroup",)),
        ("scheduling.volcano.sh", "v1beta1", ("PodGroup",)),
        ("scheduling.run.ai", "v2alpha2", ("PodGroup",)),
        ("scheduler.grove.io", "v1alpha1", ("PodGang",)),
    )
    for kind in kinds
)  # fmt: skip

# Requests to autoscalers for nodes; there is no autoscaler here.
PROVISIONING: tuple[ResourceKind, ...] = (
    ResourceKind("podtemplates", "PodTemplate", defined=True),
    ResourceKind(
        "provisioningrequests", "ProvisioningRequest", group="autoscaling.x-k8s.io",
        subresources=("status",), defined=True,
    ),
)  # fmt: skip

# What CSI drivers publish about nodes and themselves; there is no such driver here.
CSI: tuple[ResourceKind, ...] = tuple(
    ResourceKind(
        f"{kind.lower().removesuffix('y')}{'ies' if kind.endswith('y') else 's'}",
        kind, group="storage.k8s.io", namespaced=namespaced, defined=True,
    )
    for kind, namespaced in (
        ("CSINode", False), ("CSIDriver", False), ("CSIStorageCapacity", True),
    )
)  # fmt: skip

_DEVICES = "resource.k8s.io"
RESOURCE_SLICES = ResourceKind(
    "resourceslices", "ResourceSlice", group=_DEVICES, namespaced=False, defined=True,
)  # fmt: skip
DEVICE_CLASSES = ResourceKind(
    "deviceclasses", "DeviceClass", group=_DEVICES, namespaced=False, defined=True,
)  # fmt: skip
RESOURCE_CLAIMS = ResourceKind(
    "resourceclaims", "ResourceClaim", group=_DEVICES, subresources=("status",), defined=True,
)  # fmt: skip
RESOURCE_CLAIM_TEMPLATES = ResourceKind(
    "resourceclaimtemplates", "ResourceClaimTemplate", group=_DEVICES, defined=True,
)  # fmt: skip
DEVICE_TAINT_RULES = ResourceKind(
    "devicetaintrules", "DeviceTaintRule", group=_DEVICES, version="v1beta2", namespaced=False,
    defined=True,
)  # fmt: skip
# What device drivers publish, and claims for devices; there are no such drivers here.
DEVICES = (
    RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_TAINT_RULES,
)  # fmt: skip

# Objects by which other schedulers know the network; those schedulers are not here.
NETWORK: tuple[ResourceKind, ...] = tuple(
    ResourceKind(
        kind[0], kind[1], group=group, version=version, namespaced=False, defined=True,
    )
    for group, version, kind in (
        ("kueue.x-k8s.io", "v1beta2", ("topologies", "Topology")),
        ("kueue.x-k8s.io", "v1beta2", ("resourceflavors", "ResourceFlavor")),
        ("kai.scheduler", "v1alpha1", ("topologies", "Topology")),
        ("topology.volcano.sh", "v1alpha1", ("hypernodes", "HyperNode")),
        (
            "topology.node.k8s.io", "v1alpha2",
            ("noderesourcetopologies", "NodeResourceTopology"),
        ),
    )
)  # fmt: skip

KINDS: tuple[ResourceKind, ...] = (
    NAMESPACES, NODES, PODS, SERVICES, EVENTS, EVENTS_V1, LEASES, PRIORITY_CLASSES,
    DISRUPTION_BUDGETS, CLAIMS, VOLUMES, STORAGE_CLASSES, *CSI, *DEVICES,
    *OWNERS, *PROVISIONING, *NETWORK,
)  # fmt: skip
STORED: tuple[str, ...] = tuple(dict.fromkeys(k.table for k in KINDS))
GROUPS: tuple[tuple[str, str], ...] = tuple(
    dict.fromkeys((k.group, k.version) for k in KINDS if k.group)
)


def storage_kind(table: str) -> ResourceKind:
    """Return the kind in whose shape the objects of `table` are stored."""
    return next(k for k in KINDS if k.table == table)


def field_values(kind: ResourceKind, obj: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the selectable fields' values as selectors compare them: interned strings.

    Equal values repeat in a hundred thousand objects and are kept once.
    """
    out = []
    for outer, inner, default in kind.paths:
        value = obj.get(outer)
        if inner and value:
            value = value.get(inner)
        if value is None or value == "":
            value = default
        elif value is True or value is False:
            value = "true" if value else "false"
        out.append(intern(str(value)))
    return tuple(out)
