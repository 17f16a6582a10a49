"""What crosses the door: observations out of a cluster, effects into it, and how they ended.

Plain values; the session needs nothing else of this package but `Gateway` and `manifests`.
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
    """The cluster cannot be used as configured: one line that says what is wrong and what helps.

    `code` is the HTTP status when the API server said it, else 0.
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
    """Namespaces: those of these names, and those whose labels have all of `labels`; () = all there
    are, None = none by labels."""

    names: tuple[str, ...] = ()
    labels: tuple[Requirement, ...] | None = None


class KeepsAway(NamedTuple):
    """A rule of a pod's required anti-affinity: no pod that has all of `selector` in one of these
    namespaces (see `Spaces`) may share its topology domain."""

    namespaces: Spaces
    selector: tuple[Requirement, ...]
    topology_key: str


class NodeFacts(Struct, frozen=True, gc=False):
    """A node as the engine sees it, and where each fact came from (fact name → Sourced).

    Facts: the rows of `labels.TABLE`, and gpus, healthy_gpus, unnamed_unhealthy_gpus, shares (what
    pods can get as parts of GPUs, in GPU-milli), gpus_in_zone (how many one pod can get at most,
    where that is not all), device_choice ("exact": a pod gets the GPUs that Kant chose; "count":
    the device plugin chooses), numa, nics, health. `tainted_at`: since when it has taints, in
    seconds since the epoch, as far as it says. `keepers`: rules of pods on it, where somebody has
    looked, and `other_keepers`: of those that are not Kant's. `unplugged`: the node without the
    GPUs that labels tell of and no device plugin gives, for a driver of devices that does; None =
    there are none such.
    """

    node: Node
    facts: Mapping[str, Sourced]
    uid: str
    unplugged: Node | None = None
    tainted_at: Mapping[Taint, float] = {}
    keepers: tuple[KeepsAway, ...] = ()
    other_keepers: tuple[KeepsAway, ...] = ()


class PodsMeant(NamedTuple):
    """The pods that have all of `selector` (None = no pods) in one of these namespaces."""

    namespaces: Spaces
    selector: tuple[Requirement, ...] | None


class PodSays(NamedTuple):
    """What a pod says of other pods. `rules`: without its own groups, which who asks has to know;
    `groups`: by name, what each group that these name means: pods that are meant by all."""

    rules: PodRules
    groups: tuple[tuple[str, tuple[PodsMeant, ...]], ...] = ()


class Reference(NamedTuple):
    """An object that a pod, or its owner, names; it is in the namespace of the pod. `uid`: "" = any
    of that name."""

    api_version: str
    kind: str
    name: str
    uid: str = ""

    @property
    def group(self) -> str:
        """Its API group; "" = the core of Kubernetes."""
        return self.api_version.rpartition("/")[0]


class GangGroup(NamedTuple):
    """Pods of a gang that are alike for who made them, and how many of them it starts with."""

    name: str
    minimum: int


class Unclear(NamedTuple):
    """Why it is not known what a pod belongs to: a reason and a sentence. `is_answer`: the cluster
    says so; else Kant could not read it, or has not yet."""

    reason: str
    text: str
    is_answer: bool


class AskedLevel(NamedTuple):
    """A network level that somebody names by the label of nodes which tells it. `field`: where it
    stands, for people; `required`: it is no mere wish."""

    field: str
    label: str
    required: bool


class AskedTier(NamedTuple):
    """A network level that somebody names by the highest tier of HyperNodes that his pods may share
    no less than; `name`: the name of that tier, where it is given instead. As AskedLevel."""

    field: str
    tier: int
    name: str
    required: bool


class PodLevels(NamedTuple):
    """Network levels that pods alike are to share, required and preferred; `wrong`: why they are
    not known, with the field and what helps."""

    required: str = ""
    preferred: str = ""
    wrong: str = ""


