"""The job document that a stored job stands for: the inverse of `services.job_spec` and of the rows
that `services.orders` makes. Pure: it reads rows and asks nobody.
"""

from typing import Any

from scheduling.engine.types import Toleration
from scheduling.models import Job, PodSet, unreadable_request
from scheduling.queries.secret_env import shown_env
from scheduling.services.jobs.orders import ARRAY_COUNT, ARRAY_INDEX, Order, pod_set_row, rows_of
from scheduling.services.jobs.pod_set_spec import GROUP_LEVELS, pod_set, template
from scheduling.services.jobs.spec import (
    DEFAULT_POD_SET,
    JobSpec,
    default_name,
    default_restarts,
    job_spec,
)
from tenants.errors import Conflict

# Columns that the document has under the same name, but for what differs in `COLUMNS`.
JOB_FIELDS = (
    *("kind", "priority", "gang", "preemptible", "preempts", "uses_spares", "declared_s"),
    *("run_limit_s", "checkpoint_notice_s", "not_before", "held", "after", "after_ok"),
    *("strategy", "labels"),
)
COLUMNS = {"not_before": "start_not_before"}
POD_SET_FIELDS = (
    *("count", "min_count", "gpus", "gpu_milli", "gpu_memory_mib", "cpu_milli", "memory_mib"),
    *(
        "nics",
        "node_selector",
        "node_affinity",
        *GROUP_LEVELS,
        "slice_size",
        "balance_level",
        "max_per_node",
    ),
    *("max_per_leaf", "extended", "image", "command", "env", "env_from_secrets", "annotations"),
    *("service_account", "image_pull_secrets", "shm_mib"),
)


def document_of(job: Job) -> dict[str, Any]:
    """What submits the same job again, without all that is assumed where nothing is said.

    It is as the job is now, changed or held. A job of an array is one job, and its pods keep their
    index. Raises Conflict for a job that Kant took up from a plain pod, and for one of which a
    column cannot be read.
    """
    rows = list(job.pod_sets.all())
    if wrong := unreadable_request(job, rows):
        raise Conflict(f"Of job {job.name} in the database {wrong}. An operator has to mend it.")
    if job.pod_gang:
        raise Conflict(
            f"Job {job.name} stands for the pods of gang {job.pod_namespace}/{job.pod_gang}, which "
            "somebody else made. Make the pods again."
        )
    if job.pod_name:
        raise Conflict(
            f"Job {job.name} stands for pod {job.pod_namespace}/{job.pod_name}, which somebody "
            "else made. Make the pod again."
        )
    document: dict[str, Any] = {
        "name": job.name,
        "tenant": job.tenant.name,
        "cluster": job.cluster.name,
    }
    bare, _ = rows_of(None, Order(_bare_spec(job), job.tenant, job.cluster), job.submitted_at)
    document |= _differing(job, bare, JOB_FIELDS)
    if job.max_restarts != default_restarts(job.kind, job.gang):
        document["max_restarts"] = job.max_restarts
    levels = _differing(job, bare, GROUP_LEVELS)
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


def document_of_array(first: Job, count: int) -> dict[str, Any]:
    """What submits the same array of `count` jobs again, all of them as the first one is now."""
    document = document_of(first)
    document["name"] = document["name"].removesuffix(f"-{first.array_index}")
    for item in document.get("pod_sets", [document]):
        env = item.pop("env", {})
        if own := {n: v for n, v in env.items() if n not in (ARRAY_COUNT, ARRAY_INDEX)}:
            item["env"] = own
    return {**document, "array": {"count": count}}


def _bare_spec(job: Job) -> JobSpec:
    """The job of which nothing is said but what has to be."""
    return job_spec({"name": job.name, "tenant": job.tenant.name, "gpus": 1})


def _pod_set_document(row: PodSet) -> dict[str, Any]:
    """A pod set without its name."""
    bare = pod_set_row(row.job, row.index, pod_set({"name": row.name}), template({}))
    document: dict[str, Any] = {}
    if len(row.gpu_models) == 1:
        document["gpu_type"] = row.gpu_models[0]
    elif row.gpu_models:
        document["gpu_types"] = row.gpu_models
    document |= _differing(row, bare, POD_SET_FIELDS)
    if "env" in document:
        document["env"] = shown_env(row.job, document["env"])
    if row.tolerations:
        none = Toleration()
        document["tolerations"] = [
            {name: value for name, value in one.items() if value != getattr(none, name)}
            for one in row.tolerations
        ]
    if row.volumes:
        document["volumes"] = [_volume(one) for one in row.volumes]
    return document


def _short(item: dict[str, Any]) -> dict[str, Any]:
    """A pod set as it stands in a job that has no other."""
    return {"replicas" if name == "count" else name: value for name, value in item.items()}


def _volume(row: dict[str, Any]) -> dict[str, Any]:
    """Only a claim can be written to, and can where nothing is said."""
    assumed = "persistent_volume_claim" not in row
    said = row["read_only"] != assumed
    return {name: value for name, value in row.items() if name != "read_only" or said}


def _differing(row: Any, bare: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields in which a row differs from one of which nothing is said."""
    columns = {name: COLUMNS.get(name, name) for name in names}
    return {
        name: getattr(row, column)
        for name, column in columns.items()
        if getattr(row, column) != getattr(bare, column)
    }
