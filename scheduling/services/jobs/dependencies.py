"""Check which jobs a job waits for.

They must exist, be on its cluster, and not wait for it in turn. The id of an array stands for all
its jobs.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Count, Q

from scheduling.engine.states import OPEN, TERMINAL, JobState
from scheduling.models import Cluster, Job
from tenants.database.chunks import chunks
from tenants.errors import FieldError, Invalid
from tenants.permissions import Access

SEVERAL = 0  # instead of a cluster: the array's jobs are on several
SHOWN = 6  # jobs of a cycle that are named
# A job that ended like this will never succeed.
UNSUCCESSFUL = TERMINAL - {JobState.SUCCEEDED}


@dataclass(frozen=True, slots=True)
class AwaitedJobs:
    """What a job waits for.

    - `what`: “Job 1f…” or “Array 2c…”.
    - `failed`: how it, or a job of it, ended without success; "" = it did not.
    - `lost`: how many of its jobs did.
    - `floats`: it may move to another cluster while it waits.
    """

    what: str
    cluster: int
    failed: str
    lost: int = 0
    floats: bool = False


Known = Mapping[str, AwaitedJobs]
Wanted = Mapping[str, Sequence[str]]  # {"after": ids, "after_ok": ids}; both optional


def awaited_by(access: Access, wanted: Iterable[Wanted]) -> Known:
    """Return, by id, the jobs and arrays that any of these wait for and that the user may see."""
    ids = list(dict.fromkeys(i for each in wanted for many in each.values() for i in many))
    known = _jobs(access, ids)
    return known | _arrays(access, [i for i in ids if i not in known])


def refuse_bad_dependencies(known: Known, cluster: Cluster, wanted: Wanted) -> bool:
    """Raise Invalid for ids without a job or array on the cluster, or that the user may not see.

    Returns whether any of them may move to another cluster while it waits; if so, the caller must
    ask again while it holds the leases of this cluster (`lease.hold_all`). `known`: at least what
    is named in `wanted` (`awaited_by`).
    """
    faults = [
        FieldError((name, index), detail)
        for name, many in wanted.items()
        for index, job_id in enumerate(many)
        if (detail := _fault(cluster, name, job_id, known.get(job_id)))
    ]
    if faults:
        raise Invalid.fields(faults)
    return any(known[job_id].floats for many in wanted.values() for job_id in many)


def _jobs(access: Access, ids: Sequence[str]) -> dict[str, AwaitedJobs]:
    known: dict[str, AwaitedJobs] = {}
    for chunk in chunks(ids):
        rows = Job.objects.filter(id__in=chunk)
        for job_id, tenant, home, state, floats in rows.values_list(
            "id", "tenant_id", "cluster_id", "state", "any_cluster"
        ):
            if access.may_view(tenant):
                failed = state if state in UNSUCCESSFUL else ""
                known[str(job_id)] = AwaitedJobs(f"Job {job_id}", home, failed, floats=floats)
    return known


def _arrays(access: Access, ids: Sequence[str]) -> dict[str, AwaitedJobs]:
    known: dict[str, AwaitedJobs] = {}
    for chunk in chunks(ids):
        rows = Job.objects.filter(array_id__in=chunk).order_by()
        lost = Count("id", filter=Q(state__in=list(UNSUCCESSFUL)))
        names = ("array_id", "tenant_id", "cluster_id", "any_cluster")
        for array_id, tenant, home, floats, failed in rows.values_list(*names).annotate(lost=lost):
            if access.may_view(tenant):
                before = known.get(str(array_id))
                lost = failed + (before.lost if before else 0)
                state = f"without success in {lost} of its jobs" if lost else ""
                spread = before is not None and before.cluster != home
                at = SEVERAL if spread else home
                known[str(array_id)] = AwaitedJobs(f"Array {array_id}", at, state, lost, floats)
    return known


def _fault(cluster: Cluster, name: str, job_id: str, known: AwaitedJobs | None) -> str:
    if known is None:
        return (
            f"There is no job or array {job_id} that you may see. GET /api/v1/jobs lists your jobs."
        )
    if known.cluster == SEVERAL:
        return (
            f"The jobs of {known.what} are on several clusters, and a job can only wait for jobs "
            "on its own cluster. Name some of its jobs, or submit such arrays with a cluster."
        )
    if known.cluster != cluster.pk:
        return (
            f"{known.what} is not on cluster “{cluster.name}”. A job can only wait for jobs on "
            "its own cluster."
        )
    if name == "after_ok" and known.failed:
        return f"{known.what} is {known.failed} and will not succeed. Use `after`, or leave it out."
    return ""


def refuse_cycle(
    cluster_id: int, goals: Collection[str], wanted: Mapping[str, Sequence[str]]
) -> None:
    """Raise Invalid if the jobs `goals` would, through others, wait for themselves.

    `wanted` is what they are to wait for. The caller holds the lock of the cluster's row, as two
    changes at once could close a cycle.
    """
    rows = Job.objects.filter(cluster=cluster_id, state__in=list(OPEN))
    waits_for: dict[str, tuple[str, ...]] = {}
    members: dict[str, list[str]] = defaultdict(list)
    for job_id, array, after, after_ok in rows.values_list("id", "array_id", "after", "after_ok"):
        waits_for[str(job_id)] = (*after, *after_ok)
        if array is not None:
            members[str(array)].append(str(job_id))
    waits_for |= {array: tuple(jobs) for array, jobs in members.items()}
    ends = frozenset(goals)
    for name, many in wanted.items():
        for index, first in enumerate(many):
            way = _way(waits_for, first, ends)
            if way:
                shown = way if len(way) <= SHOWN else [*way[:SHOWN], "…", way[-1]]
                chain = " waits for ".join(shown)
                detail = f"The job would wait for itself: {way[-1]} waits for {chain}."
                raise Invalid.fields([FieldError((name, index), detail)])


def _way(waits_for: Mapping[str, Sequence[str]], start: str, goals: Collection[str]) -> list[str]:
    """Return the way from `start` to the first of `goals`, both included; [] = there is none."""
    came_from = {start: ""}
    todo = [start]
    while todo:
        here = todo.pop()
        if here in goals:
            way = [here]
            while came_from[way[-1]]:
                way.append(came_from[way[-1]])
            return way[::-1]
        for job_id in waits_for.get(here, ()):
            if job_id not in came_from:
                came_from[job_id] = here
                todo.append(job_id)
    return []
