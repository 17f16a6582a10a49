"""Read a submitted job document, and check everything that can be wrong with it by itself.

Pure: no database, no clock. `services.jobs` checks whether names in it exist and whether it fits a
cluster. All faults are reported together, each with the path of its field.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.engine.types import JobKind, PodSetSpec
from scheduling.job_fields.definition import (
    MAX_POD_SETS,
    ArrayDocument,
    JobDocument,
    PodSetDocument,
)
from scheduling.job_fields.faults import MAX_PODS, Faults
from scheduling.job_fields.nouns import check_values, columns_of, made_of, pod_set_of
from scheduling.job_fields.parts import fields_of, limits_of
from scheduling.kube.translate.gpu_parts import is_part
from scheduling.kube.translate.quantities import HUGE_PAGES
from scheduling.services.jobs.pod_set_spec import amount, check_pod_set
from tenants.errors import FieldError, Path

DEFAULT_POD_SET = "worker"
MAX_ARRAY_BYTES = 64_000_000
# Also used where counts are changed later.
MINIMUM_OF_GANGS = "Pods that start one by one have no minimum number. Leave this out, or set gang."
TOO_MANY_PODS = f"A job has at most {MAX_PODS} pods."
# Fields of a pod set; beside `pod_sets`, they apply to all pod sets together.
GROUP_LEVELS = ("required_level", "preferred_level")
# Other names of fields: the count in a job without `pod_sets`, and a single GPU type.
REPLICAS, GPU_TYPE = "replicas", "gpu_type"
# A job of one pod set may be written without `pod_sets`; the job then has these fields.
SHORT_FORM = fields_of(PodSetDocument).keys() - {"name"} | {REPLICAS, GPU_TYPE}


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A valid job document, and its pod sets as the engine knows them."""

    job: JobDocument
    pod_sets: tuple[PodSetSpec, ...]
    short_form: bool = False

    def path(self, pod_set: int, field: str) -> Path:
        """Return the place of a pod set's field in the document."""
        return (field,) if self.short_form else ("pod_sets", pod_set, field)

    @property
    def gpu_milli(self) -> int:
        """GPU-milli of all pods (a share given as memory counts as a whole GPU)."""
        return sum(s.count * s.milli_per_pod for s in self.pod_sets)


def job_spec(document: Mapping[str, Any]) -> JobSpec:
    """Read a job document whose values have the right types. Raises Invalid naming each fault."""
    faults = Faults()
    given = without_nulls(document)
    sets = _pod_set_documents(given, faults)
    in_sets = "pod_sets" in given
    # In the short form, the levels belong to the only pod set, which is all of the job.
    of_job = {n: v for n, v in given.items() if in_sets or n not in GROUP_LEVELS}
    check_values(JobDocument, {"name": "", "tenant": "", **of_job}, (), faults)
    _check_array(given, sets, faults)
    gang = given.get("gang", True)
    for index, item in enumerate(sets):
        at: Path = ("pod_sets", index) if in_sets else ()
        found = Faults()
        check_pod_set(item, at, found)
        faults.found += map(_as_replicas, found.found) if REPLICAS in given else found.found
        faults.unless(gang or "min_count" not in item, (*at, "min_count"), MINIMUM_OF_GANGS)
    _check_demand(sets, in_sets, faults)
    names = [item["name"] for item in sets]
    for index, name in enumerate(names):
        faults.unless(
            name not in names[:index],
            ("pod_sets", index, "name"),
            f"Another pod set of this job has the name {name!r}. Choose another name.",
        )
    faults.unless(
        sum(amount(item, "count", 1) for item in sets) <= MAX_PODS,
        ("pod_sets",) if in_sets else (REPLICAS,),
        TOO_MANY_PODS,
    )
    faults.raise_if_any()
    read = [made_of(PodSetDocument, _with_gpu_types(item)) for item in sets]
    restarts = default_restarts(given.get("kind", JobKind.TRAINING), gang)
    job = made_of(JobDocument, {"max_restarts": restarts, **of_job, "pod_sets": read})
    return JobSpec(job, tuple(pod_set_of(columns_of(one)) for one in read), not in_sets)


def default_restarts(kind: str, gang: bool) -> int:
    """Return the default of `max_restarts`: one crash must not end a service."""
    _, most = limits_of(JobDocument, "max_restarts")
    return most if kind == JobKind.INFERENCE and not gang else 0


def default_name(index: int) -> str:
    """Return the default name of a pod set."""
    return f"set-{index}" if index else DEFAULT_POD_SET


