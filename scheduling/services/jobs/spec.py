"""What a submitted job document means, and everything that can be wrong with it by itself.

Pure: no database, no clock. Whether names in it exist and whether it fits a cluster is asked by
`services.jobs`. All faults are reported together, each with the path of its field.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduling.engine.placement.strategies import STRATEGIES
from scheduling.engine.types import JobKind, PodSet
from scheduling.kube.translate.gpu_parts import is_part
from scheduling.services.common.faults import LIMITS, MAX_PODS, SLUG, SLUG_RULE, Faults
from scheduling.services.jobs.pod_set_spec import (
    GROUP_LEVELS,
    JOB_AMOUNTS,
    POD_SET_AMOUNTS,
    PodTemplate,
    amount,
    check_levels,
    check_pod_set,
    pod_set,
    refuse_own_names,
    template,
)
from scheduling.services.jobs.pod_settings_spec import SETTINGS
from tenants.errors import Path

MAX_POD_SETS = 32
DEFAULT_POD_SET = "worker"
MAX_ARRAY = 10_000
MAX_ARRAY_BYTES = 64_000_000
MAX_DEPENDENCIES = 1000
# What is said of counts also where they are changed later.
MINIMUM_OF_GANGS = "Pods that start one by one have no least number. Leave it out, or set gang."
TOO_MANY_PODS = f"A job has at most {MAX_PODS} pods."
# A job of one pod set may be written without `pod_sets`; these names then stand in the job.
SHORT_FORM = frozenset({*POD_SET_AMOUNTS, *GROUP_LEVELS, "replicas", "gpu_type", "gpu_types"}) | {
    *("node_selector", "node_affinity", "tolerations", "balance_level", "extended"),
    *("image", "command", "env", "annotations"),
    *SETTINGS,
}


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A valid job document. `cluster` "" = the only one there is.

    `after`, `after_ok`: ids of jobs. `array`: how many such jobs are meant, None = this one.
    """

    name: str
    tenant: str
    cluster: str
    kind: JobKind
    priority: int
    gang: bool
    preemptible: bool
    preempts: bool
    uses_spares: bool
    declared_s: int | None
    run_limit_s: int | None
    checkpoint_notice_s: int | None
    max_restarts: int
    start_not_before: datetime | None
    held: bool
    after: tuple[str, ...]
    after_ok: tuple[str, ...]
    strategy: str
    required_level: str
    preferred_level: str
    labels: Mapping[str, str]
    pod_sets: tuple[PodSet, ...]
    templates: tuple[PodTemplate, ...]
    array: int | None = None
    short_form: bool = False

    def path(self, pod_set: int, field: str) -> Path:
        """Where a field of a pod set stands in the document."""
        return (field,) if self.short_form else ("pod_sets", pod_set, field)

    @property
    def gpu_milli(self) -> int:
        """GPU-milli of all pods (a share given by memory counts as a whole GPU)."""
        return sum(s.count * s.milli_per_pod for s in self.pod_sets)


def job_spec(document: Mapping[str, Any]) -> JobSpec:
    """Read a job document whose values have the right types; raises Invalid naming each fault."""
    faults = Faults()
    # A null stands for “not given”, as in every API.
    given = {name: value for name, value in document.items() if value is not None}
    sets = _pod_set_documents(given, faults)
    for name in ("name", "tenant"):
        faults.unless(bool(SLUG.fullmatch(given.get(name, ""))), (name,), SLUG_RULE)
    check_wishes(given, faults)
    strategy = given.get("strategy", "")
    faults.unless(
        strategy in ("", *STRATEGIES), ("strategy",), f"Choose one of {', '.join(STRATEGIES)}."
    )
    kind = given.get("kind", JobKind.TRAINING)
    faults.unless(kind in list(JobKind), ("kind",), f"Choose one of {', '.join(JobKind)}.")
    labels = given.get("labels", {})
    faults.labels(labels, ("labels",))
    refuse_own_names(labels, ("labels",), faults)
    prefix = "pod_sets" in given
    if prefix:
        check_levels(given, GROUP_LEVELS, (), faults)
    array = _check_array(given, sets, faults)
    gang = given.get("gang", True)
    for index, item in enumerate(sets):
        at: Path = ("pod_sets", index) if prefix else ()
        check_pod_set(item, at, faults)
        faults.unless(
            gang or "min_count" not in item,
            (*at, "min_count"),
            MINIMUM_OF_GANGS,
        )
    _check_demand(sets, prefix, faults)
    names = [item["name"] for item in sets]
    for index, name in enumerate(names):
        faults.unless(
            name not in names[:index],
            ("pod_sets", index, "name"),
            f"Another pod set of this job is called {name!r}. Names differ within a job.",
        )
    faults.unless(
        sum(amount(item, "count", 1) for item in sets) <= MAX_PODS,
        ("pod_sets",) if prefix else ("replicas",),
        TOO_MANY_PODS,
    )
    faults.raise_if_any()
    return JobSpec(
        name=given["name"],
        tenant=given["tenant"],
        cluster=given.get("cluster", ""),
        kind=JobKind(kind),
        priority=given.get("priority", 0),
        gang=gang,
        preemptible=given.get("preemptible", True),
        preempts=given.get("preempts", True),
        uses_spares=given.get("uses_spares", False),
        declared_s=given.get("declared_s"),
        run_limit_s=given.get("run_limit_s"),
        checkpoint_notice_s=given.get("checkpoint_notice_s"),
        max_restarts=given.get("max_restarts", default_restarts(kind, gang)),
        start_not_before=given.get("not_before"),
        held=given.get("held", False),
        after=tuple(map(str, given.get("after", ()))),
        after_ok=tuple(map(str, given.get("after_ok", ()))),
        strategy=strategy,
        # In the short form they stand for the only pod set, which is all of the job.
        required_level=given.get("required_level", "") if prefix else "",
        preferred_level=given.get("preferred_level", "") if prefix else "",
        labels=dict(labels),
        pod_sets=tuple(pod_set(item) for item in sets),
        templates=tuple(template(item) for item in sets),
        array=array,
        short_form=not prefix,
    )


