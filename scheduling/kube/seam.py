"""What crosses the door: observations of a cluster, effects on it, and the outcomes of these.

All are plain values. Beside them the session uses only `Gateway` and `manifests` of this package.
They are msgspec structs outside the garbage collector's sight (`gc=False`): a large cluster has
100,000 of them, and they never form cycles.
"""

from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct

from scheduling.engine.types import MILLI, Node, NodeRules, NodeTerm, PodRules, Taint
from scheduling.kube.dra.facts import (
    DeviceObject,
    ExtendedAsks,
    ExtendedRequest,
    GivenDevice,
    PodClaim,
    RequestMapping,
)


class KubeError(Exception):
    """The cluster cannot be used as configured: one line with the problem and the remedy.

    `code`: the HTTP status if the API server said so, 0 otherwise.
    """

    def __init__(self, problem: str, remedy: str, *, code: int = 0) -> None:
        super().__init__(f"{problem}: {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.code = code


# --- facts --------------------------------------------------------------------------------------
class Sourced(NamedTuple):
    """A fact and the label, annotation, field or rule it was read from."""

    value: str | int
    source: str


class Unhonoured(NamedTuple):
    """A field of a pod that Kant does not honour, and what to do about it."""

    field: str
    remedy: str


class Requirement(NamedTuple):
    """One requirement of a label selector; `operator` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...]


class Spaces(NamedTuple):
    """Namespaces: those with one of these names, and those whose labels meet all of `labels`.

    `labels` () = all namespaces, None = none by labels.
    """

    names: tuple[str, ...] = ()
    labels: tuple[Requirement, ...] | None = None


class KeepsAway(NamedTuple):
    """A rule of a pod's required anti-affinity.

    No pod that meets all of `selector` in one of these namespaces (see `Spaces`) may share its
    topology domain.
    """

    namespaces: Spaces
    selector: tuple[Requirement, ...]
    topology_key: str


class NodeFacts(Struct, frozen=True, gc=False):
    """A node as the engine sees it, and where each fact came from (fact name → Sourced).

    Facts are the rows of `labels.TABLE`, and:
    - gpus, healthy_gpus, unnamed_unhealthy_gpus, numa, nics, health
    - shares: what pods can get as parts of GPUs, in GPU-milli
    - gpus_in_zone: the most that one pod can get, if that is not all
    - device_choice: "exact" = a pod gets the GPUs that Kant chose, "count" = the device plugin
      chooses

    `tainted_at`: since when the node has its taints, in seconds since the epoch, if it says so.
    `keepers`: anti-affinity rules of pods on the node, once they have been looked up;
    `other_keepers`: those of pods that are not Kant's. `unplugged`: for a DRA driver that serves
    GPUs, the node without the GPUs that its labels count and no device plugin advertises; None = it
    has no such GPUs.
    """

    node: Node
    facts: Mapping[str, Sourced]
    uid: str
    unplugged: Node | None = None
    tainted_at: Mapping[Taint, float] = {}
    keepers: tuple[KeepsAway, ...] = ()
    other_keepers: tuple[KeepsAway, ...] = ()


class PodsMeant(NamedTuple):
    """The pods that meet all of `selector` (None = no pods) in one of these namespaces."""

    namespaces: Spaces
    selector: tuple[Requirement, ...] | None


class PodSays(NamedTuple):
    """What a pod says of other pods.

    `rules` lack the pod's own groups; the caller has to add these. `groups`: for each group name,
    its parts; a pod is in the group if all parts mean it.
    """

    rules: PodRules
    groups: tuple[tuple[str, tuple[PodsMeant, ...]], ...] = ()


class Reference(NamedTuple):
    """An object that a pod or its owner names, in the namespace of the pod; `uid` "" = any uid."""

    api_version: str
    kind: str
    name: str
    uid: str = ""

    @property
    def group(self) -> str:
        """Its API group; "" = the core API of Kubernetes."""
        return self.api_version.rpartition("/")[0]


class GangGroup(NamedTuple):
    """Pods of a gang that their maker treats alike, and how many of them it starts with."""

    name: str
    minimum: int


class Unclear(NamedTuple):
    """Why it is unknown what a pod belongs to: a reason and a sentence.

    `is_answer`: the cluster says so; otherwise Kant could not read it, or has not read it yet.
    """

    reason: str
    text: str
    is_answer: bool


class AskedLevel(NamedTuple):
    """A network level, named by the node label that defines it.

    `field`: where it is written, for people. `required`: it is a requirement, not a preference.
    """

    field: str
    label: str
    required: bool


class AskedTier(NamedTuple):
    """A network level, named by the highest HyperNode tier that the pods may span.

    `name`: the tier's name, if given instead of a number. `field`, `required`: as in AskedLevel.
    """

    field: str
    tier: int
    name: str
    required: bool


class PodLevels(NamedTuple):
    """The network levels, required and preferred, that a set of pods has to share.

    `wrong`: why they are not known, with the field and the remedy.
    """

    required: str = ""
    preferred: str = ""
    wrong: str = ""


class Workload(Struct, frozen=True, gc=False):
    """What a pod belongs to, as the objects say that it or its owners name (`kube.workloads`).

    - `kind`, `name`: of the object that decides.
    - `part`: which of the object's gangs the pod is in, "" = it has only one.
    - `groups`: those of that gang, () = its pods start one by one. `group`: that of the pod.
    - `elastic`: pods beyond the minimum start one by one once the gang has its places.
    - `required_level`, `preferred_level`: network levels that its pods have to share; `of_group`:
      those for the pods of its group.
    - `asked`, `asked_of_group`: the same as other systems name them, () once they are resolved.
    - `notes`: the object's annotations for Kant; they count if the pod has none of that name.
    - `advice`: what people should know about it, "" = nothing.
    - `wait`: why none of this is known.
    - `version`: the API version of an object that Kant tells how its gang is doing; otherwise "".
    """

    kind: str
    name: str
    groups: tuple[GangGroup, ...] = ()
    group: str = ""
    part: str = ""
    elastic: bool = False
    required_level: str = ""
    preferred_level: str = ""
    of_group: PodLevels = PodLevels()
    asked: tuple[AskedLevel | AskedTier, ...] = ()
    asked_of_group: tuple[AskedLevel | AskedTier, ...] = ()
    notes: Mapping[str, str] = {}
    advice: str = ""
    wait: Unclear | None = None
    version: str = ""

    @property
    def gang(self) -> str:
        """The name of the gang, unique in its namespace; "" = no gang."""
        if not self.groups:
            return ""
        return "/".join(filter(None, (self.kind, self.name, self.part)))

    @property
    def size(self) -> int:
        """How many pods the gang starts with."""
        return sum(group.minimum for group in self.groups)


class DeviceNeed(Struct, frozen=True, gc=False):
    """What a pod's device claims ask for: `gpus` of one of `models`, () = any model.

    `gpu_milli`: the part of one GPU that they ask for, MILLI = all of it. `shape` is equal for pods
    that can stand for each other. `wait`: why this is not known, or cannot be met.
    """

    gpus: int = 0
    models: tuple[str, ...] = ()
    shape: str = ""
    gpu_milli: int = MILLI
    wait: Unclear | None = None


class PlainPod(Struct, frozen=True, gc=False):
    """What a pod that Kant did not make asks for, in addition to its PodFacts.

    - `image`, `command`: of its first container, for people to see.
    - `preempts`: whether its preemption policy lets it preempt.
    - `gates`: names of its scheduling gates.
    - `created_at`: in seconds since the epoch.
    - `unhonoured`: a pod with any of these must not be bound.
    - `env`: names of the variables that its containers set.
    - `service_account`: the one it names; "" also for `default`, which Kubernetes gives to pods
      that name none.
    - `owner`: its controller. `scheduling_group`: the PodGroup of Kubernetes that it names.
    - `workload`: what it belongs to; None if it names nothing, or names its gang by Kant's own
      label.
    - `devices`: what its device claims ask for, once they have been looked up; None = it has none.
    - `extended`: resources it asks for by names that device classes may serve.
    - `levels`: network levels that it names itself, in the form of other systems.
    """

    nodes: NodeRules
    image: str
    command: tuple[str, ...]
    preempts: bool
    gates: tuple[str, ...]
    created_at: float
    unhonoured: tuple[Unhonoured, ...]
    env: tuple[str, ...] = ()
    service_account: str = ""
    owner: Reference | None = None
    scheduling_group: str = ""
    workload: Workload | None = None
    devices: DeviceNeed | None = None
    extended: ExtendedAsks = ExtendedAsks()
    levels: PodLevels = PodLevels()


class PodFacts(Struct, frozen=True, gc=False):
    """A pod: where it is, what it holds, how it is doing.

    - `owned`: it names Kant as its scheduler. Annotations are kept only for these, and labels only
      for these and for pods on a node.
    - `gpus`: whole GPUs requested; `gpu_resources`: as which resources, if not nvidia.com/gpu
      alone; `gpu_milli`: the fractional request (`kant.io/gpu-milli`).
    - `cpu_milli`, `memory_mib`, `extended` (other resources by name): by Kubernetes' own accounting
      (sum of containers and sidecars, or the largest init container, plus overhead).
    - `reason`, `message`: the pod's own (OutOfcpu, UnexpectedAdmissionError …), otherwise those of
      the first terminated container, in a form that the database can store.
    - `exit_code`: None until a container has terminated.
    - `gated`: it still has scheduling gates.
    - `started_at`, `finished_at`: in seconds since the epoch, None = not yet, or not reported.
    - `disrupted`: why it is being ended, from its condition DisruptionTarget; "" = it is not.
    - `tracked`: of an owned pod, a Kubernetes Job has yet to count how it ends.
    - `keeps_away`: of a pod on a node, its required anti-affinity.
    - `says`: what else it says of other pods, None = nothing; of a pod that is not owned only its
      host ports.
    - `plain`: of an owned pod that waits for a place and that Kant did not make.
    - `claims`: names of the volume claims that it mounts, if it is owned or on a node.
    - `device_claims`: device claims that an owned pod names; `extended_claim`: the claim made for
      its extended resources, "" = none.
    """

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    owned: bool
    deleting: bool
    gated: bool
    reason: str
    message: str
    exit_code: int | None
    gpus: int
    gpu_milli: int
    cpu_milli: int
    memory_mib: int
    extended: Mapping[str, int]
    priority: int
    started_at: float | None
    finished_at: float | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    resource_version: str
    gpu_resources: tuple[str, ...] = ()
    plain: PlainPod | None = None
    disrupted: str = ""
    tracked: bool = False
    keeps_away: tuple[KeepsAway, ...] = ()
    says: PodSays | None = None
    claims: tuple[str, ...] = ()
    device_claims: tuple[PodClaim, ...] = ()
    extended_claim: str = ""

    @property
    def finished(self) -> bool:
        """Whether the pod has ended and holds nothing any more."""
        return self.phase in ("Succeeded", "Failed")


class BudgetFacts(Struct, frozen=True, gc=False):
    """A PodDisruptionBudget: which pods it protects, and how many of them may be disrupted now.

    `selector`: all requirements have to be met; None = it protects no pods.
    """

    namespace: str
    name: str
    uid: str
    selector: tuple[Requirement, ...] | None
    allowed: int


class ServiceFacts(Struct, frozen=True, gc=False):
    """The Service by which a job's pods find each other; `job`: the job's id."""

    namespace: str
    name: str
    uid: str
    job: str


class NodesAnswer(StrEnum):
    """The last answer of an autoscaler to a ProvisioningRequest."""

    NONE = "NONE"
    ACCEPTED = "ACCEPTED"
    PROVISIONED = "PROVISIONED"
    FAILED = "FAILED"
    EXPIRED = "EXPIRED"  # nobody used the provisioned nodes in time
    REVOKED = "REVOKED"


class ProvisioningFacts(Struct, frozen=True, gc=False):
    """A ProvisioningRequest that Kant made for a job.

    `job`: its id, "" = somebody else made it. `number`: its place among the requests for the same
    pods. `templates`: names of its PodTemplates. `answered_at`: when `answer` was given, in seconds
    since the epoch; `message`: in what words.
    """

    namespace: str
    name: str
    uid: str
    job: str
    number: int
    class_name: str
    templates: tuple[str, ...]
    created_at: float
    answer: NodesAnswer = NodesAnswer.NONE
    answered_at: float = 0.0
    message: str = ""


class NamespaceFacts(Struct, frozen=True, gc=False):
    """A namespace with its labels, by which pod rules may select it."""

    name: str
    uid: str
    labels: Mapping[str, str]


class ClaimFacts(Struct, frozen=True, gc=False):
    """A PersistentVolumeClaim; it can be mounted once it is `bound`.

    `volume`: the name of its PersistentVolume, "" = none yet. `selected_node`: the node that its
    volume is to be made for; `refused`: how often that choice was seen withdrawn without a volume.
    `sole`: only one pod may mount it (ReadWriteOncePod). `size`: requested bytes, 0 = it does not
    say.
    """

    namespace: str
    name: str
    uid: str
    bound: bool
    lost: bool
    deleting: bool
    volume: str
    storage_class: str
    selected_node: str
    sole: bool = False
    size: int = 0
    refused: int = 0


class VolumeFacts(Struct, frozen=True, gc=False):
    """A PersistentVolume and the nodes that can mount it.

    A node has to match one term in each selector of `affinity`. `driver`: its CSI driver; `handle`:
    the driver's name for the volume; "" = it has none.
    """

    name: str
    uid: str
    affinity: tuple[tuple[NodeTerm, ...], ...]
    driver: str = ""
    handle: str = ""


class StorageClassFacts(Struct, frozen=True, gc=False):
    """A StorageClass.

    `waits`: volumes are made or chosen for the node of the first pod that mounts the claim
    (WaitForFirstConsumer). `provisions`: it makes volumes, by `driver`. `topologies`: the nodes for
    which it does so; a node has to match one term, () = all nodes.
    """

    name: str
    uid: str
    waits: bool
    provisions: bool
    topologies: tuple[NodeTerm, ...]
    driver: str = ""


class CsiNodeFacts(Struct, frozen=True, gc=False):
    """The CSINode of the node with this name: how many volumes can be attached, by driver.

    Only drivers with a limit are listed.
    """

    name: str
    uid: str
    limits: Mapping[str, int]


class CsiDriverFacts(Struct, frozen=True, gc=False):
    """A CSIDriver. `tells_capacity`: volumes can be made only where a CapacityFacts says so."""

    name: str
    uid: str
    tells_capacity: bool


class CapacityFacts(Struct, frozen=True, gc=False):
    """A CSIStorageCapacity: where volumes of the class with up to `size` bytes can be made.

    A node has to match one term of `nodes`; () = no node.
    """

    uid: str
    storage_class: str
    nodes: tuple[NodeTerm, ...]
    size: int


StorageFacts = (
    ClaimFacts | VolumeFacts | StorageClassFacts | CsiNodeFacts | CsiDriverFacts | CapacityFacts
)


# --- effects ------------------------------------------------------------------------------------
# `key` is the caller's own name for the effect and comes back unchanged with its outcome.
class CreateAndBind(Struct, frozen=True, gc=False):
    """Create a pod (see `manifests.pod_manifest`) and bind it, in one pipeline per pod."""

    key: Hashable
    namespace: str
    name: str
    manifest: Mapping[str, Any]
    node: str
    annotations: Mapping[str, str]


class CreatePod(Struct, frozen=True, gc=False):
    """Create a pod that is not to be bound."""

    key: Hashable
    namespace: str
    name: str
    manifest: Mapping[str, Any]


class CreateToBind(Struct, frozen=True, gc=False):
    """Create a pod (see `manifests.pod_manifest`) that is bound later."""

    key: Hashable
    namespace: str
    name: str
    manifest: Mapping[str, Any]


class Bind(Struct, frozen=True, gc=False):
    """Bind an existing pod; `annotations` (the device choice) arrive atomically with the node."""

    key: Hashable
    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str]


# The reason is the one that Kubernetes defines for it (k8s.io/api/core/v1).
PREEMPTION = "PreemptionByScheduler", "Kant preempted the pod to make room for another job"
DRAIN = "PreemptionByScheduler", "Kant drains the node of the pod, as an operator asked"


class DeletePod(Struct, frozen=True, gc=False):
    """Delete this incarnation of the pod; `grace` in seconds, None = the pod's own.

    `disrupted`, a reason and a sentence: first set the condition DisruptionTarget, as the eviction
    API does by itself, so that the pod's owner can tell that the pod did not fail. `tracked`: as in
    PodFacts; keeps its Job from counting a failure.
    """

    key: Hashable
    namespace: str
    name: str
    uid: str
    grace: int | None = None
    disrupted: tuple[str, str] | None = None
    tracked: bool = False


class EvictPod(Struct, frozen=True, gc=False):
    """Evict through the eviction API; a PodDisruptionBudget may forbid it (BLOCKED).

    `tracked`: as in DeletePod.
    """

    key: Hashable
    namespace: str
    name: str
    uid: str
    grace: int | None = None
    tracked: bool = False


class PatchCondition(Struct, frozen=True, gc=False):
    """Set one condition of a pod, by default PodScheduled (False, Unschedulable, why).

    `nominated`: the node that other pods leave free for it, "" = none, None = do not change it.
    """

    key: Hashable
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    status: str = "False"
    type: str = "PodScheduled"
    nominated: str | None = None


class Annotate(Struct, frozen=True, gc=False):
    """Set annotations of this incarnation of the pod, or remove them (None); others stay."""

    key: Hashable
    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str | None]


class EmitEvent(Struct, frozen=True, gc=False):
    """Write an Event on a pod. Best effort: equal ones are counted together, a flood is cut off."""

    key: Hashable
    namespace: str
    name: str
    uid: str
    reason: str
    note: str
    action: str = "Scheduling"
    type: str = "Normal"


class GroupCounts(Struct, frozen=True, gc=False):
    """How many pods of a group exist, have a node, run, and have ended."""

    pods: int = 0
    scheduled: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class TellGroup(Struct, frozen=True, gc=False):
    """Write into a group object's status that its gang has its places, or why it waits.

    Also how many pods are in which phase, if the object has such counts.
    """

    key: Hashable
    namespace: str
    name: str
    api_version: str
    placed: bool
    reason: str
    message: str
    counts: GroupCounts = GroupCounts()


class CreateService(Struct, frozen=True, gc=False):
    """Create the Service of a job (see `manifests.service_manifest`)."""

    key: Hashable
    namespace: str
    name: str
    manifest: Mapping[str, Any]


class DeleteService(Struct, frozen=True, gc=False):
    """Delete this incarnation of the Service."""

    key: Hashable
    namespace: str
    name: str
    uid: str


class AlikePods(NamedTuple):
    """`number` pods like this manifest, or like the existing pod of this name."""

    number: int
    like: Mapping[str, Any] | str


class CreateProvisioning(Struct, frozen=True, gc=False):
    """Create a ProvisioningRequest for these pods, after a PodTemplate for each kind of them.

    It is deleted with its `owners`, () = it stays.
    """

    key: Hashable
    namespace: str
    name: str
    labels: Mapping[str, str]
    class_name: str
    pods: tuple[AlikePods, ...]
    owners: tuple[Reference, ...] = ()


class DeleteProvisioning(Struct, frozen=True, gc=False):
    """Delete this incarnation of a ProvisioningRequest, and its PodTemplates."""

    key: Hashable
    namespace: str
    name: str
    uid: str
    templates: tuple[str, ...]


class SelectNode(Struct, frozen=True, gc=False):
    """Have the volume of this incarnation of a claim made for a node."""

    key: Hashable
    namespace: str
    name: str
    uid: str
    node: str


class NewClaim(NamedTuple):
    """A claim to create for a pod's extended resources.

    `requests`: each asks for devices of a class. `mappings`: which request serves which container.
    """

    requests: tuple[tuple[ExtendedRequest, str], ...]
    mappings: tuple[RequestMapping, ...]


class OwnClaim(NamedTuple):
    """A claim to create for a pod that names it: spec, labels and annotations."""

    spec: Mapping[str, Any]
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class AllocateClaim(Struct, frozen=True, gc=False):
    """Give this incarnation of a claim these devices and reserve it for a pod.

    `given`: the devices, None = the claim has them already. `node`, or else `nodes`: where they can
    be used. `class_config`: configuration of their classes, as JSON, with the requests that it is
    for. `new`: the claim does not exist yet, whatever `uid` says: create it, and tell the pod if it
    is for its extended resources.
    """

    key: Hashable
    namespace: str
    name: str
    uid: str
    pod: str
    pod_uid: str
    given: tuple[GivenDevice, ...] | None = None
    node: str = ""
    nodes: tuple[NodeTerm, ...] = ()
    class_config: tuple[tuple[tuple[str, ...], bytes], ...] = ()
    new: NewClaim | OwnClaim | None = None


class ReleaseClaim(Struct, frozen=True, gc=False):
    """Cancel this incarnation of a claim's reservation for the pod.

    If no reservation is left, its devices are free again. `made_for`: the name of that pod if the
    claim was made for it; the claim is then deleted.
    """

    key: Hashable
    namespace: str
    name: str
    uid: str
    pod_uid: str
    made_for: str = ""


Effect = (
    CreateAndBind
    | CreatePod
    | CreateToBind
    | Bind
    | DeletePod
    | EvictPod
    | Annotate
    | PatchCondition
    | EmitEvent
    | TellGroup
    | CreateService
    | DeleteService
    | CreateProvisioning
    | DeleteProvisioning
    | SelectNode
    | AllocateClaim
    | ReleaseClaim
)


class Result(StrEnum):
    """How an effect ended. After an ambiguous reply the door has already looked."""

    BOUND = "BOUND"  # to the wanted node with the wanted annotations
    DONE = "DONE"  # accepted: delete, eviction, annotation, condition, event, service or node
    GONE = "GONE"  # no such pod (any more); for a delete or eviction that is success
    # Bound, but elsewhere or with another device choice: see `node`. For a claim: allocated
    # otherwise.
    TAKEN = "TAKEN"
    GATED = "GATED"  # has scheduling gates; try again once they are removed
    DELETING = "DELETING"  # is being deleted and cannot be bound
    NEW_INCARNATION = "NEW_INCARNATION"  # another pod under the same name: see `uid`
    BLOCKED = "BLOCKED"  # a PodDisruptionBudget forbids the eviction for now
    REFUSED = "REFUSED"  # 4xx: retry only once somebody has fixed it (rights, a bad manifest)
    FAILED = "FAILED"  # gave up: outcome unknown, or the server did not recover in time
    NOT_SENT = "NOT_SENT"  # the fence fell, or the gateway stopped, before it was sent


class CallOutcome(Struct, frozen=True, gc=False):
    """The outcome of an effect.

    `uid`: of the pod if known, also if only its creation succeeded. `code`: HTTP status (0 = none).
    `retry_after`: seconds that the server asked to wait.
    """

    result: Result
    uid: str = ""
    node: str = ""
    code: int = 0
    message: str = ""
    retry_after: float = 0.0


# --- observations -------------------------------------------------------------------------------
class NodeSeen(Struct, frozen=True, gc=False):
    facts: NodeFacts


class NodeGone(Struct, frozen=True, gc=False):
    name: str


class PodSeen(Struct, frozen=True, gc=False):
    pod: PodFacts


class PodGone(Struct, frozen=True, gc=False):
    """The pod is gone from the API; `pod` holds its last known facts."""

    pod: PodFacts


class BudgetSeen(Struct, frozen=True, gc=False):
    budget: BudgetFacts


class BudgetGone(Struct, frozen=True, gc=False):
    budget: BudgetFacts


class ServiceSeen(Struct, frozen=True, gc=False):
    service: ServiceFacts


class ServiceGone(Struct, frozen=True, gc=False):
    service: ServiceFacts


class ProvisioningSeen(Struct, frozen=True, gc=False):
    facts: ProvisioningFacts


class ProvisioningGone(Struct, frozen=True, gc=False):
    facts: ProvisioningFacts


class ProvisioningServed(Struct, frozen=True, gc=False):
    """All ProvisioningRequests are listed.

    With a `trouble` (one line with a remedy) the cluster does not serve them, or Kant may not see
    them.
    """

    trouble: str = ""


class NamespaceSeen(Struct, frozen=True, gc=False):
    facts: NamespaceFacts


class NamespaceGone(Struct, frozen=True, gc=False):
    facts: NamespaceFacts


class StorageSeen(Struct, frozen=True, gc=False):
    facts: StorageFacts


class StorageGone(Struct, frozen=True, gc=False):
    facts: StorageFacts


class DevicesSeen(Struct, frozen=True, gc=False):
    facts: DeviceObject


class DevicesGone(Struct, frozen=True, gc=False):
    facts: DeviceObject


class Connected(Struct, frozen=True, gc=False):
    """All lists are complete and all watches run."""


class Disconnected(Struct, frozen=True, gc=False):
    """A list or watch fails; what was seen stays as it was. `reason`: one line with a remedy."""

    reason: str


class EffectDone(Struct, frozen=True, gc=False):
    """How an effect ended, and when, in seconds since the epoch."""

    effect: Effect
    outcome: CallOutcome
    at: float


Observation = (
    NodeSeen
    | NodeGone
    | PodSeen
    | PodGone
    | BudgetSeen
    | BudgetGone
    | ServiceSeen
    | ServiceGone
    | ProvisioningSeen
    | ProvisioningGone
    | ProvisioningServed
    | NamespaceSeen
    | NamespaceGone
    | StorageSeen
    | StorageGone
    | DevicesSeen
    | DevicesGone
    | Connected
    | Disconnected
    | EffectDone
)
