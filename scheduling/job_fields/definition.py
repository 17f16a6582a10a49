"""Each field of a job document: its type, range, unit, default and help, defined once.

Derived from here: what is refused, the REST bodies in and out, the rows, the engine's types, the
fields of the submit form and the flags of `kant submit` (docs/add-a-job-field.md).
"""

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from scheduling.engine.types import DEFAULT_QUEUE, MILLI, JobKind
from scheduling.job_fields import containers, values
from scheduling.job_fields.containers import (
    MAX_CONTAINERS,
    ContainerDocument,
    ProbeDocument,
    SecurityDocument,
)
from scheduling.job_fields.faults import MAX_PODS
from scheduling.job_fields.parts import CORES, GIB, MINUTES, Asked, Change, Column, Flag
from scheduling.job_fields.values import MAX_VALUES

MAX_POD_SETS = 32
MAX_ARRAY = 10_000
IMAGE = "busybox:stable"
# In place of a cluster's name: the cluster that starts the job first.
ANY_CLUSTER = "any"
WITHIN = "All pods within one group of this network level."
NEAR = "The same, if possible."

Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
Seconds = Annotated[int, Meta(ge=1, le=10 * 366 * 86400)]
Notice = Annotated[int, Meta(ge=1, le=3600)]
Restarts = Annotated[int, Meta(ge=0, le=1000)]
Pods = Annotated[int, Meta(ge=1, le=MAX_PODS)]
Slice = Annotated[int, Meta(ge=0, le=MAX_PODS)]
Devices = Annotated[int, Meta(ge=0, le=1024)]
Share = Annotated[int, Meta(ge=1, le=MILLI)]
GpuMib = Annotated[int, Meta(ge=0, le=10**7)]
CpuMilli = Annotated[int, Meta(ge=0, le=10**8)]
Mib = Annotated[int, Meta(ge=0, le=10**9)]
Units = Annotated[int, Meta(ge=0, le=values.MAX_EXTENDED)]

Name = Annotated[str, Meta(min_length=1, max_length=63)]
Value = Annotated[str, Meta(max_length=63)]
Word = Annotated[str, Meta(max_length=32)]
Key = Annotated[str, Meta(min_length=1, max_length=317)]
TaintKey = Annotated[str, Meta(max_length=317)]
Resource = Annotated[str, Meta(min_length=1, max_length=values.NAME_LENGTH)]
Optional = Annotated[str, Meta(max_length=values.NAME_LENGTH)]
Long = Annotated[str, Meta(max_length=65536)]
Expression = Annotated[str, Meta(min_length=1, max_length=10_240)]
JobId = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]


class TolerationDocument(Struct, frozen=True, kw_only=True):
    key: TaintKey = ""
    operator: Annotated[str, values.OPERATOR] = "Equal"
    value: Value = ""
    effect: Annotated[str, values.EFFECT] = ""


class NodeExpressionDocument(Struct, frozen=True, kw_only=True):
    """A requirement for a label of a node, or for its metadata.name."""

    key: Key
    operator: Annotated[str, values.NODE_OPERATOR]
    values: Annotated[list[Optional], Meta(max_length=MAX_VALUES)] = []


Expressions = Annotated[list[NodeExpressionDocument], Meta(max_length=values.MAX_EXPRESSIONS)]


class NodeTermDocument(Struct, frozen=True, kw_only=True):
    """A term; all its expressions have to hold."""

    match_expressions: Annotated[Expressions, Meta(description="On node labels.")] = []
    match_fields: Annotated[Expressions, Meta(description="On metadata.name.")] = []


class VolumeDocument(Struct, frozen=True, kw_only=True):
    """A volume from a claim, a config map or a secret in the namespace of the pods."""

    name: Name
    mount_path: Annotated[str, Meta(min_length=1, max_length=values.PATH_LENGTH)]
    read_only: bool = False
    persistent_volume_claim: Resource | None = None
    config_map: Resource | None = None
    secret: Resource | None = None


class SecretKeyDocument(Struct, frozen=True, kw_only=True):
    secret: Resource
    key: Resource