class Workload(Struct, frozen=True, gc=False):
    """What a pod belongs to, as the objects say that it or its owners name (`kube.workloads`).

    `kind` and `name` of the object that decides; `part`: which of its gangs the pod is in, "" = it
    has one. `groups`: those of that gang, () = its pods start one by one. `group`: that of the pod.
    `elastic`: pods beyond the minimum start one by one when the gang has places. `required_level`,
    `preferred_level`: network levels that its pods are to share, `of_group`: those of its group;
    `asked`, `asked_of_group`: as others name them, () once they are known. `notes`: annotations of
    the object for Kant, which count where the pod has none of that name. `advice`: what people
    should know about it, "" = nothing. `wait`: why none of that is known. `version`: the API
    version of the object, of one that is told how its gang fares; else "".
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
        """The name of the gang, unique in its namespace; "" = there is none."""
        if not self.groups:
            return ""
        return "/".join(filter(None, (self.kind, self.name, self.part)))

    @property
    def size(self) -> int:
        """How many pods the gang starts with."""
        return sum(group.minimum for group in self.groups)


class DeviceNeed(Struct, frozen=True, gc=False):
    """What the claims of a pod for devices ask for: `gpus` of one of `models`, () = of any, or
    `gpu_milli` of one, if that is not all of it; `shape` is equal for pods that can stand for each
    other. `wait`: why that is not known, or cannot be."""

    gpus: int = 0
    models: tuple[str, ...] = ()
    shape: str = ""
    gpu_milli: int = MILLI
    wait: Unclear | None = None


class PlainPod(Struct, frozen=True, gc=False):
    """What a pod that Kant did not make asks for, beside its PodFacts.

    `image` and `command` are of its first container, for people to see. `preempts`: by its
    preemption policy. `gates`: names of its scheduling gates. `created_at` in seconds since the
    epoch. With anything `unhonoured` it must not be bound. `env`: names of the variables that its
    containers set. `service_account`: that it names; "" also for `default`, which Kubernetes gives
    a pod that names none. `owner`: its controller; `scheduling_group`: the PodGroup of Kubernetes
    that it names. `workload`: what it belongs to; None where it names nothing, or its gang by
    Kant's own label. `devices`: what it asks for by claims, once somebody has looked at them; None
    = it names none. `extended`: for what it asks by names for which device classes may stand.
    `levels`: that it names itself, as others do.
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
    """A pod: where it is, what it holds, how it fares.

    `owned`: it names Kant as its scheduler; only then annotations are kept, and of pods without a
    node labels.
    `gpus` whole GPUs requested, `gpu_resources` by which resources if not by nvidia.com/gpu alone,
    `gpu_milli` the fractional request (`kant.io/gpu-milli`);
    `cpu_milli`, `memory_mib`, `extended` (other resources by name) by Kubernetes' own accounting
    (sum of containers and sidecars, or the largest init container, plus overhead).
    `reason`/`message` are the pod's own (OutOfcpu, UnexpectedAdmissionError …), else of the first
    terminated container, as the database can store them; `exit_code` is None until a container
    has terminated. `gated`: it still has scheduling gates.
    `started_at`, `finished_at` in seconds since the epoch, None = not yet (or not told).
    `disrupted`: why somebody ends it, as its condition DisruptionTarget says; "" = nobody does.
    `tracked`: a Job of Kubernetes has yet to count how it ends, of an owned pod.
    `keeps_away`: its required anti-affinity, of a pod on a node. `says`: what else it says of other
    pods, of one that is not owned only its host ports; None = nothing.
    `plain`: of an owned pod that waits for a place and that Kant did not make. `claims`: names of
    the volume claims that it mounts, of one that is owned or on a node; `device_claims`: claims for
    devices that an owned pod names, and `extended_claim`: the one that was made for its extended
    resources, "" = none.
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
        """It holds nothing any more."""
        return self.phase in ("Succeeded", "Failed")


class BudgetFacts(Struct, frozen=True, gc=False):
    """A PodDisruptionBudget: whose pods it protects (all requirements; None = nobody's), and how
    many of them may be disrupted now."""

    namespace: str
    name: str
    uid: str
    selector: tuple[Requirement, ...] | None
    allowed: int


class ServiceFacts(Struct, frozen=True, gc=False):
    """The Service by which the pods of a job find each other; `job`: its id."""

    namespace: str
    name: str
    uid: str
    job: str


class NodesAnswer(StrEnum):
    """What an autoscaler has said of a ProvisioningRequest last."""

    NONE = "NONE"
    ACCEPTED = "ACCEPTED"
    PROVISIONED = "PROVISIONED"
    FAILED = "FAILED"
    EXPIRED = "EXPIRED"  # nobody used in time what was provisioned
    REVOKED = "REVOKED"


class ProvisioningFacts(Struct, frozen=True, gc=False):
    """A ProvisioningRequest that Kant made for a job; `job`: its id, "" = somebody else made it.
    `number`: of how many for the same pods it is. `templates`: names of its PodTemplates. `answer`:
    since when, in seconds since the epoch, and in what words."""

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
    """A namespace, by whose labels rules of pods may mean it."""

    name: str
    uid: str
    labels: Mapping[str, str]


class ClaimFacts(Struct, frozen=True, gc=False):
    """A PersistentVolumeClaim. `volume`: the name of its PersistentVolume, "" = none yet; it can be
    mounted when it is `bound`. `selected_node`: for which its volume is to be made; `refused`: how
    often that was seen to be taken away again, without a volume. `sole`: only one pod may mount it
    (ReadWriteOncePod). `size`: bytes that it asks for, 0 = it does not say."""

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
    """A PersistentVolume: which nodes can mount it, all of `affinity`, of each one term; its CSI
    `driver` and by what that knows it, "" = it has none."""

    name: str
    uid: str
    affinity: tuple[tuple[NodeTerm, ...], ...]
    driver: str = ""
    handle: str = ""


class StorageClassFacts(Struct, frozen=True, gc=False):
    """A StorageClass. `waits`: volumes of its claims are made or chosen for the node of the first
    pod that mounts them (WaitForFirstConsumer). `provisions`: it makes volumes, by a `driver`.
    `topologies`: the nodes for which it does, one term has to match; () = all."""

    name: str
    uid: str
    waits: bool
    provisions: bool
    topologies: tuple[NodeTerm, ...]
    driver: str = ""


class CsiNodeFacts(Struct, frozen=True, gc=False):
    """The CSINode of the node of its name: how many volumes can be attached, of drivers that have a
    limit."""

    name: str
    uid: str
    limits: Mapping[str, int]


class CsiDriverFacts(Struct, frozen=True, gc=False):
    """A CSIDriver. `tells_capacity`: volumes can be made only where a CapacityFacts says so."""

    name: str
    uid: str
    tells_capacity: bool


class CapacityFacts(Struct, frozen=True, gc=False):
    """A CSIStorageCapacity: on these nodes (of `nodes` one term; () = on none) volumes of the class
    can be made that have up to `size` bytes."""

    uid: str
    storage_class: str
    nodes: tuple[NodeTerm, ...]
    size: int


StorageFacts = (
    ClaimFacts | VolumeFacts | StorageClassFacts | CsiNodeFacts | CsiDriverFacts | CapacityFacts
)


# --- effects ------------------------------------------------------------------------------------
# `key` is the caller's own name for the effect and comes back untouched with its outcome.
class CreateAndBind(Struct, frozen=True, gc=False):
    """Create a pod (see `manifests.pod_manifest`) and bind it; one pipeline per pod."""

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
    """Bind an existing pod; `annotations` (the device choice) arrive with the node, atomically."""

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
    """Delete that incarnation of the pod; `grace` seconds, None = the pod's own. `disrupted`, a
    reason and a sentence: its condition DisruptionTarget says so first, as the eviction API does by
    itself: what owns the pod can then tell that it did not fail. `tracked`, of a pod that is: its
    Job does not count it as a failure then."""

    key: Hashable
    namespace: str
    name: str
    uid: str
    grace: int | None = None
    disrupted: tuple[str, str] | None = None
    tracked: bool = False


class EvictPod(Struct, frozen=True, gc=False):
    """Evict through the eviction API: a PodDisruptionBudget may forbid it (BLOCKED). `tracked` as
    of DeletePod."""

    key: Hashable
    namespace: str
    name: str
    uid: str
    grace: int | None = None
    tracked: bool = False


class PatchCondition(Struct, frozen=True, gc=False):
    """Set one condition of a pod, by default PodScheduled (False, Unschedulable, why). `nominated`:
    the node that others leave for it, "" = none; None: nothing is said of that."""

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
    """Set annotations of that incarnation of the pod, or take them away (None), leaving its
    others."""

    key: Hashable
    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str | None]


class EmitEvent(Struct, frozen=True, gc=False):
    """An Event on a pod. Best effort: equal ones are counted together, a flood is cut."""

    key: Hashable
    namespace: str
    name: str
    uid: str
    reason: str
    note: str
    action: str = "Scheduling"
    type: str = "Normal"


class GroupCounts(Struct, frozen=True, gc=False):
    """How many pods of a group there are, have a node, run, and have ended."""

    pods: int = 0
    scheduled: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class TellGroup(Struct, frozen=True, gc=False):
    """Say in the status of a group object that its gang has its places, or why it waits, and how
    many of its pods do what, where it counts them."""

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
    """Delete that incarnation of the Service."""

    key: Hashable
    namespace: str
    name: str
    uid: str


class AlikePods(NamedTuple):
    """So many pods that are like this manifest, or like the pod of this name."""

    number: int
    like: Mapping[str, Any] | str


class CreateProvisioning(Struct, frozen=True, gc=False):
    """Make a ProvisioningRequest for these pods, after a PodTemplate for each kind of them. It goes
    with its `owners`, () = it stays."""

    key: Hashable
    namespace: str
    name: str
    labels: Mapping[str, str]
    class_name: str
    pods: tuple[AlikePods, ...]
    owners: tuple[Reference, ...] = ()


class DeleteProvisioning(Struct, frozen=True, gc=False):
    """Delete that incarnation of a ProvisioningRequest, and its PodTemplates."""

    key: Hashable
    namespace: str
    name: str
    uid: str
    templates: tuple[str, ...]


class SelectNode(Struct, frozen=True, gc=False):
    """Have the volume of that incarnation of a claim made for a node."""

    key: Hashable
    namespace: str
    name: str
    uid: str
    node: str


class NewClaim(NamedTuple):
    """A claim that is made for the extended resources of a pod: its requests, each for devices of a
    class, and by which of them containers get what they ask for."""

    requests: tuple[tuple[ExtendedRequest, str], ...]
    mappings: tuple[RequestMapping, ...]


class OwnClaim(NamedTuple):
    """A claim that is made for a pod, which names it: its spec, labels and annotations."""

    spec: Mapping[str, Any]
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class AllocateClaim(Struct, frozen=True, gc=False):
    """Give that incarnation of a claim these devices, None = it has them, and reserve it for a pod.
    `node`, else `nodes`: where they can be used; `class_config`: configuration of their classes, as
    JSON, by the requests that it is for. `new`: there is no such claim yet, whatever `uid` says; it
    is made, and the pod is told of one for its extended resources."""

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
    """That incarnation of a claim is not for the pod any more; if it is for none, its devices are
    free again. `made_for`: the name of that pod, for which the claim was made; it is deleted."""

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
    """How an effect ended. The door has already looked where a reply was ambiguous."""

    BOUND = "BOUND"  # on the wanted node with the wanted annotations
    DONE = "DONE"  # accepted: a delete, eviction, annotation, condition, event, service or node
    GONE = "GONE"  # there is no such pod (any more); for a delete or eviction that is success
    # bound, but elsewhere or with another device choice: see `node`; a claim: allocated otherwise
    TAKEN = "TAKEN"
    GATED = "GATED"  # has scheduling gates; try again when they are removed
    DELETING = "DELETING"  # is being deleted and cannot be bound
    NEW_INCARNATION = "NEW_INCARNATION"  # another pod under the same name: see `uid`
    BLOCKED = "BLOCKED"  # a PodDisruptionBudget forbids the eviction now
    REFUSED = "REFUSED"  # 4xx: no retry helps before somebody mends it (rights, a bad manifest)
    FAILED = "FAILED"  # gave up: nothing known, or the server did not recover in time
    NOT_SENT = "NOT_SENT"  # the fence fell, or the gateway stopped, before it was sent


class CallOutcome(Struct, frozen=True, gc=False):
    """`uid`: of the pod as far as known, also when only its creation worked. `code`: HTTP status
    (0 = none). `retry_after`: seconds the server asked to wait."""

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
    """The pod is gone from the API; `pod` is the last that was known of it."""

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
    """All ProvisioningRequests are listed; with a `trouble`, one line with a remedy, the cluster
    has none, or Kant may not see them."""

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
    """A list or watch fails; what was seen stays as it was. `reason` is one line with a remedy."""

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
