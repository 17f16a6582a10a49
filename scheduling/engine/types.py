"""The nouns of the decision core: facts about nodes, jobs, tenants and policy.

All are immutable values. GPU amounts are whole GPUs for requests (`PodSet.gpus`) and milli-GPUs
(1000 = one whole GPU) wherever fractions or quotas are counted. Times are seconds since the
epoch. Identifiers are strings. The paper's words: QSCH = `queueing`, RSCH = `placement`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

MILLI: Final = 1000
BEYOND: Final = 10**9  # parts of a thousandth in which a share by memory is counted exactly
NOISE: Final = 1e-6  # of a GPU-milli, that sums of many fractions may be off by

# Stands for the GPU model where there is no GPU: of a node without GPUs, and in the pod sets of a
# job without GPUs, which are placed on such nodes only (docs/decisions/0038).
NO_GPUS: Final = ""

# The queue of jobs that name none.
DEFAULT_QUEUE: Final = "default"

# Levels of the scale-out network, nearest first (paper 3.3.5). A cluster may declare others.
DEFAULT_LEVELS = ("leaf", "spine", "superspine")


class JobKind(StrEnum):
    """What a job is for; a policy maps it to a placement strategy."""

    TRAINING = "training"
    INFERENCE = "inference"
    DEVELOPMENT = "development"


class QueueingPolicy(StrEnum):
    """What happens when the head of the global queue cannot start (paper, table 1)."""

    STRICT_FIFO = "strict-fifo"
    BEST_EFFORT_FIFO = "best-effort-fifo"
    BACKFILL = "backfill"


class PreemptionKind(StrEnum):
    """Why a running job may lose its place to a waiting one (paper 3.2.3)."""

    PRIORITY = "priority"
    RECLAIM = "reclaim"  # of quota that was lent
    BACKFILL = "backfill"  # of jobs that were backfilled past a head that waited too long


class CpuJobs(StrEnum):
    """Whether jobs without GPUs may be placed on nodes that have GPUs (docs/decisions/0038)."""

    NEVER = "never"
    FREELY = "freely"


class Sharing(StrEnum):
    """Whether a tenant's quota of one GPU model may be borrowed and lent (paper 3.2.1)."""

    ISOLATED = "isolated"
    SHARED = "shared"


# --- the cluster ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of a node. `index` is its position on the node and what placements name."""

    index: int
    id: str = ""
    numa: int = 0
    healthy: bool = True
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Nic:
    """One RDMA NIC of a node. `index` is its position on the node, `resource` the extended resource
    that it is one of; "" = pods ask for none, and Kant alone counts it."""

    index: int
    name: str = ""
    numa: int = 0
    healthy: bool = True
    resource: str = ""


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """Kubernetes semantics: an empty key with Exists tolerates everything, an empty effect any."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


# How models end whose devices are parts of a GPU: MIG slices, replicas that share one.
PART_OF_GPU = re.compile(r"-(MIG-.+|SHARED)$")


@dataclass(frozen=True, slots=True)
class Node:
    """One node as the placement engine sees it.

    `topology` names the group of the node at each level of the cluster, nearest first, as unique
    keys (a leaf name that repeats under two spines must already carry its spine); "" = unknown.
    `cpu_milli`, `memory_mib`, `max_pods`, `extended` are allocatable amounts; of `extended` those
    whose names have no "/", disk space and huge pages, in MiB.
    `link_model` names the device table of the node (NVLink, PCIe, NUMA layout), "" = by count.
    `zone` is "inference" for nodes of the inference zone (E-Spread, paper 3.3.4), else "".
    `problems` are warnings found while translating labels; shown to operators.
    `out_of_service`: in words, why it is not schedulable, "" = not known.
    `gpu_resource` is what pods ask for whole GPUs by, "" = not known. `gives_shares`: pods can get
    a part of a GPU here. `unnamed_unhealthy`: so many GPUs are out of service and nothing says
    which; `devices` shows them as healthy. `gpu_parts`: slices or replicas of GPUs are among
    `extended`, under names of their own. `attach_limits`: of drivers of volumes that have one, how
    many volumes can be attached at a time. `to_come`: the node is not there, an autoscaler may add
    it; it is not schedulable.
    """

    name: str
    gpu_model: str = ""
    devices: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()
    topology: tuple[str, ...] = ("", "", "")
    hyper_node: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    taints: tuple[Taint, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    max_pods: int = 110
    extended: Mapping[str, int] = field(default_factory=dict, hash=False)
    schedulable: bool = True
    link_model: str = ""
    zone: str = ""
    problems: tuple[str, ...] = ()
    gpu_resource: str = ""
    gives_shares: bool = True
    unnamed_unhealthy: int = 0
    gpu_parts: bool = False
    out_of_service: str = ""
    attach_limits: Mapping[str, int] = field(default_factory=dict, hash=False)
    to_come: bool = False

    @property
    def without_gpus(self) -> bool:
        """Whether no GPU needs its CPU and memory."""
        return not self.devices and not self.gpu_parts

    @property
    def healthy_gpus(self) -> int:
        """GPUs that work."""
        return max(sum(device.healthy for device in self.devices) - self.unnamed_unhealthy, 0)

    @property
    def gpu_memory_mib(self) -> int:
        """Memory that every GPU of the node has; 0 without GPUs."""
        return min((device.memory_mib for device in self.devices), default=0)


# --- jobs -------------------------------------------------------------------------------------
class NodeExpression(NamedTuple):
    """What a label of a node, or its name (`of_name`), has to be like (core/v1
    NodeSelectorRequirement)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    of_name: bool = False


