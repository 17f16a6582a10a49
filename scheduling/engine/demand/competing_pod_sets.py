"""Find gangs whose pod sets, or slices, fit one by one but never all together."""

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.demand.shapes import beyond_choices, choices, narrowed
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.placement.request import shares_leaves
from scheduling.engine.statement import Statement
from scheduling.engine.types import JobRequest, PodSetSpec
from scheduling.engine.verdict import Reason, Verdict, counted


def compete(job: JobRequest) -> bool:
    """Whether pod sets of the job, or slices of one set, may compete for the same nodes."""
    return job.gang and (len(job.pod_sets) > 1 or any(map(shares_leaves, job.pod_sets)))


def never_together(job: JobRequest, mended: ClusterState, strategy: str) -> Verdict | None:
    """Return why the pod sets of a gang cannot fit together, on any GPU models they accept.

    None if they can, or if that is not certain. `mended`: the cluster with all nodes empty, healthy
    and open.
    """
    if not compete(job):
        return None
    known = tuple(m for m in mended.gpu_models() if m)
    if beyond_choices(job, known):
        return None
    least = tuple(s.least for s in job.pod_sets)
    failed: PlacementFailure | None = None
    for models in choices(job, known):
        statement = Statement(mended)
        on = narrowed(job, models)
        found = place_job(statement, on, strategy=strategy, counts=least)
        statement.rollback()
        if not isinstance(found, PlacementFailure) or found.gave_up or found.misconfigured:
            return None
        if failed is None or failed.short is None:
            failed = found
    return None if failed is None else _told(job, failed)


def _told(job: JobRequest, failed: PlacementFailure) -> Verdict:
    asked = " and ".join(f"{s.least} × {_pod(s)}" for s in job.pod_sets)
    pods = sum(s.least for s in job.pod_sets)
    numbers: dict[str, int | float | str] = {"asked_pods": pods}
    if failed.short is None:
        fit = "not all of them together"
    elif failed.short[0] < 0:
        numbers["possible_pods"] = failed.short[1]
        fit = f"at most {failed.short[1]} of the {pods} pods"
    else:
        s, fits = job.pod_sets[failed.short[0]], failed.short[1]
        numbers |= {"pod_set": s.name, "possible_pods": pods - s.least + fits}
        fit = f"{counted(fits, 'pod', 'pods')} of {s.name!r} beside the others"
    where = f" in one {job.required_level}" if job.required_level else ""
    several = len(job.pod_sets) > 1
    what = "pod sets" if several else "pods"
    apart = ("submit the pod sets as jobs of their own",) if several else ()
    return Verdict(
        Reason.EXCEEDS_CAPACITY,
        f"The {what} must run together{where}: {asked}. Empty nodes hold {fit}.",
        numbers,
        ("ask for fewer or smaller pods", *apart),
    )


def _pod(s: PodSetSpec) -> str:
    if not s.gpus:
        return f"{s.name!r} without GPUs"
    size = f"{s.gpu_memory_mib} MiB of a GPU" if s.gpu_memory_mib else None
    return f"{s.name!r} of {size or counted(s.milli_per_pod / 1000, 'GPU', 'GPUs')}"