def check_wishes(given: Mapping[str, Any], faults: Faults) -> None:
    """What may also be changed while the job waits: amounts of the job and its dependencies."""
    faults.in_range(given, JOB_AMOUNTS, ())
    for name in ("after", "after_ok"):
        faults.unless(
            len(given.get(name, ())) <= MAX_DEPENDENCIES,
            (name,),
            f"At most {MAX_DEPENDENCIES} jobs.",
        )


def default_restarts(kind: str, gang: bool) -> int:
    """How often it is restarted where the document does not say: one crash ends no service."""
    return LIMITS["max_restarts"][1] if kind == JobKind.INFERENCE and not gang else 0


def default_name(index: int) -> str:
    """What a pod set is called where the document does not say."""
    return f"set-{index}" if index else DEFAULT_POD_SET


def _check_demand(sets: Sequence[Mapping[str, Any]], prefix: bool, faults: Faults) -> None:
    """Each pod has to ask for something; a job without GPUs for nothing that comes with GPUs."""
    has_gpus = any(amount(item, "gpus", 0) for item in sets)
    for index, item in enumerate(sets):
        at: Path = ("pod_sets", index) if prefix else ()
        faults.unless(
            any(amount(item, name, 0) for name in ("gpus", "cpu_milli", "memory_mib"))
            or any(item.get("extended", {}).values()),
            (*at, "gpus"),
            "The pod asks for nothing. Give gpus, or cpu_milli and memory_mib.",
        )
        if not has_gpus:
            _check_without_gpus(item, at, faults)


def _check_without_gpus(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    """What is there on nodes with GPUs only, to which pods of such a job do not go."""
    parts = [("extended", name) for name in item.get("extended", {}) if is_part(name)]
    given = [(name,) for name in ("gpu_type", "gpu_types", "nics") if item.get(name)]
    for field in (*given, *parts):
        text = "The job asks for no GPU. Give gpus, e.g. 8, or leave this out."
        faults.add((*at, *field), text)


def _check_array(
    given: Mapping[str, Any], sets: Sequence[Mapping[str, Any]], faults: Faults
) -> int | None:
    """How many jobs the array has; None where the document means one job."""
    if "array" not in given:
        return None
    count: int = given["array"]["count"]
    faults.unless(1 <= count <= MAX_ARRAY, ("array", "count"), f"Must be from 1 to {MAX_ARRAY}.")
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
    return count


def _pod_set_documents(given: Mapping[str, Any], faults: Faults) -> list[dict[str, Any]]:
    """The pod sets as documents without nulls, whichever form the job is written in."""
    short = sorted(SHORT_FORM & given.keys())
    if "pod_sets" in given:
        for name in short:
            if name not in GROUP_LEVELS:
                faults.add((name,), "Stands in each of `pod_sets`, when they are given.")
        count = len(given["pod_sets"])
        faults.unless(
            1 <= count <= MAX_POD_SETS, ("pod_sets",), f"Give 1 to {MAX_POD_SETS} pod sets."
        )
        items = [
            {n: v for n, v in item.items() if v is not None}
            for item in given["pod_sets"][:MAX_POD_SETS]
        ]
        return [{"name": default_name(i), **item} for i, item in enumerate(items)]
    item = {name: given[name] for name in short}
    if "replicas" in item:
        faults.unless("count" not in item, ("count",), "Give `replicas` or `count`, not both.")
        item["count"] = item.pop("replicas")
    return [{"name": DEFAULT_POD_SET, **item}]
