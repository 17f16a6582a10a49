"""Deltas: everything that may change between two cycles.

The live session and the simulator talk to the engine only through them. Applying a delta takes
amortised constant time. Only deltas and the engine's own decisions change its state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduling.engine.types import (
    JobRequest,
    Node,
    PodPlacement,
    PodRules,
    Policy,
    QueueSpec,
    QuotaSpec,
    TenantSpec,
)


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node appeared or its facts changed (labels, health, capacity, taints, cordon)."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class NeighbourChanged:
    """A node of another scope of the cluster appeared or changed.

    Nothing is placed on it, but rules about other pods count the pods there, by the node's labels
    and taints; no other facts matter. None = the node is gone, or belongs to this scope now.
    """

    name: str
    node: Node | None


@dataclass(frozen=True, slots=True)
class OtherPodChanged:
    """A pod that Kant did not place occupies a node.

    `gpus` is a count; its devices are unknown. `rules`: its groups, host ports and other rules;
    None = it has none.
    """

    uid: str
    node: str
    gpus: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    extended: Mapping[str, int] = field(default_factory=dict, hash=False)
    rules: PodRules | None = None


@dataclass(frozen=True, slots=True)
class OtherPodRemoved:
    uid: str


@dataclass(frozen=True, slots=True)
class TenantsChanged:
    """The whole tenant tree and all quotas, replacing the previous ones.

    `used_elsewhere`: (tenant, GPU model, GPU-milli, part of it held by non-preemptible jobs) held
    in other clusters and scopes; counts against quota. `jobs_elsewhere`: (tenant, jobs that run
    there); counts against the tenant's job limit.
    """

    tenants: tuple[TenantSpec, ...]
    quotas: tuple[QuotaSpec, ...]
    used_elsewhere: tuple[tuple[str, str, float, float], ...] = ()
    jobs_elsewhere: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class QueuesChanged:
    """All queues, replacing the previous ones.

    Tenants whose only queue has default settings are left out.

    `jobs_elsewhere`: (tenant, queue, jobs that run in other clusters and scopes). `held_elsewhere`:
    (tenant, queue, GPU model, GPU-milli that they hold there). Both count against the limits of
    queues.
    """

    queues: tuple[QueueSpec, ...]
    jobs_elsewhere: tuple[tuple[str, str, int], ...] = ()
    held_elsewhere: tuple[tuple[str, str, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class OtherScopesChanged:
    """What the other scopes of a divided cluster hold and have, replacing the previous values.

    Fair share needs it, because it is computed over the whole cluster. `held`: (tenant, user, GPU
    model, GPU-milli) held by their jobs. `gpus`: (GPU model, GPUs) of their nodes.
    """

    held: tuple[tuple[str, str, str, float], ...] = ()
    gpus: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    policy: Policy


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job enters its tenant's queue.

    `not_before`: the earliest time of an attempt (back-off, or start time).
    """

    job: JobRequest
    not_before: float = 0.0
    held: bool = False


@dataclass(frozen=True, slots=True)
class JobChanged:
    """A job changed its request; a started job may change only its run time or pod count.

    Whether the job is held, and its earliest start, stay as they were. With a smaller count, the
    surplus pods keep their places until `PodRequeued` reports them gone; with a larger one, the
    additional pods count as missing.
    """

    job: JobRequest


