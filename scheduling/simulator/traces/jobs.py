"""What every reader yields, and how it becomes a job of the engine."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scheduling.engine.states import JobState
from scheduling.engine.types import MILLI, JobKind, JobRequest, PodSet
from scheduling.simulator.model import Arrival


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A recorded job. Times in seconds; `gpus` may be a fraction below one.

    `pods` of `gpus / pods` GPUs each; None = one pod up to a node, whole nodes beyond. `after`:
    ids of jobs it waits for.
    """

    id: str
    submitted_at: float
    duration_s: float
    gpus: float
    pods: int | None = None
    tenant: str = ""
    gpu_model: str = ""
    declared_s: float | None = None
    priority: int = 0
    kind: JobKind = JobKind.TRAINING
    ends: JobState = JobState.SUCCEEDED
    after: tuple[str, ...] = ()


def pod_sets(job: TraceJob, gpu_model: str, per_node: int) -> tuple[PodSet, ...]:
    """The pods of a recorded job on nodes of `per_node` GPUs.

    Jobs without GPUs have none: the caller leaves them out.
    """
    models = (job.gpu_model or gpu_model,)
    if job.gpus < 1:
        return (PodSet("main", 1, 1, models, gpu_milli=max(1, round(job.gpus * MILLI))),)
    gpus = round(job.gpus)
    if job.pods is not None:
        each, rest = divmod(gpus, job.pods)
        if rest:
            raise ValueError(f"job {job.id}: {gpus} GPUs do not divide by {job.pods} pods")
        return (PodSet("main", job.pods, each, models),)
    if gpus <= per_node:
        return (PodSet("main", 1, gpus, models),)
    whole, rest = divmod(gpus, per_node)
    sets = (PodSet("main", whole, per_node, models),)
    return (*sets, PodSet("rest", 1, rest, models)) if rest else sets


def arrivals(
    jobs: Iterable[TraceJob], *, gpu_model: str, per_node: int, tenants: int = 15
) -> Iterator[Arrival]:
    """Arrivals sorted by time, starting at 0; jobs without a tenant are dealt out in turn."""
    ordered = sorted(jobs, key=lambda j: j.submitted_at)
    start = ordered[0].submitted_at if ordered else 0.0
    known = {j.id for j in ordered if j.gpus > 0}
    for number, job in enumerate(j for j in ordered if j.gpus > 0):
        request = JobRequest(
            id=job.id,
            tenant=job.tenant or f"tenant-{number % tenants + 1:02}",
            submitted_at=job.submitted_at - start,
            pod_sets=pod_sets(job, gpu_model, per_node),
            priority=job.priority,
            kind=job.kind,
            declared_s=job.declared_s,
            # A predecessor that is not part of the trace has ended before it begins.
            after=tuple(a for a in job.after if a in known),
        )
        yield Arrival(request, job.duration_s, job.ends)
