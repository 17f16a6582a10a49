"""What may change between two cycles. The live session and the simulator speak only these.

A delta is applied in (amortised) constant time; nothing else changes the engine's state.
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
    """A node of another scope of the cluster: nothing is placed there, but what rules say of other
    pods counts those on it by its labels and taints; nothing else of it matters. None = it is gone,
    or it belongs to this scope now."""

    name: str
    node: Node | None


@dataclass(frozen=True, slots=True)
class OtherPodChanged:
    """A pod that is not Kant's occupies a node; its GPUs are a count, the devices unknown. `rules`:
    its groups and host ports, None = nothing is said of it."""

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
    """The whole tenant tree and all quotas, replacing what was known.

    `used_elsewhere`: (tenant, gpu model, milli, of that by jobs that cannot be preempted) held in
    other clusters and scopes, counted against quota. `jobs_elsewhere`: (tenant, jobs that run
    there), counted against its limit.
    """

    tenants: tuple[TenantSpec, ...]
    quotas: tuple[QuotaSpec, ...]
    used_elsewhere: tuple[tuple[str, str, float, float], ...] = ()
    jobs_elsewhere: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class QueuesChanged:
    """All queues of the tenants that have more than a queue of which nothing is said, replacing
    what was known. `jobs_elsewhere`: (tenant, queue, jobs that run in other clusters and scopes),
    `held_elsewhere`: (tenant, queue, gpu model, milli that they hold there), counted against the
    limits of queues."""

    queues: tuple[QueueSpec, ...]
    jobs_elsewhere: tuple[tuple[str, str, int], ...] = ()
    held_elsewhere: tuple[tuple[str, str, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class OtherScopesChanged:
    """What there is in the other scopes of a divided cluster, replacing what was known: fair share
    is of the whole cluster. `held`: (tenant, user, gpu model, milli) by their jobs, `gpus`: (gpu
    model, GPUs) of their nodes."""

    held: tuple[tuple[str, str, str, float], ...] = ()
    gpus: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    policy: Policy


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job enters its tenant queue. `not_before`: no attempt earlier (back-off, start time)."""

    job: JobRequest
    not_before: float = 0.0
    held: bool = False


@dataclass(frozen=True, slots=True)
class JobChanged:
    """A job asks for something else, of one that has started for another run time or count of
    pods; it is held, and starts not before, as until now.

    Pods beyond the new count keep their places until `PodRequeued` tells that they are gone; the
    others are missing, or no longer.
    """

    job: JobRequest


@dataclass(frozen=True, slots=True)
class JobRestored:
    """A job that already holds places (found at start, or adopted): booked without a decision.

    `ended`: (pod set, ordinal) of pods that are done; a job that is no gang goes on waiting for
    those of its pods that are neither placed nor ended, an elastic gang may get them. `placed_at`:
    since when it holds each of the placements, if not all since `started_at`. `leaving`: those of
    them that were preempted or moved and are not gone yet; `PodEnded` will say that they are.
    `running_at`: since when the pod of each of the placements runs, None = it does not yet; () =
    all of them do since they have their places.
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
    """What was decided about a job before this state began: `preempted_by` names, for each time
    it was preempted, the job it made room for, `gave_way_to` those for which an elastic gang only
    gave pods up; `blocked_since` when it was first blocked at the head; `front` as `JobRequeued`
    said it; `back_at` when it last came back to its queue, or was released; `lost_gpu_s`: the
    GPU-seconds of work that moves have cost it; `stands_at` what `StandsAt` said last."""

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
    """What was held until the cycle that applies this, replacing what was known of it. `held`:
    (tenant, user, gpu model, milli-GPU on average over the past, older use counting half as much
    every half-life of the policy)."""

    held: tuple[tuple[str, str, str, float], ...]


@dataclass(frozen=True, slots=True)
class MovesBefore:
    """What jobs used before this state began, in GPU-seconds, and how much work moves lost then;
    of the time in which the budget for lost work fills."""

    used_gpu_s: float
    lost_gpu_s: float


@dataclass(frozen=True, slots=True)
class QueueDebts:
    """What a scheduler before this one knew at `at`, seconds since the epoch, that queues were
    owed: (tenant, queue, GPUs), negative where they held more."""

    owed: tuple[tuple[str, str, float], ...]
    at: float


@dataclass(frozen=True, slots=True)
class PodsRunning:
    """Since `at` all pods that a job has places for run, or (`pods`: pod set, ordinal) these of
    them. Matters where the state is `told_of_runs`."""

    job_id: str
    at: float
    pods: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PodEnded:
    """One pod of a started job is gone; its place is free. The job itself goes on.

    A pod that was preempted is placed again; any other has ended for good.
    """

    job_id: str
    pod_set: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class PodRequeued:
    """One pod of a started job that goes on without it (no gang, or an elastic one) found no place
    after all, or left it: while the job misses pods it is placed again, not before `not_before`,
    and not on `avoided_nodes` nodes for the policy's `blame_s`."""

    job_id: str
    pod_set: int
    ordinal: int
    not_before: float
    avoided_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job finished, failed or was cancelled; all it holds is released, it leaves the queue.

    `succeeded` decides about the jobs that may start only after its success.
    """

    job_id: str
    succeeded: bool = True


@dataclass(frozen=True, slots=True)
class JobRequeued:
    """A placement failed: everything is released and the job waits again, in its old place.

    It also tells that all pods of a preempted job are gone. `avoided_nodes` nodes are avoided for
    the
    policy's `blame_s` from the cycle that applies the delta. `front`: it lost its place by a
    fault and goes before all others of its priority.
    """

    job_id: str
    not_before: float
    avoided_nodes: tuple[str, ...] = ()
    front: bool = False


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A running job has saved its work: what it loses when preempted counts from here."""

    job_id: str
    at: float


@dataclass(frozen=True, slots=True)
class LearnedTime:
    """How long a job is likely to run, in seconds. `most_s`: most of its like are over by then;
    `middles`, ascending: half of them are over after the first, half of those that go on longer
    after the second, and so on. Who outlives the last is taken to be half through."""

    most_s: float
    middles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunTimesLearned:
    """What is likely of gangs that declare no run time, by job, replacing what was known of
    these."""

    of: tuple[tuple[str, LearnedTime], ...]


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """How many pods of a job may be evicted now, from its PodDisruptionBudget; None = no budget."""

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
    | PodEnded
    | PodRequeued
    | JobEnded
    | JobRequeued
    | Checkpointed
    | RunTimesLearned
    | DisruptionBudget
)
