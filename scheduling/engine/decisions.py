"""What a cycle returns. Deciding has already changed the engine's state; the shell acts on it."""

from dataclasses import dataclass
from typing import NamedTuple

from scheduling.engine.types import PodPlacement, PreemptionKind
from scheduling.engine.verdict import Verdict


class Started(NamedTuple):
    """Pods that got their place now. A gang comes whole, an elastic one with its least at least;
    more of that, and other jobs, may come in several parts.

    `borrowed`: (gpu model, milli) of this part that exceeds the tenant's own quota.
    """

    job_id: str
    placements: tuple[PodPlacement, ...]
    borrowed: tuple[tuple[str, int], ...] = ()


class Waiting(NamedTuple):
    """The reason of a waiting job, reported only when it changed."""

    job_id: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another choice of victims for a preemption: what it differs in ("other victims", "within
    one spine", "anywhere in the pool", "on A100"), and what it would have cost all its victims
    together. It costs less than the choice taken only where it is spread wider."""

    choice: str
    jobs: int
    cost_gpu_s: float


@dataclass(frozen=True, slots=True)
class Preempted:
    """Pods that have to go so that the job `by` can start, and what that costs.

    `pods`: (pod set, ordinal) to delete. `whole`: the job itself goes back to its queue; the
    shell reports `JobRequeued` when all its pods are gone. Otherwise the job goes on with the
    rest, and the shell reports `PodEnded` for each pod that is gone. The preemptor's places are
    booked already; it comes as `Started` when the last victim is reported gone. `cost_gpu_s`:
    GPU-seconds lost since the start or the last checkpoint, `total_gpu_s` by all victims of the
    preemption together. `alternatives`: other choices that would have made room as well, the
    cheapest first, of `examined` that were tried.
    """

    job_id: str
    pods: tuple[tuple[int, int], ...]
    whole: bool
    by: str
    kind: PreemptionKind
    cost_gpu_s: float
    total_gpu_s: float = 0.0
    alternatives: tuple[Alternative, ...] = ()
    examined: int = 0


class Moved(NamedTuple):
    """A pod that leaves its node so that fewer nodes are partly used. The shell deletes it and
    reports `PodEnded` when it is gone; its new place is booked and comes as `Started` then.

    `whole`: it is all of a job, which stops and goes on there as one that was preempted; the shell
    reports `JobRequeued` when the pod is gone. `cost_gpu_s`: GPU-seconds of work lost by it.
    """

    job_id: str
    pod_set: int
    ordinal: int
    source: str
    target: str
    whole: bool = False
    cost_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """Where and when a blocked head is expected to start, from declared run times.

    `start_at` None: what was reserved is given up, or no longer known. Reported when it changed.
    """

    job_id: str
    start_at: float | None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocked:
    """Since when a job is blocked at the head; None = no longer. A state that begins anew is told
    by `JobHistory`; else the job's waiting would begin anew too."""

    job_id: str
    since: float | None


@dataclass(frozen=True, slots=True)
class StandsAt:
    """Since when a job stands in the queue, as it goes by a learned run time; None = since its
    submission. A state that begins anew is told by `JobHistory`; else places would change."""

    job_id: str
    at: float | None


@dataclass(frozen=True, slots=True)
class RunLimit:
    """A running job nears its run-time limit (`exceeded` False, once) or has passed it."""

    job_id: str
    ends_at: float
    exceeded: bool


class CycleStats(NamedTuple):
    """What one cycle did, in counts.

    `walks` over the queue; equivalence classes `asked` in them, and those `remembered`, of which an
    earlier answer still stood; `attempts` to admit and place a job; preemption `plans` made;
    `starts` decided; remembered answers that were `checked`, and that were `wrong`.
    """

    walks: int = 0
    asked: int = 0
    remembered: int = 0
    attempts: int = 0
    plans: int = 0
    starts: int = 0
    checked: int = 0
    wrong: int = 0


class WrongAnswer(NamedTuple):
    """A remembered answer that is not the one found anew: an error of the engine. In words: what
    was asked, of whom, and both answers."""

    question: str
    subject: str
    remembered: str
    anew: str


class CycleResult(NamedTuple):
    """Everything one cycle decided, in decision order.

    `quota_reserved` / `quota_lost`: waiting jobs that newly passed, or no longer pass, static quota
    admission. `lost`: (job id, pod set, ordinal) of pods whose node or device is gone or bad.
    `stats`: what it took.
    `staying`: why elastic gangs that run get no more pods, where that changed.
    `next_at`: when something may be decided although nothing is reported; None = never.
    `wrong`: remembered answers that were checked and were not true, as far as they are told.
    """

    started: tuple[Started, ...] = ()
    quota_reserved: tuple[str, ...] = ()
    quota_lost: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    lost: tuple[tuple[str, int, int], ...] = ()
    stats: CycleStats = CycleStats()
    preempted: tuple[Preempted, ...] = ()
    moved: tuple[Moved, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    run_limits: tuple[RunLimit, ...] = ()
    staying: tuple[Waiting, ...] = ()
    next_at: float | None = None
    wrong: tuple[WrongAnswer, ...] = ()
    stand_at: tuple[StandsAt, ...] = ()