class DeviceClaimDocument(Struct, frozen=True, kw_only=True):
    """Devices for each pod.

    Either `count` devices (default 1) of a device class that satisfy all `selectors` (CEL), or what
    a ResourceClaimTemplate in the namespace of the pods asks for.
    """

    template: Resource | None = None
    device_class: Resource | None = None
    count: Annotated[int, Meta(ge=1, le=values.MAX_CLAIMED)] | None = None
    selectors: Annotated[list[Expression], Meta(max_length=values.MAX_SELECTORS)] | None = None


class ArrayDocument(Struct, frozen=True, kw_only=True):
    count: Annotated[int, Meta(ge=1, le=MAX_ARRAY)]


# Not formatted by ruff: each field reads as one paragraph.
# fmt: off
class PodSetDocument(Struct, frozen=True, kw_only=True):
    """A pod set: what each of its pods needs and runs, and how many there are.

    `name` "" = named by its position.
    """

    name: Annotated[Name, values.SLUGS] = ""
    count: Annotated[Pods, Asked("Pods"), Flag("-r --replicas", "N", "pods (default: 1)")] = 1
    min_count: Annotated[Pods | None,
        Asked("Minimum pods", "Start with this many pods and grow (elastic gang). Empty: all"),
        Flag("--min-count", "N", "fewest pods to start with, as an elastic gang")] = None
    gpu_types: Annotated[list[Name], Meta(max_length=32), values.GPU_TYPES, Column("gpu_models"),
        Flag("-G --gpu-type", "TYPE",
             "GPU type it may run on; repeat for more, the preferred first", again=True)] = []
    gpus: Annotated[Devices, Flag("-g --gpus", "N", "GPUs of each pod")] = 0
    gpu_milli: Annotated[Share,
        Flag("--gpu-milli", "N", "a share of one GPU, in thousandths")] = MILLI
    gpu_memory_mib: Annotated[GpuMib,
        Flag("--gpu-memory", "MIB", "a share of one GPU, by its memory")] = 0
    cpu_milli: Annotated[CpuMilli,
        Asked("CPU cores per pod", name="cpus", unit=CORES),
        Flag("--cpu", "CORES", "CPU of each pod, e.g. 8", reads="cores")] = 0
    memory_mib: Annotated[Mib,
        Asked("Memory per pod, GiB", name="memory_gib", unit=GIB),
        Flag("--memory", "MIB", "memory of each pod")] = 0
    nics: Annotated[Devices,
        Asked("NICs per pod", "Not shared with other pods", folded=True),
        Flag("--nics", "N", "NICs that each pod holds alone")] = 0
    node_selector: Annotated[dict[str, Value], Meta(max_length=values.MAX_NODE_LABELS),
        values.NODE_LABELS,
        Asked("Node selector", "Only nodes with these labels, one a line: LABEL=VALUE",
              folded=True),
        Flag("--node-selector", "LABEL=VALUE", "only nodes with this label")] = {}
    node_affinity: Annotated[list[NodeTermDocument], Meta(max_length=values.MAX_TERMS),
        Meta(description="A node must match at least one term, in addition to node_selector."),
        values.NODE_AFFINITY,
        Asked("Node affinity",
              "A node must match every line: zone In a, b; disk NotIn hdd; fast Exists; old "
              "DoesNotExist; cores Gt 64; cores Lt 128. metadata.name is the node's name; a line "
              "“or” begins an alternative", folded=True),
        Flag("-x --exclude-node", "NODE", "not on this node; repeat for more", reads="not_node",
             again=True)] = []
    required_level: Annotated[Word,
        Meta(description=WITHIN), values.LEVEL,
        Flag("--within", "LEVEL", "all pods within one group of this network level, e.g. leaf")
    ] = ""
    preferred_level: Annotated[Word,
        Meta(description=NEAR), values.LEVEL,
        Flag("--near", "LEVEL", "the same, if possible")] = ""
    slice_size: Annotated[Slice,
        Meta(description="Pods per slice: the levels then apply to each slice, not to all pods."),
        Flag("--slice-size", "N", "pods per slice: --within applies to each slice")] = 0
    balance_level: Annotated[Word,
        Meta(description="Spread the pods evenly over the groups of this level."), values.LEVEL,
        Flag("--balance", "LEVEL", "spread the pods evenly over the groups of this level")] = ""
    max_per_node: Annotated[Pods | None,
        Flag("--max-per-node", "N", "most pods of the job on one node")] = None
    max_per_leaf: Annotated[Pods | None,
        Flag("--max-per-leaf", "N", "most pods of the job in one leaf")] = None
    tolerations: Annotated[list[TolerationDocument], Meta(max_length=32), values.TOLERATIONS] = []
    extended: Annotated[dict[str, Units], Meta(max_length=values.MAX_NODE_LABELS),
        Meta(description="Extended resources of Kubernetes per pod, e.g. {“vendor.com/card”: 1}; "
            "ephemeral-storage and huge pages (hugepages-2Mi) in MiB."),
        values.EXTENDED] = {}
    device_claims: Annotated[dict[str, DeviceClaimDocument], Meta(max_length=values.MAX_CLAIMS),
        Meta(description="Device claims (dynamic resource allocation) by their name in "
                         "the pod. Kant makes them for each pod. `gpus` counts the GPUs in "
                         "them, too."), values.DEVICE_CLAIMS,
        Asked("Device claims",
              "A claim a line: NAME=CLASS, NAME=CLASS:COUNT where CEL, NAME=template/TEMPLATE. "
              "The GPUs above count those in claims, too", folded=True),
        Flag("--device-claim", "NAME=CLASS:COUNT",
             "device claim of each pod, or NAME=template/TEMPLATE; --gpus counts the GPUs in it, "
             "too", reads="device_claim")] = {}
    image: Annotated[str, Meta(min_length=1, max_length=500), values.IMAGES,
        Asked("Image"),
        Flag("--image", "", "container image")] = IMAGE
    command: Annotated[list[Long], Meta(max_length=256)] = []
    env: Annotated[dict[str, Long], Meta(max_length=values.MAX_ENV), values.VARIABLES,
        Asked("Environment", "A variable a line: NAME=VALUE", folded=True),
        Flag("-e --env", "NAME=VALUE", "environment of the containers")] = {}
    env_from_secrets: Annotated[dict[str, SecretKeyDocument],
        Meta(max_length=values.MAX_ENV_FROM_SECRETS),
        Meta(description="Variables by name, each with the secret and the key that its value is "
                         "under."), values.SECRET_VARIABLES,
        Asked("Environment from secrets",
              "A variable a line: NAME=SECRET/KEY. Kant never reads the value", folded=True),
        Flag("--env-from-secret", "NAME=SECRET/KEY", "the same, its value from a key of a secret",
             reads="secret_key")] = {}
    annotations: Annotated[dict[str, Long], Meta(max_length=64), values.ANNOTATIONS,
        Flag("--annotation", "NAME=VALUE", "an annotation of the pods")] = {}
    service_account: Annotated[Optional, values.OBJECT,
        Asked("Service account", "Kubernetes service account of the pods. Empty: none",
              folded=True),
        Flag("--service-account", "NAME", "service account of the pods")] = ""
    image_pull_secrets: Annotated[list[Resource], Meta(max_length=values.MAX_PULL_SECRETS),
        values.NAMES,
        Asked("Image pull secrets", "Names, with spaces between", folded=True),
        Flag("--image-pull-secret", "NAME",
             "secret for pulling the image; repeat for more", again=True)] = []
    shm_mib: Annotated[Mib,
        Meta(description="Size of /dev/shm, held in memory; 0 = the node's default."),
        Asked("Size of /dev/shm, GiB", "Held in memory. Empty: the node's default", name="shm_gib",
              unit=GIB, folded=True),
        Flag("--shm", "MIB", "size of /dev/shm of each pod")] = 0
    volumes: Annotated[list[VolumeDocument], Meta(max_length=values.MAX_VOLUMES), values.VOLUMES
    ] = []
    security_context: Annotated[SecurityDocument, containers.SECURITY,
        Meta(description="User, group and rights of all containers.")
    ] = {}  # type: ignore[assignment]
    runtime_class: Annotated[Optional, values.OBJECT,
        Meta(description="RuntimeClass of the pods, e.g. of a sandbox."),
        Flag("--runtime-class", "NAME", "runtime class of the pods")] = ""
    host_network: Annotated[bool,
        Meta(description="Whether the pods use the network of their node."),
        Flag("--host-network", "", "use the network of the node", reads="yes")] = False
    priority_class: Annotated[Optional, values.OBJECT,
        Meta(description="PriorityClass of the pods: decides how late a node under pressure "
                         "evicts them. Kant’s queue goes by `priority` alone."),
        Flag("--priority-class", "NAME", "priority class of the pods on their node")] = ""
    init_containers: Annotated[list[ContainerDocument], Meta(max_length=MAX_CONTAINERS),
        Meta(description="Containers that run before the program, each to its end.")] = []
    sidecars: Annotated[list[ContainerDocument], Meta(max_length=MAX_CONTAINERS),
        Meta(description="Containers that run beside the program and end with it.")] = []
    probes: Annotated[dict[str, ProbeDocument], Meta(max_length=3), containers.PROBED,
        Meta(description="How the program is probed: startup, liveness, readiness.")] = {}


