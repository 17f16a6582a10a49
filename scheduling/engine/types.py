"""The nouns of the decision core: facts about nodes, jobs, tenants and policy.

All are immutable values. GPU amounts are whole GPUs in requests (`PodSetSpec.gpus`) and milli-GPUs
(1000 = one whole GPU) wherever fractions or quotas are counted. Times are seconds since the
epoch. Identifiers are strings. The paper's RSCH is `placement`; its QSCH is `queue`, `quota`,
`admission`, `backfill` and `preemption`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

MILLI: Final = 1000
BEYOND: Final = 10**9  # parts of a GPU-milli: the unit in which a share by memory is exact
NOISE: Final = 1e-6  # GPU-milli: the largest rounding error expected in a sum of many fractions

# The GPU model of nodes without GPUs. A pod set that accepts only this model runs on such nodes
# only (docs/decisions/0038).
NO_GPUS: Final = ""

# The queue of jobs that do not name one.
DEFAULT_QUEUE: Final = "default"

# Levels of the scale-out network, narrowest first (paper 3.3.5). A cluster may declare others.
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
    RECLAIM = "reclaim"  # takes lent quota back
    BACKFILL = "backfill"  # preempts jobs that were backfilled past a head that waited too long


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
    """One GPU of a node. `index` is its position on the node; placements refer to it."""

    index: int
    id: str = ""
    numa: int = 0
    healthy: bool = True
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Nic:
    """One RDMA NIC of a node.

    `index` is its position on the node. `resource` is the extended resource through which pods
    request it; "" = there is none, and only Kant counts the NIC.
    """

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
    """A toleration as in Kubernetes.

    An empty key with Exists tolerates every taint; an empty effect matches every effect.
    """

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


# The suffix of GPU models whose devices are parts of a GPU: MIG slices, or replicas that share one.
PART_OF_GPU = re.compile(r"-(MIG-.+|SHARED)$")


@dataclass(frozen=True, slots=True)
class Node:
    """One node as the placement engine sees it.

    `topology`: the node's group at each level of the cluster, narrowest level first, as unique
    keys (a leaf name that repeats under two spines must already carry its spine); "" = unknown.
    `cpu_milli`, `memory_mib`, `max_pods`, `extended`: allocatable amounts. In `extended`, names
    without "/" (disk space, huge pages) are in MiB.
    `link_model`: the device table of the node (NVLink, PCIe and NUMA layout); "" = unknown, only
    NUMA nodes count.
    `zone`: "inference" for nodes of the inference zone (E-Spread, paper 3.3.4), else "".
    `problems`: warnings found while reading the node's facts, shown to operators.
    `out_of_service`: why the node is not schedulable, in words; "" = not known.
    `gpu_resource`: the resource through which pods request whole GPUs; "" = not known.
    `gives_shares`: pods can get a part of a GPU here.
    `unnamed_unhealthy`: how many GPUs are out of service without anything saying which ones;
    `devices` shows them as healthy.
    `gpu_parts`: `extended` contains slices or replicas of GPUs under names of their own.
    `attach_limits`: by volume driver, how many volumes can be attached at a time; drivers without
    a limit are missing.
    `to_come`: the node does not exist yet, but an autoscaler may add it; it is not schedulable.
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
        """Whether the node has neither GPUs nor parts of GPUs that need its CPU and memory."""
        return not self.devices and not self.gpu_parts

    @property
    def healthy_gpus(self) -> int:
        """The number of GPUs that work."""
        return max(sum(device.healthy for device in self.devices) - self.unnamed_unhealthy, 0)

    @property
    def gpu_memory_mib(self) -> int:
        """The memory of the node's smallest GPU in MiB; 0 without GPUs."""
        return min((device.memory_mib for device in self.devices), default=0)


