"""The steps of the live loop: a job along the transition table, a pod towards its end."""

from collections.abc import Iterable

from scheduling.engine.decisions import Preempted
from scheduling.engine.deltas import PodEnded
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.states import after
from scheduling.models.jobs import PlacementState as P
from scheduling.session.memory.live import (
    OVER,
    HeldFrom,
    LiveJob,
    LivePod,
    Outbox,
    PodStep,
    Transition,
)

Evidence = tuple[tuple[str, int | float | str], ...]
ORDER = (P.INTENDED, P.BOUND, P.RUNNING, P.SUCCEEDED, P.FAILED, P.RELEASED)


def step(
    out: Outbox,
    job: LiveJob,
    kind: Kind,
    reason: str = "",
    message: str = "",
    evidence: Evidence = (),
    /,
    **columns: object,
) -> None:
    """Record what happened to a job, with the columns that change besides its state."""
    to, more = after(job.state, kind), tuple(columns.items())
    out.writes.transitions.append(
        Transition(job.id, kind, job.state, to, job.version, reason, message, more, evidence)
    )
    job.state, job.version = to, job.version + 1


def advance(out: Outbox, job: LiveJob, pod: LivePod, to: P, message: str = "") -> None:
    """Move a pod forward; a late or repeated report changes nothing.

    If a pod is over while its job continues, the engine is told: its end, or what was decided when
    it was made to leave. A pod that left is placed again, so the job must not count it. Its reason
    for leaving stays in its row, as the next scheduler needs it.
    """
    if to == P.SUCCEEDED and pod.leaving is not None:
        to = P.RELEASED  # it was told to stop, and did
    if pod.state in OVER or ORDER.index(to) <= ORDER.index(pod.state):
        return
    if pod.state == P.INTENDED and to != P.RELEASED:
        pod.bound_at = out.at
        if not job.request.gang:
            out.writes.held.append(HeldFrom(pod, out.at))
        elif job.bound_at is not None:
            # Its reply may be older than those that made the gang whole.
            out.writes.held.append(HeldFrom(pod, max(out.at, job.bound_at)))
    out.writes.steps.append(PodStep(pod, pod.state, to, message or pod.why, out.at))
    job.tally[pod.state] -= 1
    job.tally[to] += 1
    pod.state = to
    if to in OVER and job.leaving is None:
        out.deltas.append(pod.leaving or PodEnded(job.id, *pod.key))
        if pod.leaving is not None:
            job.replace_later(pod)


def release(out: Outbox, job: LiveJob, pod: LivePod) -> None:
    """Note that the pod holds nothing any more, without an end of its own."""
    pod.in_flight = False
    advance(out, job, pod, P.RELEASED)


def which(pods: Iterable[LivePod]) -> Evidence:
    """Return the names of the pods that an event is about."""
    return (("which", ",".join(pod.name for pod in pods)),)


def record_of(decision: Preempted) -> Evidence:
    """Return a preemption's record: for whom, why, what it cost, and what others would have cost.

    Costs are those of this job, of all victims together, and of each other choice of victims,
    cheapest first.
    """
    record: dict[str, int | float | str] = {
        "by": decision.by,
        "kind": decision.kind.value,
        "pods": len(decision.pods),
        "cost_gpu_s": round(decision.cost_gpu_s, 1),
        "total_gpu_s": round(decision.total_gpu_s, 1),
        "alternatives": "none: by GPU count nobody else would have made room",
    }
    if decision.examined:
        record["alternatives"] = f"none: {decision.examined} others tried did not make room"
    if decision.alternatives:
        record["alternative_gpu_s"] = round(decision.alternatives[0].cost_gpu_s, 1)
        record["alternatives"] = "; ".join(
            f"{a.choice}: {a.cost_gpu_s - decision.total_gpu_s:+.1f} GPU-s, {a.jobs} jobs"
            for a in decision.alternatives
        )
    return tuple(record.items())