NodeTerm = tuple[NodeExpression, ...]  # all of them have to hold


# A group of pods is all that a selector means, in the namespaces that it means. The core knows it
# by a name, and is told of which groups pods are (docs/decisions/0066).
class HostPort(NamedTuple):
    """A port of its node that a pod takes; `address` "" = of all addresses of the node."""

    port: int
    protocol: str = "TCP"
    address: str = ""


class Apart(NamedTuple):
    """No pod of the group may be on a node with the same value of the label `key`."""

    group: str
    key: str


class Near(NamedTuple):
    """Of each of these labels, nodes with the same value have a pod of the group; the first pod of
    a group to which it belongs itself may be anywhere with these labels."""

    group: str
    keys: tuple[str, ...]


class Spread(NamedTuple):
    """Of the values that the label `key` has, none has more than `max_skew` pods of the group more
    than the one with the fewest, which has none while there are fewer than `min_domains`. Counted
    are nodes that the pod could be on by selector and affinity (`by_affinity`), and by taints
    (`by_taints`)."""

    group: str
    key: str
    max_skew: int = 1
    min_domains: int = 1
    by_affinity: bool = True
    by_taints: bool = False


class Attached(NamedTuple):
    """A volume, by its driver and a name that the driver knows, that a pod has attached to its
    node; more pods of the node may use it."""

    driver: str
    volume: str


class GroupWish(NamedTuple):
    """So much better (`weight` below 0: worse) for each pod of the group near it, by `key`."""

    weight: int
    group: str
    key: str


class NodeWish(NamedTuple):
    """So much better where a node matches the term."""

    weight: int
    term: NodeTerm


class FreeableDevices(NamedTuple):
    """When a node has the devices for one more pod of a set, on which numbers do not say all.

    `steps`: for the first such pod, for the second beside it, and so on, the smallest sets of pods
    (job, pod set, ordinal) of which one has to be gone; with () among them, none has.
    """

    node: str
    steps: tuple[tuple[tuple[tuple[str, int, int], ...], ...], ...]