# --- jobs -------------------------------------------------------------------------------------
class NodeExpression(NamedTuple):
    """A condition on a label of a node, or on its name (`of_name`).

    It corresponds to core/v1 NodeSelectorRequirement.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    of_name: bool = False


NodeTerm = tuple[NodeExpression, ...]  # all expressions must hold


# A group is the set of pods that a selector matches in certain namespaces. The core knows only the
# name of each group; callers say which groups a pod belongs to (docs/decisions/0066).
class HostPort(NamedTuple):
    """A port that a pod takes on its node; `address` "" = on all addresses of the node."""

    port: int
    protocol: str = "TCP"
    address: str = ""


class Apart(NamedTuple):
    """No pod of the group may be on a node with the same value of the label `key`."""

    group: str
    key: str


class Near(NamedTuple):
    """For each label in `keys`, a pod of the group is on a node with the same value.

    The first pod of a group to which it belongs itself may be on any node that has all the labels.
    """

    group: str
    keys: tuple[str, ...]


class Spread(NamedTuple):
    """A topology spread constraint on the pods of a group, by the values of the label `key`.

    No value has more than `max_skew` pods more than the value with the fewest. While there are
    fewer than `min_domains` values, that minimum counts as 0. Only nodes that the pod could use
    count: by selector and affinity if `by_affinity`, by taints if `by_taints`.
    """

    group: str
    key: str
    max_skew: int = 1
    min_domains: int = 1
    by_affinity: bool = True
    by_taints: bool = False


class Attached(NamedTuple):
    """A volume that a pod has attached to its node; other pods on the node may share it.

    `volume` is the name by which the driver knows it.
    """

    driver: str
    volume: str


class GroupWish(NamedTuple):
    """A preference that adds `weight` for each pod of the group on nodes with the same `key`.

    A negative weight makes a node worse.
    """

    weight: int
    group: str
    key: str


class NodeWish(NamedTuple):
    """A preference that adds `weight` to nodes that match the term."""

    weight: int
    term: NodeTerm


class FreeableDevices(NamedTuple):
    """Which pods must go before a node has the devices for one more pod of a set.

    Needed for claimed devices, where counts alone do not decide. `steps`: for the first such pod,
    for a second beside it, and so on, the smallest sets of pods (job, pod set, ordinal); one of
    these sets must be gone completely. An empty set among them means that no pod has to go.
    """

    node: str
    steps: tuple[tuple[tuple[tuple[str, int, int], ...], ...], ...]


class PodRules(NamedTuple):
    """The rules that the pods of a set have about other pods, and the groups they belong to.

    `groups`: the groups of these pods that rules of any pod name.
    `evenly`: like `spread`, but only preferred.
    `affinity`: the pods' own node affinity, which decides which nodes count for `spread` and
    `evenly`. (The affinity of the pod set also limits the nodes to those of the pods' volumes.)
    `sole`: things that only one pod of the cluster may have, in words.
    `attached`: volumes of drivers that have a limit.
    `devices`: the only nodes that may have the claimed devices, one entry each; () = any node.
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
        """Whether there are no rules, only groups: other pods do not decide where these may be."""
        return self == PodRules(self.groups)


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Which nodes pods may use, in the terms of Kubernetes. A node must pass all three.

    `node_selector`: labels that the node must have. `node_affinity`: terms of which it must match
    one; () = every node. `tolerations`: the taints that the pods tolerate. The semantics are in
    `cluster/constraints.py`.
    """

    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_affinity: tuple[NodeTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    def __hash__(self) -> int:
        return hash((frozenset(self.node_selector.items()), self.node_affinity, self.tolerations))


ANY_NODE = NodeRules()


@dataclass(frozen=True, slots=True)
class PodSetSpec:
    """Identical pods of a job.

    `gpu_models`: acceptable models, preferred first; () accepts any model. Pods without GPUs may
    use any node; with (NO_GPUS,) only nodes without GPUs.
    `gpus`: devices per pod. `gpu_milli`: share of each (1000 = whole; less only if gpus == 1).
    `gpu_memory_mib` > 0 requests a share by memory instead, exact on the node chosen.
    `min_count` < count makes an elastic gang: place `min_count` pods or none, and more if there is
    room, also while the job runs.
    `required_level` / `preferred_level`: a level name of the cluster, or "hyper-node". With
    `slice_size` n, each slice of n consecutive pods is placed whole inside one such group.
    `balance_level`: spread the pods over the groups of this level as evenly as they fit.
    `nodes`: which nodes the pods may use.
    `rules`: rules about other pods, in either direction; None = there are none.
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
        """Hash only the fields in which pod sets mostly differ: every job look-up hashes them."""
        return hash((self.gpu_models, self.gpus, self.count, self.cpu_milli, self.memory_mib))

    @property
    def milli_per_pod(self) -> int:
        """GPU-milli that one pod holds, unless it requests a share by memory."""
        return self.gpus * self.gpu_milli

    @property
    def is_share(self) -> bool:
        """Whether a pod requests a share of one GPU; a share by memory may be all of it."""
        return self.gpu_milli < MILLI or self.gpu_memory_mib > 0

    @property
    def avoids_gpus(self) -> bool:
        """Whether its pods may use only nodes without GPUs."""
        return not self.gpus and self.gpu_models == (NO_GPUS,)

    @property
    def anywhere(self) -> bool:
        """Whether its pods may lie in several pools, even in a gang: they need no GPU model."""
        return not self.gpus and len(self.gpu_models) != 1

    @property
    def least(self) -> int:
        """The fewest pods with which a gang starts."""
        return self.count if self.min_count is None else self.min_count


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as it waits: what it requests and what its place in the order depends on.

    `gang`: all pods start together or none; otherwise pods are admitted one by one.
    `declared_s`: declared run time in seconds; None = not declared.
    `strategy`: the placement strategy that the job asks for; "" = by policy and kind.
    `required_level` / `preferred_level`: one group of this level for all pod sets together.
    `preempts`: whether the job may preempt others (preemptionPolicy in Kubernetes).
    `after` / `after_ok`: jobs that must have ended, or succeeded, before this one may start; the id
    of an array stands for all its jobs. `array`: the array it belongs to; "" = none.
    `user`: who submitted it; "" = not known. All such jobs of a tenant count as one user's.
    `run_limit_s`: the longest run time allowed, in seconds; None = no limit.
    `uses_spares`: whether the job may start on nodes kept free as hot spares.
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
        """GPU-milli of all pods of the job; a share by memory counts as a whole GPU."""
        milli = 0
        for s in self.pod_sets:
            milli += s.count * s.gpus * s.gpu_milli
        return milli

    @property
    def without_gpus(self) -> bool:
        """Whether none of its pods requests a GPU."""
        return not any(s.gpus for s in self.pod_sets)

    @property
    def pods(self) -> int:
        """The number of pods in all pod sets."""
        return sum([s.count for s in self.pod_sets])

    @property
    def elastic(self) -> bool:
        """Whether this is a gang that can run with fewer pods than it requests."""
        return self.gang and any(s.least < s.count for s in self.pod_sets)

    def go_together(self, pods: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return these pods (pod set, ordinal) and, for a gang, the rest of their slices.

        A gang cannot use an incomplete slice.
        """
        found = set(pods)
        for index, ordinal in tuple(found) if self.gang else ():
            size = self.pod_sets[index].slice_size or 1
            first = ordinal - ordinal % size
            found.update((index, other) for other in range(first, first + size))
        return found

    def goes_on_with(self, pods: Iterable[tuple[int, int]]) -> bool:
        """Whether a started job can go on with only these pods (pod set, ordinal)."""
        left = list(pods)
        if not self.gang:
            return bool(left)
        return all(
            sum(at == index for at, _ in left) >= s.least for index, s in enumerate(self.pod_sets)
        )


class PodPlacement(NamedTuple):
    """Where one pod goes: `milli` thousandths of each of the `devices` of `node`.

    For a share by memory, `milli` is its whole thousandths and `beyond` the rest, in billionths of
    a thousandth, rounded up. `nics` are the NICs nearest to the devices.
    """

    pod_set: int
    ordinal: int
    node: str
    devices: tuple[int, ...]
    milli: int
    nics: tuple[int, ...] = ()
    beyond: int = 0


def held_milli(p: PodPlacement) -> int | float:
    """Return the GPU-milli that a pod holds at its place, to a billionth for shares by memory."""
    whole = p.milli * len(p.devices)
    return whole + p.beyond / BEYOND if p.beyond else whole


def whole_milli(held: float) -> int:
    """Round a sum of such amounts down to whole GPU-milli, as people read it.

    NOISE absorbs rounding errors, so the order of the additions does not matter.
    """
    return math.floor(held + NOISE)


# --- tenants ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A node of the tenant tree; what a child uses counts against every ancestor.

    `weight`: its weight in fair share. `max_running`: how many jobs of the tenant and all tenants
    below it may run at once; None = no limit. `min_runtime_s`: replaces the policy's min runtime
    for jobs of the tenant and of the tenants below it that set none; None = that of the nearest
    ancestor that sets one, else the policy's.
    """

    id: str
    parent: str | None = None
    weight: float = 1.0
    max_running: int | None = None
    min_runtime_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue of a tenant, for the jobs that name it.

    Among the queues of one tenant, higher `rank` goes first; at equal rank, the queue whose jobs
    hold less, by `weight`. `fifo`: its jobs start in order, whatever the policy says. `fair_users`:
    among its users, whoever holds less goes first. If neither is set, the policy decides.
    `held`: its waiting jobs are ignored; `why`: who holds the queue and for what, in words.
    `max_running`: how many of its jobs may run at once; None = no limit. `max_milli`: the GPU-milli
    of each GPU model that they may hold at once; a missing model has no limit.
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
    """Quota of one tenant for one GPU model, in milli-GPU (docs/queueing/quotas.md).

    `borrow_limit` None = unlimited; `lend_limit` None = the whole idle guarantee may be lent. Both
    matter only in shared mode.
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
    """A part of a cluster with its own scheduler (docs/decisions/0003).

    It holds the nodes whose GPU model is in `gpu_models` and that are in one of `groups` (keys of
    groups of any topology level, as in `Node.topology`). An empty tuple does not restrict.
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
    `backoff_base_s` * 2**(attempts - 1) seconds, at most `backoff_cap_s`; after `max_attempts`
    failed placements it ends as FAILED. A gang whose pods do not all run within `gang_timeout_s`
    is released; an elastic gang that has enough pods loses only the late ones. A node that rejected
    a pod is avoided for `blame_s`. Pods stay for `node_loss_s` on a node that does not answer, pods
    of jobs that save their work or use spares for `node_loss_saved_s`.

    Backfill: once a head has been blocked for `backfill_after_s`, only jobs that it may preempt are
    still backfilled in its way. `learned_run_times`: reservations for heads use learned run times
    (`RunTimesLearned`) for gangs that declare none; a gang that fits on one node then becomes a
    head only once it starves (`backfill/gathering.py`).

    `preemption`: the allowed kinds. A job preempts by priority or reclaim only after it has waited
    for `preempt_after_s`. A job is not preempted in its first `min_runtime_s` seconds (a tenant may
    set its own min runtime), nor more than `max_preemptions` times. `consolidation`: move a replica
    of a preemptible inference job, once it has held its place for the min runtime, if that leaves
    one partly used node fewer.

    Defragmentation moves jobs of one pod for the same purpose, at a price. `defrag_loss`: the share
    of the GPU time used by jobs that such moves may lose; 0 = no moves. Moves happen while more
    than `defrag_above` (0 to 1) of a GPU model's nodes are partly used, at most `defrag_moves` at
    once.

    `fair_share`: among equal priorities, the tenant with the smallest weighted dominant share goes
    first, at each level of the tree, read again after each start. Past use counts beside what it
    holds, with half-life `usage_half_life_s` in seconds (0 = past use does not count).
    `fair_users`, only with `fair_share`: order the users inside a tenant in the same way.
    `spare_nodes`: how many nodes of each GPU model to keep free for jobs that use hot spares.
    `cpu_jobs_on_gpu_nodes`: whether jobs without GPUs may use nodes with GPUs.
    `warn_before_s`: warn a job this many seconds before its run-time limit.
    `shards`: the parts into which the cluster is divided between schedulers, in order; () = the
    cluster is not divided.
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
        """Whether a blocked job holds back none of the jobs behind it."""
        return self.queueing is QueueingPolicy.BEST_EFFORT_FIFO

    @property
    def foresees_starts(self) -> bool:
        """Whether blocked jobs get reservations for a planned start."""
        return self.queueing is QueueingPolicy.BACKFILL

    @property
    def defragments(self) -> bool:
        """Whether jobs may be moved, losing work, so that fewer nodes are partly used."""
        return self.defrag_loss > 0.0 and self.defrag_moves > 0

    @property
    def plans_by_learned(self) -> bool:
        """Whether reservations use learned run times."""
        return self.foresees_starts and self.learned_run_times
