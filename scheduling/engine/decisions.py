"""What a cycle returns. The engine's state already reflects it; the shell carries it out."""

from dataclasses import dataclass
from typing import NamedTuple

from scheduling.engine.types import PodPlacement, PreemptionKind
from scheduling.engine.verdict import Verdict


class Started(NamedTuple):
    """Pods that got their places in this cycle.

    A gang starts whole, an elastic gang with at least its minimum. Further pods of an elastic gang,
    and the pods of other jobs, may start in several parts. `borrowed`: (GPU model, GPU-milli) by
    which this part exceeds the tenant's own quota.
    """

    job_id: str
    placements: tuple[PodPlacement, ...]
    borrowed: tuple[tuple[str, int], ...] = ()


class Waiting(NamedTuple):
    """Why a job waits; reported only when it changes."""

    job_id: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another choice of victims for a preemption, and what it would have cost all of them.

    `choice` says how it differs ("other victims", "within one spine", "anywhere in the pool", "on
    A100"). It costs less than the choice taken only if it spreads the preemptor wider.
    """

    choice: str
    jobs: int
    cost_gpu_s: float


@dataclass(frozen=True, slots=True)
class Preempted:
    """Pods that must go so that the job `by` can start, and what that costs.

    `pods`: (pod set, ordinal) to delete. `whole`: the job itself goes back to its queue; the
    shell reports `JobRequeued` when all its pods are gone. Otherwise the job goes on with the
    rest, and the shell reports `PodEnded` for each pod that is gone. The preemptor's places are
    booked already; the engine reports it as `Started` once the last victim is gone.
    `cost_gpu_s`: GPU-seconds of work that this job loses, since its start or last checkpoint.
    `total_gpu_s`: the same for all victims of the preemption. `alternatives`: other choices that
    would have made room, cheapest first, out of `examined` tried.
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
    """A pod that leaves its node so that fewer nodes are partly used.

    The shell deletes the pod and reports `PodEnded` when it is gone. The new place is booked
    already; the engine reports it as `Started` then. `whole`: the pod is the whole job, which stops
    and resumes at `target` like a preempted job; the shell reports `JobRequeued` when the pod is
    gone. `cost_gpu_s`: GPU-seconds of work that the move loses.
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
    """Where and when a blocked head is expected to start, by declared or learned run times.

    `start_at` None: the reservation was given up, or its time is no longer known. Reported when it
    changes.
    """

    job_id: str
    start_at: float | None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocked:
    """Since when a job is blocked at the head; None = no longer.

    A new state must get it back through `JobHistory`; otherwise the job's time at the head would
    start again from zero.
    """

    job_id: str
    since: float | None


@dataclass(frozen=True, slots=True)
class StandsAt:
    """The time by which a job is ordered in the queue, if its learned run time changed it.

    None = its submission time. A new state must get it back through `JobHistory`; otherwise
    positions in the queue would change.
    """

    job_id: str
    at: float | None


@dataclass(frozen=True, slots=True)
class RunLimit:
    """A running job is near its run-time limit (`exceeded` False, reported once) or beyond it."""

    job_id: str
    ends_at: float
    exceeded: bool


class CycleStats(NamedTuple):
    """What one cycle did, in counts.

    `walks`: walks over the queue. `asked`: equivalence classes asked in them. `remembered`: classes
    whose earlier answer still held. `attempts`: attempts to admit and place a job. `plans`:
    preemptions planned. `starts`: starts decided. `checked`, `wrong`: remembered answers that were
    checked, and those that were wrong.
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
    """A remembered answer that differs from the recomputed one, which is a bug in the engine.

    All fields are text: the question, its subject and both answers.
    """

    question: str
    subject: str
    remembered: str
    anew: str


class CycleResult(NamedTuple):
    """Everything that one cycle decided, in the order of the decisions.

    `quota_reserved` / `quota_lost`: waiting jobs that newly pass, or no longer pass, static quota
    admission. `lost`: (job id, pod set, ordinal) of pods whose node or device is gone or faulty.
    `stats`: the work that the cycle did.
    `staying`: why running elastic gangs get no more pods, where that changed.
    `next_at`: when the passing of time alone may lead to a new decision; None = never.
    `wrong`: remembered answers that a check found wrong, the first few of them (`memo.MAX_TOLD`).
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