@dataclass(frozen=True, slots=True)
class JobRestored:
    """A job that already holds places (found at start, or adopted); book them without a decision.

    `ended`: (pod set, ordinal) of pods that are done. Pods that are neither placed nor ended are
    missing: a job that is no gang keeps waiting for them, an elastic gang may get them.
    `placed_at`: since when the job holds each placement; () = all since `started_at`.
    `leaving`: (pod set, ordinal) of placed pods that were preempted or moved and are not gone yet;
    `PodEnded` will report them gone.
    `running_at`: since when the pod of each placement runs, None = not yet; () = all have run
    since they got their places.
    """

    job: JobRequest
    placements: tuple[PodPlacement, ...]
    started_at: float
    ended: tuple[tuple[int, int], ...] = ()
    placed_at: tuple[float, ...] = ()
    leaving: tuple[tuple[int, int], ...] = ()
    running_at: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What was decided about a job before this state began.

    `preempted_by`: for each time the job was preempted, the job that it made room for.
    `gave_way_to`: jobs for which an elastic gang only gave up pods.
    `blocked_since`: when the job was first blocked at the head.
    `front`: as in `JobRequeued`.
    `back_at`: when the job last came back to its queue, or was released from a hold.
    `lost_gpu_s`: GPU-seconds of work that moves have cost it.
    `stands_at`: the last value that `StandsAt` reported.
    """

    job_id: str
    preempted_by: tuple[str, ...] = ()
    blocked_since: float | None = None
    front: bool = False
    gave_way_to: tuple[str, ...] = ()
    back_at: float | None = None
    lost_gpu_s: float = 0.0
    stands_at: float | None = None


@dataclass(frozen=True, slots=True)
class PastUse:
    """Past use up to the cycle that applies this delta, replacing the previous values.

    `held`: (tenant, user, GPU model, GPU-milli); an average over the past in which use counts half
    as much for every half-life of the policy.
    """

    held: tuple[tuple[str, str, str, float], ...]


@dataclass(frozen=True, slots=True)
class MovesBefore:
    """What jobs used, and what moves lost, before this state began, in GPU-seconds.

    Both cover the period in which the move budget fills up (`running/last_look.py`).
    """

    used_gpu_s: float
    lost_gpu_s: float


@dataclass(frozen=True, slots=True)
class QueueDebts:
    """What queues were owed at `at` (seconds since the epoch), as an earlier scheduler knew it.

    `owed`: (tenant, queue, GPUs); negative if the queue held more than its part.
    """

    owed: tuple[tuple[str, str, float], ...]
    at: float


@dataclass(frozen=True, slots=True)
class PodsRunning:
    """Pods of a job run since `at`: all that have places, or only `pods` (pod set, ordinal).

    It matters only if the state is `told_of_runs`.
    """

    job_id: str
    at: float
    pods: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PodHoldsMore:
    """What a placed pod holds of extended resources beside what it requests; {} = nothing more.

    A device that a pod claims may be of kinds that others claim by another name.
    """

    job_id: str
    pod_set: int
    ordinal: int
    extended: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PodEnded:
    """One pod of a started job is gone, and its place is free; the job itself goes on.

    A preempted or moved pod will be placed again; any other pod has ended for good.
    """

    job_id: str
    pod_set: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class PodRequeued:
    """One pod of a started job could not keep its place, or left it; the job goes on without it.

    The job is an elastic gang or no gang. While it misses pods, the pod is placed again, not before
    `not_before`, and not on `avoided_nodes` for the policy's `blame_s`.
    """

    job_id: str
    pod_set: int
    ordinal: int
    not_before: float
    avoided_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job finished, failed or was cancelled; it releases all it holds and leaves the queue.

    `succeeded` decides whether jobs that wait for its success may start.
    """

    job_id: str
    succeeded: bool = True


@dataclass(frozen=True, slots=True)
class JobRequeued:
    """A placement failed: the job releases everything and waits again at its old position.

    For a preempted job it reports that all its pods are gone. The job avoids `avoided_nodes` for
    the policy's `blame_s`, from the cycle that applies the delta. `front`: the job lost its place
    through a fault and goes before all others of its priority.
    """

    job_id: str
    not_before: float
    avoided_nodes: tuple[str, ...] = ()
    front: bool = False


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A running job has saved its work at `at`: a preemption loses only what it did since."""

    job_id: str
    at: float


@dataclass(frozen=True, slots=True)
class LearnedTime:
    """How long a job is likely to run, in seconds.

    `most_s`: most similar jobs have ended by then. `middles`, ascending: half of the similar jobs
    end within the first; of those that run longer, half end within the second, and so on. A job
    that outlives the last value is taken to be half done.
    """

    most_s: float
    middles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunTimesLearned:
    """Learned run times of gangs that declare none, by job; the newest one of a job counts."""

    of: tuple[tuple[str, LearnedTime], ...]


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """How many pods of a job its PodDisruptionBudget lets go now; None = it has no budget."""

    job_id: str
    allowed: int | None


Delta = (
    NodeChanged
    | NodeRemoved
    | NeighbourChanged
    | OtherPodChanged
    | OtherPodRemoved
    | TenantsChanged
    | QueuesChanged
    | OtherScopesChanged
    | PolicyChanged
    | JobSubmitted
    | JobChanged
    | JobRestored
    | JobHistory
    | PastUse
    | MovesBefore
    | QueueDebts
    | PodsRunning
    | PodHoldsMore
    | PodEnded
    | PodRequeued
    | JobEnded
    | JobRequeued
    | Checkpointed
    | RunTimesLearned
    | DisruptionBudget
)
