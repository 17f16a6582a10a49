"""Kubernetes objects, reduced to the fields that a scheduler needs, decoded by msgspec.

Field names are Kubernetes' own (camelCase on the wire). Sources: the core/v1, policy/v1 and meta/v1
API references. The structs stay out of the garbage collector (`gc=False`); otherwise decoding a
large cluster would be up to six times slower.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from scheduling.kube.translate.node_selectors import NodeSelector
from scheduling.kube.translate.texts import storable


class Meta(Struct, gc=False, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str | None = None  # null in bookmarks
    deletion_timestamp: str = ""
    owner_references: list["OwnerReference"] = []
    finalizers: list[str] = []


class OwnerReference(Struct, gc=False, rename="camel"):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Condition(Struct, gc=False, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


# --- nodes ----------------------------------------------------------------------------------------
class NodeTaint(Struct, gc=False, rename="camel"):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Struct, gc=False, rename="camel"):
    unschedulable: bool = False
    taints: list[NodeTaint] = []


class NodeStatus(Struct, gc=False, rename="camel"):
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: list[Condition] = []


class KubeNode(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


# --- pods -----------------------------------------------------------------------------------------
class Resources(Struct, gc=False, rename="camel"):
    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


# Fields that matter only for pods that Kant places but did not make stay undecoded.
LATER = msgspec.Raw()


def decoded(raw: msgspec.Raw, kind: Any, absent: Any) -> Any:
    """Decode a field that was left undecoded. Raises ValueError.

    `absent`: the result if the field is missing or null.
    """
    found = msgspec.json.decode(raw, type=kind | None) if bytes(raw) else None
    return absent if found is None else found


class Container(Struct, gc=False, rename="camel", omit_defaults=True):
    resources: Resources = msgspec.field(default_factory=Resources)
    restart_policy: str = ""  # "Always" on an init container makes it a sidecar
    image: str = ""
    command: msgspec.Raw = LATER
    args: msgspec.Raw = LATER
    ports: msgspec.Raw = LATER
    env: msgspec.Raw = LATER
    name: str = ""


class SchedulingGate(Struct, gc=False, rename="camel"):
    name: str = ""


class PodOS(Struct, gc=False):
    name: str = ""


class PodSpec(Struct, gc=False, rename="camel", omit_defaults=True):
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: list[SchedulingGate] = []
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: dict[str, str | int | float] = {}
    resources: Resources | None = None  # pod-level resources (beta since 1.34)
    priority: int = 0
    preemption_policy: str = ""
    node_selector: msgspec.Raw = LATER
    tolerations: msgspec.Raw = LATER
    affinity: msgspec.Raw = LATER
    topology_spread_constraints: msgspec.Raw = LATER
    volumes: msgspec.Raw = LATER
    resource_claims: msgspec.Raw = LATER
    host_network: bool = False
    os: PodOS | None = None
    service_account_name: str = ""
    scheduling_group: msgspec.Raw = LATER
    workload_ref: msgspec.Raw = LATER  # the field of 1.35


class Terminated(Struct, gc=False, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(Struct, gc=False, rename="camel"):
    terminated: Terminated | None = None


class ContainerStatus(Struct, gc=False, rename="camel"):
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    name: str = ""
    # What the node has allocated; differs from the spec only during a resize.
    resources: msgspec.Raw = LATER
    allocated_resources: msgspec.Raw = LATER


class ExtendedClaimStatus(Struct, gc=False, rename="camel"):
    resource_claim_name: str = ""


class PodStatus(Struct, gc=False, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: list[Condition] = []
    resource_claim_statuses: msgspec.Raw = LATER
    extended_resource_claim_status: ExtendedClaimStatus | None = None
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class KubePod(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


# --- disruption budgets ---------------------------------------------------------------------------
class LabelRequirement(Struct, gc=False, rename="camel"):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []


class LabelSelector(Struct, gc=False, rename="camel"):
    match_labels: dict[str, str] = {}
    match_expressions: list[LabelRequirement] = []


class BudgetSpec(Struct, gc=False, rename="camel"):
    selector: LabelSelector | None = None


class BudgetStatus(Struct, gc=False, rename="camel"):
    disruptions_allowed: int = 0
    observed_generation: int = 0


class KubeBudget(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: BudgetSpec = msgspec.field(default_factory=BudgetSpec)
    status: BudgetStatus = msgspec.field(default_factory=BudgetStatus)


# --- services -------------------------------------------------------------------------------------
class KubeService(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)


# --- namespaces -----------------------------------------------------------------------------------
class KubeNamespace(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)


# --- storage --------------------------------------------------------------------------------------
class ClaimSpec(Struct, gc=False, rename="camel"):
    storage_class_name: str = ""
    volume_name: str = ""
    access_modes: list[str] = []
    resources: Resources = msgspec.field(default_factory=Resources)


class ClaimStatus(Struct, gc=False, rename="camel"):
    phase: str = ""


class KubeClaim(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)


class VolumeNodes(Struct, gc=False):
    required: NodeSelector | None = None


class CsiVolume(Struct, gc=False, rename="camel"):
    driver: str = ""
    volume_handle: str = ""


class InTreeVolume(Struct, gc=False):
    """A volume of a kind that was migrated to a CSI driver; each kind has one of these fields."""

    volume_id: str = msgspec.field(default="", name="volumeID")
    pd_name: str = msgspec.field(default="", name="pdName")
    disk_uri: str = msgspec.field(default="", name="diskURI")
    volume_path: str = msgspec.field(default="", name="volumePath")

    @property
    def handle(self) -> str:
        return self.volume_id or self.pd_name or self.disk_uri or self.volume_path


class VolumeSpec(Struct, gc=False, rename="camel"):
    nodes: VolumeNodes | None = msgspec.field(default=None, name="nodeAffinity")
    csi: CsiVolume | None = None
    aws_elastic_block_store: InTreeVolume | None = None
    gce_persistent_disk: InTreeVolume | None = None
    azure_disk: InTreeVolume | None = None
    cinder: InTreeVolume | None = None
    vsphere_volume: InTreeVolume | None = None


class KubeVolume(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: VolumeSpec = msgspec.field(default_factory=VolumeSpec)


class LabelValues(Struct, gc=False):
    key: str
    values: list[str] = []


class Topology(Struct, gc=False, rename="camel"):
    match_label_expressions: list[LabelValues] = []


class KubeStorageClass(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: list[Topology] = []


class Allocatable(Struct, gc=False):
    count: int | None = None


class CsiNodeDriver(Struct, gc=False):
    name: str = ""
    allocatable: Allocatable | None = None


class CsiNodeSpec(Struct, gc=False):
    drivers: list[CsiNodeDriver] = []


class KubeCsiNode(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: CsiNodeSpec = msgspec.field(default_factory=CsiNodeSpec)


class CsiDriverSpec(Struct, gc=False, rename="camel"):
    storage_capacity: bool | None = None


class KubeCsiDriver(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: CsiDriverSpec = msgspec.field(default_factory=CsiDriverSpec)


class KubeCapacity(Struct, gc=False, rename="camel"):
    """storage.k8s.io/v1 CSIStorageCapacity."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: str | int | None = None
    maximum_volume_size: str | int | None = None


# --- lists, watches, errors -----------------------------------------------------------------------
class StatusCause(Struct, gc=False, rename="camel"):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Struct, gc=False, rename="camel"):
    causes: list[StatusCause] = []
    retry_after_seconds: int = 0


class Status(Struct, gc=False, rename="camel"):
    """meta/v1 Status: the body of every error, and of a successful binding."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None

    def __post_init__(self) -> None:
        self.message = storable(self.message)


class ListMeta(Struct, gc=False, rename="camel", omit_defaults=True):
    resource_version: str = ""
    # The JSON name is a Python keyword.
    continue_token: str = msgspec.field(default="", name="continue")


class ObjectList(Struct, gc=False, rename="camel"):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class WatchEvent(Struct, gc=False, rename="camel"):
    type: str
    object: msgspec.Raw


def encode(value: Any) -> bytes:
    """Encode an object as JSON for a request body."""
    return msgspec.json.encode(value)