class JobDocument(Struct, frozen=True, kw_only=True):
    """A job.

    `cluster` "" = the only cluster, or ANY_CLUSTER if there are several. `array`: how many such
    jobs to create, None = this one. The levels are for all pod sets together.
    """

    name: Annotated[Name, values.SLUGS,
        Asked("Name", "Lower-case letters, digits and hyphens"),
        Flag("-n --name", "", "name of the job (default: the first word of the command)")]
    tenant: Annotated[Name, values.SLUGS, Column(""),
        Flag("-t --tenant", "",
             "tenant whose quota the job uses (default: yours, if you have one)")]
    cluster: Annotated[Name, Column(""),
        Meta(description="Cluster to run on. `any`: the one on which the job starts first; "
                         "while it waits it may move to another. Left out: `any`, if there are "
                         "several."),
        Flag("-c --cluster", "",
             "cluster to run on; any: where it starts first (default, if there are several)")] = ""
    cluster_selector: Annotated[dict[str, Value], Meta(max_length=values.MAX_NODE_LABELS),
        Meta(description="Labels that its cluster must have, e.g. where its data are."),
        values.CLUSTER_LABELS,
        Asked("Clusters with", "Only a cluster with these labels, one a line: LABEL=VALUE",
              folded=True),
        Flag("--cluster-selector", "LABEL=VALUE", "only a cluster with this label")
    ] = {}
    preferred_cluster_labels: Annotated[dict[str, Value], Meta(max_length=values.MAX_NODE_LABELS),
        Meta(description="If the job starts equally soon on several clusters: the one with "
                         "most of these labels."), values.CLUSTER_LABELS,
        Asked("Preferred cluster labels", "If the job starts equally soon on "
              "several: the one with most of these labels. One a line: LABEL=VALUE", folded=True),
        Flag("--prefer-cluster", "LABEL=VALUE",
             "prefer clusters with this label, if the job starts equally soon")
    ] = {}
    queue: Annotated[Name, values.SLUGS,
        Meta(description="Queue of the tenant. It may set priority, run-time limit and "
                         "preemptible for jobs that leave them out."), Change(),
        Asked("Queue", "Of the tenant. Empty: default", folded=True),
        Flag("-q --queue", "NAME", "queue of the tenant (default: default)")] = DEFAULT_QUEUE
    kind: Annotated[str, values.JOB_KIND,
        Asked("Kind"),
        Flag("--kind", "KIND", "training, inference, development, …")] = JobKind.TRAINING.value
    priority: Annotated[Priority, Change(),
        Asked("Priority", "Higher goes first"),
        Flag("--priority", "N", "higher goes first")] = 0
    gang: Annotated[bool,
        Asked("Start all pods together or none (gang)"),
        Flag("--gang", "", "all pods start together (default: yes)", reads="yes_or_no")] = True
    preemptible: Annotated[bool,
        Meta(description="Whether others may preempt the job. Where the policy has `reclaim`, a "
                         "job that cannot be preempted uses only the guarantee of its tenant."),
        Asked("May be preempted and queued again",
              "Where lenders reclaim quota, a job that cannot be preempted cannot borrow"),
        Flag("--preemptible", "",
             "whether others may preempt the job (default: yes); where lenders reclaim, a job "
             "that cannot be preempted cannot borrow", reads="yes_or_no")] = True
    preempts: Annotated[bool, Meta(description="Whether the job may preempt others."),
        Flag("--preempts", "", "whether the job may preempt others (default: yes)",
             reads="yes_or_no")] = True
    uses_spares: Annotated[bool,
        Meta(description="Whether the job may start on hot-spare nodes."),
        Flag("--spares", "", "the job may start on hot-spare nodes", reads="yes")] = False
    declared_s: Annotated[Seconds | None,
        Meta(description="Expected run time in seconds. A job that declares one may start sooner."),
        Change(running=True),
        Asked("Run time, minutes", "Expected run time. A job that declares one may start sooner",
              name="declared_min", unit=MINUTES),
        Flag("--time", "TIME", "expected run time, e.g. 90m or 1d12h; the job may start sooner",
             reads="time")] = None
    run_limit_s: Annotated[Seconds | None,
        Meta(description="Longest run time in seconds. The job is warned, then stopped."),
        Change(running=True),
        Asked("Run-time limit, minutes", "Stop the job after this many minutes. Empty: no limit",
              name="limit_min", unit=MINUTES, folded=True),
        Flag("--time-limit", "TIME", "stop the job after this long", reads="time")] = None
    checkpoint_notice_s: Annotated[Notice | None,
        Meta(description="Seconds of warning before a pod is deleted, to save its work; null = "
                         "no warning."), Change(),
        Asked("Checkpoint notice, seconds",
              "Warn pods this many seconds before deleting them. Empty: no warning", folded=True),
        Flag("--checkpoint-notice", "TIME",
             "how long before deletion pods are warned to save their work", reads="time")] = None
    max_restarts: Annotated[Restarts,
        Meta(description="How often the job, or a pod that it can do without, is restarted after "
                         "its program failed. Default 0; 1000 for inference jobs that are not "
                         "gangs."),
        Change(),
        Asked("Restarts",
              "After a failure. Empty: 0, or 1000 for inference jobs that are not gangs",
              folded=True),
        Flag("--max-restarts", "N",
             "most restarts after its program failed")] = 0
    not_before: Annotated[datetime | None,
        Meta(description="Earliest start; null = at once."), Column("start_not_before"), Change(),
        Asked("Not before, UTC", "Earliest start. Empty: as soon as possible", folded=True),
        Flag("--begin", "WHEN", "earliest start, e.g. 2030-01-31T12:00Z")] = None
    held: Annotated[bool,
        Meta(description="Wait until somebody releases the job."),
        Flag("--hold", "", "wait for kant release", reads="yes")] = False
    after: Annotated[list[JobId], Meta(max_length=values.MAX_DEPENDENCIES),
        Meta(description="Ids of jobs or arrays. The job starts after all of them have "
                         "ended."), values.JOB_IDS, Change()] = []
    after_ok: Annotated[list[JobId], Meta(max_length=values.MAX_DEPENDENCIES),
        Meta(description="Ids of jobs or arrays. The job starts after all of them have "
                         "succeeded."), values.JOB_IDS, Change()] = []
    array: Annotated[ArrayDocument | None, Column("")] = None
    strategy: Annotated[Word, values.STRATEGY,
        Flag("--strategy", "NAME", "placement strategy instead of the cluster's")] = ""
    required_level: Annotated[Word, Meta(description=WITHIN), values.LEVEL] = ""
    preferred_level: Annotated[Word, Meta(description=NEAR), values.LEVEL] = ""
    labels: Annotated[dict[str, Value], Meta(max_length=64), values.LABELS,
        Flag("--label", "NAME=VALUE", "a label of the job")] = {}
    pod_sets: Annotated[list[PodSetDocument], Meta(max_length=MAX_POD_SETS), Column("")] = []