class PodRules(NamedTuple):
    """What the pods of a set say of other pods, and of which groups they are that others name.

    `evenly`: as `spread`, and only a wish. `affinity`: their own node affinity, by which nodes are
    counted in both; that of the pod set says too for which nodes their volumes are. `sole`: what
    only one pod of the cluster may have, in words. `attached`: volumes, of drivers with limits.
    `devices`: of the only nodes that may have the devices that they claim; () = of any.
    """

    groups: tuple[str, ...] = ()
    ports: tuple[HostPort, ...] = ()
    apart: tuple[Apart, ...] = ()
    near: Near | None = None
    spread: tuple[Spread, ...] = ()
    evenly: tuple[Spread, ...] = ()
    wishes: tuple[GroupWish, ...] = ()
    node_wishes: tuple[NodeWish, ...] = ()
    affinity: tuple[NodeTerm, ...] = ()
    sole: tuple[str, ...] = ()
    attached: tuple[Attached, ...] = ()
    devices: tuple[FreeableDevices, ...] = ()

    @property
    def only_groups(self) -> bool:
        """Whether they say nothing themselves: where one may be does not depend on the others."""
        return self == PodRules(self.groups)


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Which nodes pods may be on, in the words of Kubernetes: a node has to pass all of it.

    `node_selector`: labels that it has. `node_affinity`: terms of which it matches one, () = any.
    `tolerations`: of its taints. What these mean is said in `cluster/constraints.py`.
    """

    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_affinity: tuple[NodeTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    def __hash__(self) -> int:
        return hash((frozenset(self.node_selector.items()), self.node_affinity, self.tolerations))


ANY_NODE = NodeRules()


@dataclass(frozen=True, slots=True)
class PodSetSpec:
    """Equal pods of a job.

    `gpu_models`: acceptable models, the preferred first; () accepts any model. Of a pod set
    without GPUs the pods may be on any node, with (NO_GPUS,) only on nodes without GPUs.
    `gpus` devices per pod; `gpu_milli` of each (1000 = whole, below that only with gpus == 1).
    `gpu_memory_mib` > 0 asks for a fraction by memory instead, exact on the node taken.
    `min_count` < count: place `min_count` or nothing, more where it is free, also while the job
    runs (elastic gang).
    `required_level` / `preferred_level`: a level name of the cluster, or "hyper-node"; with
    `slice_size` n each slice of n consecutive pods is placed whole inside one such group.
    `balance_level`: the pods are spread over the groups of this level as evenly as they fit.
    `nodes`: which nodes its pods may be on.
    `rules`: what its pods say of other pods, and others of them; None = nothing.
    """

    name: str
    count: int
    gpus: int
    gpu_models: tuple[str, ...] = ()
    gpu_milli: int = MILLI
    gpu_memory_mib: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    nics: int = 0
    extended: Mapping[str, int] = field(default_factory=dict, hash=False)
    min_count: int | None = None
    nodes: NodeRules = ANY_NODE
    required_level: str = ""
    preferred_level: str = ""
    max_per_node: int | None = None
    max_per_leaf: int | None = None
    slice_size: int = 0
    balance_level: str = ""
    rules: PodRules | None = None

    def __hash__(self) -> int:
        """Of what pod sets mostly differ in: each job is looked up by its pod sets."""
        return hash((self.gpu_models, self.gpus, self.count, self.cpu_milli, self.memory_mib))

    @property
    def milli_per_pod(self) -> int:
        """GPU-milli one pod holds, when the fraction is not given by memory."""
        return self.gpus * self.gpu_milli

    @property
    def is_share(self) -> bool:
        """Whether a pod asks for a part of one GPU; by memory also where that comes out as all."""
        return self.gpu_milli < MILLI or self.gpu_memory_mib > 0

    @property
    def avoids_gpus(self) -> bool:
        """Whether its pods may be on nodes without GPUs only."""
        return not self.gpus and self.gpu_models == (NO_GPUS,)

    @property
    def anywhere(self) -> bool:
        """Whether its pods, of a gang too, may lie in several pools: without GPUs they are of no
        model."""
        return not self.gpus and len(self.gpu_models) != 1

    @property
    def least(self) -> int:
        """Pods without which a gang does not start."""
        return self.count if self.min_count is None else self.min_count


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as it waits: what it asks for and what its order depends on.

    `gang`: all pods start together or none; otherwise pods are admitted one by one.
    `declared_s`: declared run time in seconds; None = not declared.
    `strategy`: the job's own wish for a placement strategy; "" = by policy and kind.
    `required_level` / `preferred_level`: one group of this level for all pod sets together.
    `preempts`: whether it may take the places of others (Kubernetes' preemptionPolicy).
    `after` / `after_ok`: jobs that must have ended, or succeeded, before this one may start; the id
    of an array stands for all its jobs. `array`: the array it belongs to, "" = none.
    `user`: who submitted it; "" = not known, all such jobs of a tenant count as those of one user.
    `run_limit_s`: longest run time allowed; None = no limit.
    `uses_spares`: whether it may start on the nodes kept free as hot spares.
    `queue`: the name of a queue of its tenant.
    """

    id: str
    tenant: str
    submitted_at: float
    pod_sets: tuple[PodSetSpec, ...]
    priority: int = 0
    gang: bool = True
    kind: JobKind = JobKind.TRAINING
    preemptible: bool = True
    declared_s: float | None = None
    strategy: str = ""
    required_level: str = ""
    preferred_level: str = ""
    preempts: bool = True
    after: tuple[str, ...] = ()
    after_ok: tuple[str, ...] = ()
    run_limit_s: float | None = None
    uses_spares: bool = False
    array: str = ""
    user: str = ""
    queue: str = DEFAULT_QUEUE

    @property
    def gpu_milli(self) -> int:
        """GPU-milli of all pods of the job."""
        milli = 0
        for s in self.pod_sets:
            milli += s.count * s.gpus * s.gpu_milli
        return milli

    @property
    def without_gpus(self) -> bool:
        """Whether none of its pods asks for a GPU."""
        return not any(s.gpus for s in self.pod_sets)

    @property
    def pods(self) -> int:
        """Pods of all its pod sets."""
        return sum([s.count for s in self.pod_sets])

    @property
    def elastic(self) -> bool:
        """Whether it is a gang that can do with fewer pods than it asks for."""
        return self.gang and any(s.least < s.count for s in self.pod_sets)

    def go_together(self, pods: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """These pods (pod set, ordinal) and, of a gang, the others of their slices: what is left of
        a slice is of no use."""
        found = set(pods)
        for index, ordinal in tuple(found) if self.gang else ():
            size = self.pod_sets[index].slice_size or 1
            first = ordinal - ordinal % size
            found.update((index, other) for other in range(first, first + size))
        return found

    def goes_on_with(self, pods: Iterable[tuple[int, int]]) -> bool:
        """Whether a started job can go on with no other pods than these (pod set, ordinal)."""
        left = list(pods)
        if not self.gang:
            return bool(left)
        return all(
            sum(at == index for at, _ in left) >= s.least for index, s in enumerate(self.pod_sets)
        )


class PodPlacement(NamedTuple):
    """Where one pod goes: `milli` of each device in `devices` of `node`, of a share by memory the
    whole thousandths in it, and `beyond` what it is more than those, in billionths of a thousandth,
    rounded up; `nics` nearest to them."""

    pod_set: int
    ordinal: int
    node: str
    devices: tuple[int, ...]
    milli: int
    nics: tuple[int, ...] = ()
    beyond: int = 0


def held_milli(p: PodPlacement) -> int | float:
    """GPU-milli that a pod holds at its place, of a share by memory to the billionth of one."""
    whole = p.milli * len(p.devices)
    return whole + p.beyond / BEYOND if p.beyond else whole


def whole_milli(held: float) -> int:
    """A sum of such amounts as people read it: the whole thousandths in it, however it was added
    up."""
    return math.floor(held + NOISE)


# --- tenants ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A node of the tenant tree; what a child uses counts against every ancestor.

    `weight`: its share where the policy orders by fairness. `max_running`: most jobs that may
    run at once, of the tenant and all below it; None = no limit. `min_runtime_s`: as the policy's,
    for jobs of the tenant and of those below it that have none; None = that of the nearest tenant
    above that has one, else the policy's.
    """

    id: str
    parent: str | None = None
    weight: float = 1.0
    max_running: int | None = None
    min_runtime_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue of a tenant, for its jobs that name it.

    Among the queues of one tenant those of the higher `rank` go first, of equal ones whose jobs
    hold less by `weight`. `fifo`: its jobs start in their order whatever the policy says,
    `fair_users`: of its users who hold less first; neither = as the policy has it. `held`: its
    waiting jobs are as if they were not there; `why`: who holds it and for what, in words.
    `max_running`: most jobs of it that may run at once, `max_milli`: most GPU-milli of a GPU model
    at once; None and no entry = no limit.
    """

    tenant: str
    name: str = DEFAULT_QUEUE
    weight: float = 1.0
    rank: int = 0
    fifo: bool = False
    fair_users: bool = False
    held: bool = False
    why: str = ""
    max_running: int | None = None
    max_milli: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class QuotaSpec:
    """Quota of one tenant for one GPU model, in milli-GPU (engine.md, Quota).

    `borrow_limit` None = unlimited, `lend_limit` None = all that is idle; both matter only in
    shared mode.
    """

    tenant: str
    gpu_model: str
    guaranteed: int
    mode: Sharing = Sharing.SHARED
    borrow_limit: int | None = None
    lend_limit: int | None = None


# --- policy -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a cluster that a scheduler decides about by itself (docs/decisions/0003).

    It holds the nodes whose GPU model is in `gpu_models` and that lie in one of `groups`, keys of
    groups of any topology level (`Node.topology`); an empty tuple does not restrict.
    """

    name: str
    gpu_models: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def holds(self, node: Node) -> bool:
        if self.gpu_models and node.gpu_model not in self.gpu_models:
            return False
        return not self.groups or any(group in self.groups for group in node.topology)


@dataclass(frozen=True, slots=True)
class Policy:
    """How one cluster is scheduled; switchable while running.

    `strategies` maps a job kind to a placement strategy. A requeued job waits
    `backoff_base_s` * 2**(attempts - 1), at most `backoff_cap_s`; after `max_attempts` failed
    placements it ends as FAILED. A gang whose pods do not all run within `gang_timeout_s` is
    released, of an elastic one the late pods if it has enough without them. A node that rejected a
    pod is avoided for `blame_s`. Pods stay for `node_loss_s` on a node that does not answer, those
    of jobs that save their work or use spares for `node_loss_saved_s`.

    Backfill: a head that has been blocked for `backfill_after_s` lets nothing more be backfilled
    in its way but what it may preempt. `learned_run_times`: what is kept for heads goes by the run
    times that were learned (`RunTimesLearned`) where a gang declares none; for one that fits on a
    node only once it starves.
    `preemption`: the kinds that are allowed. By priority or
    reclaim nobody preempts before it has waited for `preempt_after_s`. A job is not
    preempted in its first `min_runtime_s` seconds, where its tenant has none of its own, nor more
    than `max_preemptions` times. `consolidation`: replicas of preemptible inference jobs that have
    been in their place for as long are moved where that makes one partly used node fewer.

    `defrag_loss`: the share of the GPU time that jobs use which may be lost by moving jobs of one
    pod likewise, 0 = none is moved; where more than `defrag_above` (0 to 1) of the nodes of a GPU
    model are partly used, and at most `defrag_moves` at once.

    `fair_share`: among equal priorities, the tenant with the smallest dominant share by weight
    goes first, at each level of the tree, asked anew after each start; its past use counts beside
    what it holds with half-life `usage_half_life_s` (0 = not).
    `fair_users`, with `fair_share` only: inside a tenant likewise the user with the smallest.
    `spare_nodes`: nodes of each GPU model kept free for jobs that use spares.
    `cpu_jobs_on_gpu_nodes`: whether jobs without GPUs may use nodes with GPUs.
    `warn_before_s`: how long before its run-time limit a job is warned.
    `shards`: into which parts the cluster is divided between schedulers, in order; () = not.
    """

    queueing: QueueingPolicy = QueueingPolicy.BEST_EFFORT_FIFO
    strategies: Mapping[JobKind, str] = field(
        default_factory=lambda: dict.fromkeys(JobKind, "binpack"), hash=False
    )
    backoff_base_s: float = 5.0
    backoff_cap_s: float = 300.0
    max_attempts: int = 8
    gang_timeout_s: float = 600.0
    blame_s: float = 300.0
    node_loss_s: float = 300.0
    node_loss_saved_s: float = 60.0
    backfill_after_s: float = 600.0
    learned_run_times: bool = True
    preemption: tuple[PreemptionKind, ...] = ()
    preempt_after_s: float = 0.0
    min_runtime_s: float = 60.0
    max_preemptions: int = 5
    consolidation: bool = False
    defrag_loss: float = 0.0
    defrag_above: float = 0.0
    defrag_moves: int = 8
    fair_share: bool = False
    fair_users: bool = False
    usage_half_life_s: float = 0.0
    spare_nodes: Mapping[str, int] = field(default_factory=dict, hash=False)
    cpu_jobs_on_gpu_nodes: CpuJobs = CpuJobs.NEVER
    warn_before_s: float = 300.0
    shards: tuple[Shard, ...] = ()

    @property
    def blocks_nobody(self) -> bool:
        """Whether a job that cannot start closes nothing to the jobs behind it."""
        return self.queueing is QueueingPolicy.BEST_EFFORT_FIFO

    @property
    def foresees_starts(self) -> bool:
        """Whether what a blocked job will need when it starts is kept for it."""
        return self.queueing is QueueingPolicy.BACKFILL

    @property
    def defragments(self) -> bool:
        """Whether jobs are moved for a price so that fewer nodes are partly used."""
        return self.defrag_loss > 0.0 and self.defrag_moves > 0

    @property
    def plans_by_learned(self) -> bool:
        """Whether learned run times count."""
        return self.foresees_starts and self.learned_run_times
