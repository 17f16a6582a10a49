"""The job document of a stored job. Pure: it reads rows and asks nobody.

This is the inverse of `services.jobs.validation.job_spec` and of the rows that
`services.jobs.orders` makes.
"""

from collections.abc import Iterable
from typing import Any

from scheduling.job_fields.definition import ANY_CLUSTER, JobDocument, PodSetDocument
from scheduling.job_fields.nouns import document_of as differing
from scheduling.models import Job, PodSet, unreadable_request
from scheduling.queries.secret_viewers import shown_pod_set
from scheduling.services.jobs.orders import ARRAY_COUNT, ARRAY_INDEX
from scheduling.services.jobs.validation import (
    DEFAULT_POD_SET,
    GPU_TYPE,
    GROUP_LEVELS,
    REPLICAS,
    default_name,
    default_restarts,
)
from tenants.errors import Conflict


def document_of(job: Job, given: Iterable[str] = ()) -> dict[str, Any]:
    """Return the document that submits the same job again, without defaults.

    No default is assumed for what is `given` by its queue (`queues.entry.given_to`). The document
    shows the job as it is now, changed or held. A job of an array is one job, and its pods keep
    their index. Raises Conflict for a job of a plain pod, and for one with an unreadable column.
    """
    rows = list(job.pod_sets.all())
    if wrong := unreadable_request(job, rows):
        raise Conflict(
            f"The row of job {job.name} in the database is wrong: {wrong}. An operator must fix it."
        )
    if job.pod_gang:
        raise Conflict(
            f"Job {job.name} stands for the pods of gang {job.pod_namespace}/{job.pod_gang}, "
            "which Kant did not create. Create the pods again."
        )
    if job.pod_name:
        raise Conflict(
            f"Job {job.name} stands for pod {job.pod_namespace}/{job.pod_name}, which Kant did "
            "not create. Create the pod again."
        )
    document: dict[str, Any] = {
        "name": job.name,
        "tenant": job.tenant.name,
        "cluster": ANY_CLUSTER if job.any_cluster else job.cluster.name,
        **differing(JobDocument, vars(job), ("name", "max_restarts")),
        **{name: value for name in given if (value := getattr(job, name)) is not None},
    }
    levels = {name: document.pop(name) for name in GROUP_LEVELS if name in document}
    if job.max_restarts != default_restarts(job.kind, job.gang):
        document["max_restarts"] = job.max_restarts
    sets = [_pod_set_document(row) for row in rows]
    if len(rows) == 1 and rows[0].name == DEFAULT_POD_SET and not levels:
        return {**document, **_short(sets[0])}
    names = [
        {} if row.name == default_name(i) else {"name": row.name} for i, row in enumerate(rows)
    ]
    return {
        **document,
        **levels,
        "pod_sets": [{**name, **item} for name, item in zip(names, sets, strict=True)],
    }


def document_of_array(first: Job, count: int, given: Iterable[str] = ()) -> dict[str, Any]:
    """Return the document of an array: `count` jobs, all as the first one is now."""
    document = document_of(first, given)
    document["name"] = document["name"].removesuffix(f"-{first.array_index}")
    for item in document.get("pod_sets", [document]):
        env = item.pop("env", {})
        if own := {n: v for n, v in env.items() if n not in (ARRAY_COUNT, ARRAY_INDEX)}:
            item["env"] = own
    return {**document, "array": {"count": count}}


def _pod_set_document(row: PodSet) -> dict[str, Any]:
    """Return a pod set without its name."""
    document = differing(PodSetDocument, vars(row), ("name",))
    if len(row.gpu_models) == 1:
        document[GPU_TYPE] = document.pop("gpu_types")[0]
    return shown_pod_set(row.job, document)


def _short(item: dict[str, Any]) -> dict[str, Any]:
    """Return a pod set as fields of a job that has no other."""
    return {REPLICAS if name == "count" else name: value for name, value in item.items()}