def _check_demand(sets: Sequence[Mapping[str, Any]], in_sets: bool, faults: Faults) -> None:
    """Check that each pod asks for something, and a job without GPUs for nothing of GPUs."""
    has_gpus = any(amount(item, "gpus", 0) for item in sets)
    for index, item in enumerate(sets):
        at: Path = ("pod_sets", index) if in_sets else ()
        faults.unless(
            any(amount(item, name, 0) for name in ("gpus", "cpu_milli", "memory_mib"))
            or any(item.get("extended", {}).values()),
            (*at, "gpus"),
            "The pod asks for nothing. Give gpus, or cpu_milli and memory_mib.",
        )
        bare = not any(amount(item, name, 0) for name in ("cpu_milli", "memory_mib"))
        for name in item.get("extended", {}) if bare else ():
            text = (
                "Kubernetes gives huge pages only to pods with cpu_milli or memory_mib. Give one "
                "of them."
            )
            faults.unless(not name.startswith(HUGE_PAGES), (*at, "extended", name), text)
        if not amount(item, "gpus", 0) and amount(item, "nics", 0):
            text = (
                "NICs come with GPUs, and the pod asks for no GPU. Give gpus, e.g. 8, or leave "
                "this out."
            )
            faults.add((*at, "nics"), text)
        if not has_gpus:
            _check_without_gpus(item, at, faults)


def _check_without_gpus(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    """Check that pods without GPUs ask for nothing that only nodes with GPUs have."""
    parts = [("extended", name) for name in item.get("extended", {}) if is_part(name)]
    given = [(name,) for name in ("gpu_type", "gpu_types") if item.get(name)]
    for field in (*given, *parts):
        text = "The job asks for no GPU. Give gpus, e.g. 8, or leave this out."
        faults.add((*at, *field), text)


def _check_array(
    given: Mapping[str, Any], sets: Sequence[Mapping[str, Any]], faults: Faults
) -> None:
    """Check an array of such jobs, if the document has one."""
    if "array" not in given:
        return
    check_values(ArrayDocument, given["array"], ("array",), faults)
    count: int = given["array"]["count"]
    longest = 63 - len(f"-{count - 1}")
    faults.unless(
        len(given.get("name", "")) <= longest,
        ("name",),
        f"Each job of the array gets its index as an ending; use at most {longest} characters.",
    )
    pods = sum(amount(item, "count", 1) for item in sets)
    faults.unless(
        pods * count <= MAX_PODS,
        ("array", "count"),
        f"{count} jobs of {pods} pods are more than {MAX_PODS} pods. Submit several arrays.",
    )
    stored = len(json.dumps(given, default=str)) * count
    faults.unless(
        stored <= MAX_ARRAY_BYTES,
        ("array", "count"),
        f"{count} copies of this document are {stored // 10**6} MB; {MAX_ARRAY_BYTES // 10**6} MB "
        "are allowed. Shorten env, annotations or command, or submit several arrays.",
    )


def _pod_set_documents(given: Mapping[str, Any], faults: Faults) -> list[dict[str, Any]]:
    """Return the pod sets as documents without nulls, in whichever form the job is written."""
    short = sorted(SHORT_FORM & given.keys())
    if "pod_sets" in given:
        for name in short:
            if name not in GROUP_LEVELS:
                faults.add((name,), "Give this in each of `pod_sets` instead.")
        count = len(given["pod_sets"])
        faults.unless(
            1 <= count <= MAX_POD_SETS, ("pod_sets",), f"Give 1 to {MAX_POD_SETS} pod sets."
        )
        items = given["pod_sets"][:MAX_POD_SETS]
        return [{"name": default_name(i), **item} for i, item in enumerate(items)]
    item = {name: given[name] for name in short}
    if REPLICAS in item:
        faults.unless("count" not in item, ("count",), "Give `replicas` or `count`, not both.")
        item["count"] = item.pop(REPLICAS)
    return [{"name": DEFAULT_POD_SET, **item}]


def _as_replicas(fault: FieldError) -> FieldError:
    """Return a fault of the count under the name that the document uses."""
    return FieldError((REPLICAS,), fault.detail) if fault.path == ("count",) else fault


def _with_gpu_types(item: Mapping[str, Any]) -> dict[str, Any]:
    return {**item, "gpu_types": [item[GPU_TYPE]]} if GPU_TYPE in item else dict(item)


def without_nulls(value: Any) -> Any:
    """Return the value without nulls: null means “not given”, as in every API."""
    if isinstance(value, Mapping):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value
