"""Which jobs a job waits for: they exist, run on its cluster, and do not wait for it in turn."""

from collections.abc import Mapping, Sequence

from scheduling.engine.states import TERMINAL, JobState
from scheduling.models import Cluster, Job
from tenants.errors import FieldError, Invalid
from tenants.permissions import Access

CHUNK = 500  # ids in one IN list: within the variable limits of every database
SHOWN = 6  # jobs of a cycle that are named
# A job that ended so will never have succeeded.
UNSUCCESSFUL = TERMINAL - {JobState.SUCCEEDED}


def refuse_bad_dependencies(
    access: Access, cluster: Cluster, wanted: Mapping[str, Sequence[str]]
) -> None:
    """Raises Invalid for ids that no job of the cluster has, or whose job the user may not see.

    `wanted`: {"after": ids, "after_ok": ids}, either may be missing.
    """
    ids = list(dict.fromkeys(i for many in wanted.values() for i in many))
    known: dict[str, tuple[int, int, str]] = {}
    for start in range(0, len(ids), CHUNK):
        rows = Job.objects.filter(id__in=ids[start : start + CHUNK])
        for job_id, tenant, home, state in rows.values_list(
            "id", "tenant_id", "cluster_id", "state"
        ):
            if access.may_view(tenant):
                known[str(job_id)] = (tenant, home, state)
    faults = [
        FieldError((name, index), detail)
        for name, many in wanted.items()
        for index, job_id in enumerate(many)
        if (detail := _fault(cluster, name, job_id, known.get(job_id)))
    ]
    if faults:
        raise Invalid.fields(faults)


def _fault(cluster: Cluster, name: str, job_id: str, row: tuple[int, int, str] | None) -> str:
    if row is None:
        return f"There is no job {job_id} that you may see. GET /api/v1/jobs lists yours."
    _, home, state = row
    if home != cluster.pk:
        return f"Job {job_id} is not on cluster “{cluster.name}”. Jobs wait for jobs beside them."
    if name == "after_ok" and state in UNSUCCESSFUL:
        return f"Job {job_id} is {state} and will not succeed. Use `after`, or leave it out."
    return ""


def refuse_cycle(cluster_id: int, job_id: str, wanted: Mapping[str, Sequence[str]]) -> None:
    """Raises Invalid when the job would, by way of others, wait for itself.

    The caller holds the lock of the cluster's row: two changes that cross could close a cycle.
    """
    rows = Job.objects.filter(cluster=cluster_id).exclude(state__in=list(TERMINAL))
    waits_for = {
        str(i): (*after, *after_ok)
        for i, after, after_ok in rows.values_list("id", "after", "after_ok")
    }
    for name, many in wanted.items():
        for index, first in enumerate(many):
            way = _way(waits_for, first, job_id)
            if way:
                shown = way if len(way) <= SHOWN else [*way[:SHOWN], "…", job_id]
                chain = " waits for ".join(shown)
                detail = f"The job would wait for itself: {job_id} waits for {chain}."
                raise Invalid.fields([FieldError((name, index), detail)])


def _way(waits_for: Mapping[str, Sequence[str]], start: str, goal: str) -> list[str]:
    """The jobs from `start` to `goal`, both included; empty when none leads there."""
    came_from = {start: ""}
    todo = [start]
    while todo:
        here = todo.pop()
        if here == goal:
            way = [here]
            while came_from[way[-1]]:
                way.append(came_from[way[-1]])
            return way[::-1]
        for job_id in waits_for.get(here, ()):
            if job_id not in came_from:
                came_from[job_id] = here
                todo.append(job_id)
    return []
