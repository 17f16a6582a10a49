"""What every reader yields, and how it becomes a job of the engine."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from scheduling.engine.states import JobState
from scheduling.engine.types import DEFAULT_QUEUE, MILLI, JobKind, JobRequest, PodSetSpec
from scheduling.simulator.model import Arrival
from scheduling.simulator.traces.table import MOST_HOURS, BadRows, Row, TraceFormatError, each

TENANTS = 15  # as many as the generated workload has


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A recorded job. Times in seconds; `gpus` may be a fraction below one.

    - `pods`: pods of `gpus / pods` GPUs each; None = one pod up to a node, whole nodes beyond.
    - `gpu_models`: acceptable models; () = any; None = not said: the model the fleet has most of.
    - `cpu_milli`, `memory_mib`: per pod.
    - `after`: ids of jobs that it waits for.
    - `user`: who submitted it; "" = not said. `queue`: a queue of its tenant.
    - `cluster`, `cluster_selector`, `cluster_labels`: as in `Arrival`.
    """

    id: str
    submitted_at: float
    duration_s: float
    gpus: float
    pods: int | None = None
    tenant: str = ""
    gpu_models: tuple[str, ...] | None = None
    cpu_milli: int = 0
    memory_mib: int = 0
    declared_s: float | None = None
    priority: int = 0
    kind: JobKind = JobKind.TRAINING
    ends: JobState = JobState.SUCCEEDED
    after: tuple[str, ...] = ()
    user: str = ""
    queue: str = DEFAULT_QUEUE
    cluster: str = ""
    cluster_selector: Mapping[str, str] = field(default_factory=dict)
    cluster_labels: Mapping[str, str] = field(default_factory=dict)


def jobs_in(
    rows: Iterable[Row],
    read: Callable[[Row], TraceJob | None],
    bad: BadRows,
    *,
    id_column: str,
    submitted_column: str,
    after_column: str = "",
) -> Iterator[TraceJob]:
    """Yield the jobs of a trace.

    A row is wrong if its id occurs twice, if it waits for itself, or if it is submitted more than
    MOST_HOURS from the first.
    """
    seen: set[str] = set()
    first: float | None = None

    def checked(row: Row) -> TraceJob | None:
        nonlocal first
        job = read(row)
        if job is None:
            return None
        if job.id in seen:
            raise TraceFormatError(f"line {row.line}, column {id_column}: {job.id!r} appears twice")
        if job.id in job.after:
            raise row.wrong(after_column, "other jobs: a job cannot wait for itself")
        first = job.submitted_at if first is None else first
        if abs(job.submitted_at - first) > 3600 * MOST_HOURS:
            raise row.wrong(
                submitted_column, f"a time within {MOST_HOURS:,} hours of the first job's"
            )
        seen.add(job.id)
        return job

    return each(rows, checked, bad)


def pod_sets(job: TraceJob, gpu_models: tuple[str, ...], per_node: int) -> tuple[PodSetSpec, ...]:
    """Return the pods of a recorded job, which must ask for GPUs, on nodes of `per_node` GPUs.

    `gpu_models`: those of the fleet, the most frequent first. Raises ValueError if the GPUs do not
    divide by the pods.
    """
    accepted = gpu_models[:1] if job.gpu_models is None else job.gpu_models or gpu_models

    def made(name: str, count: int, gpus: int, milli: int = MILLI) -> PodSetSpec:
        return PodSetSpec(
            name,
            count,
            gpus,
            accepted,
            gpu_milli=milli,
            cpu_milli=job.cpu_milli,
            memory_mib=job.memory_mib,
        )

    if job.gpus < 1:
        return (made("main", 1, 1, max(1, round(job.gpus * MILLI))),)
    gpus = round(job.gpus)
    if job.pods is not None:
        each, rest = divmod(gpus, job.pods)
        if rest:
            raise ValueError(f"job {job.id}: {gpus} GPUs do not divide by {job.pods} pods")
        return (made("main", job.pods, each),)
    if gpus <= per_node:
        return (made("main", 1, gpus),)
    whole, rest = divmod(gpus, per_node)
    sets = (made("main", whole, per_node),)
    return (*sets, made("rest", 1, rest)) if rest else sets


def dealt_to(number: int, tenants: int) -> str:
    """Return the tenant for job number `number`, which names none."""
    return f"tenant-{number % tenants + 1:02}"


def arrivals(
    jobs: Iterable[TraceJob],
    *,
    gpu_models: tuple[str, ...],
    per_node: int,
    tenants: int = TENANTS,
) -> Iterator[Arrival]:
    """Yield arrivals of jobs in order of submission, starting at 0.

    `gpu_models`: those of the fleet, the most frequent first, on nodes of `per_node` GPUs. Jobs
    without a tenant are dealt out in turn; jobs that ask for no GPU are left out. A predecessor
    that has not arrived before its successor counts as ended.
    """
    start: float | None = None
    for number, job in enumerate(j for j in jobs if j.gpus > 0):
        start = job.submitted_at if start is None else start
        request = JobRequest(
            id=job.id,
            tenant=job.tenant or dealt_to(number, tenants),
            submitted_at=job.submitted_at - start,
            pod_sets=pod_sets(job, gpu_models, per_node),
            priority=job.priority,
            kind=job.kind,
            declared_s=job.declared_s,
            after=job.after,
            user=job.user,
            queue=job.queue,
        )
        yield Arrival(
            request,
            job.duration_s,
            job.ends,
            cluster=job.cluster,
            cluster_selector=job.cluster_selector,
            cluster_labels=job.cluster_labels,
        )
