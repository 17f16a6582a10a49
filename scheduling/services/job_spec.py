"""What a submitted job document means, and everything that can be wrong with it by itself.

Pure: no database, no clock. Whether names in it exist and whether it fits a cluster is asked by
`services.jobs`. All faults are reported together, each with the path of its field.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduling.engine.placement.request import HYPER_NODE
from scheduling.engine.placement.strategies import STRATEGIES
from scheduling.engine.types import DEFAULT_LEVELS, MILLI, JobKind, PodSet, Toleration
from tenants.errors import FieldError, Invalid, Path

LEVELS = (*DEFAULT_LEVELS, HYPER_NODE)
MAX_POD_SETS = 32
MAX_PODS = 100_000
IMAGE = "busybox:stable"
# (least, most) of each amount; the REST schema shows the same numbers.
LIMITS: dict[str, tuple[int, int]] = {
    "priority": (-1_000_000, 1_000_000),
    "declared_s": (1, 10 * 366 * 86400),
    "count": (1, MAX_PODS),
    "min_count": (1, MAX_PODS),
    "gpus": (0, 1024),
    "gpu_milli": (1, MILLI),
    "gpu_memory_mib": (0, 10**7),
    "cpu_milli": (0, 10**8),
    "memory_mib": (0, 10**9),
    "nics": (0, 1024),
    "max_per_node": (1, MAX_PODS),
}
POD_SET_AMOUNTS = tuple(LIMITS)[2:]
# A job of one pod set may be written without `pod_sets`; these names then stand in the job.
SHORT_FORM = frozenset({*POD_SET_AMOUNTS, "replicas", "gpu_type", "gpu_types", "node_selector"}) | {
    *("tolerations", "required_level", "preferred_level", "image", "command", "env", "annotations")
}

SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
DNS = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
ENV_NAME = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]{0,252}")
SLUG_RULE = "Use lower-case letters, digits and hyphens, at most 63."


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """What the containers of a pod set run."""

    image: str = IMAGE
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A valid job document. `cluster` "" = the only one there is."""

    name: str
    tenant: str
    cluster: str
    kind: JobKind
    priority: int
    gang: bool
    preemptible: bool
    declared_s: int | None
    strategy: str
    labels: Mapping[str, str]
    pod_sets: tuple[PodSet, ...]
    templates: tuple[PodTemplate, ...]
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
    faults = _Faults()
    # A null stands for “not given”, as in every API.
    given = {name: value for name, value in document.items() if value is not None}
    sets = _pod_set_documents(given, faults)
    for name in ("name", "tenant"):
        faults.unless(bool(SLUG.fullmatch(given.get(name, ""))), (name,), SLUG_RULE)
    faults.in_range(given, ("priority", "declared_s"), ())
    strategy = given.get("strategy", "")
    faults.unless(
        strategy in ("", *STRATEGIES), ("strategy",), f"Choose one of {', '.join(STRATEGIES)}."
    )
    kind = given.get("kind", JobKind.TRAINING)
    faults.unless(kind in list(JobKind), ("kind",), f"Choose one of {', '.join(JobKind)}.")
    labels = given.get("labels", {})
    faults.labels(labels, ("labels",))
    prefix = "pod_sets" in given
    for index, item in enumerate(sets):
        _check_pod_set(item, ("pod_sets", index) if prefix else (), faults)
    names = [item["name"] for item in sets]
    for index, name in enumerate(names):
        faults.unless(
            name not in names[:index],
            ("pod_sets", index, "name"),
            f"Another pod set of this job is called {name!r}. Names differ within a job.",
        )
    faults.unless(
        sum(_amount(item, "count", 1) for item in sets) <= MAX_PODS,
        ("pod_sets",) if prefix else ("replicas",),
        f"A job has at most {MAX_PODS} pods.",
    )
    faults.raise_if_any()
    return JobSpec(
        name=given["name"],
        tenant=given["tenant"],
        cluster=given.get("cluster", ""),
        kind=JobKind(kind),
        priority=given.get("priority", 0),
        gang=given.get("gang", True),
        preemptible=given.get("preemptible", True),
        declared_s=given.get("declared_s"),
        strategy=strategy,
        labels=dict(labels),
        pod_sets=tuple(_pod_set(item) for item in sets),
        templates=tuple(_template(item) for item in sets),
        short_form=not prefix,
    )


def _pod_set_documents(given: Mapping[str, Any], faults: "_Faults") -> list[dict[str, Any]]:
    """The pod sets as documents without nulls, whichever form the job is written in."""
    short = sorted(SHORT_FORM & given.keys())
    if "pod_sets" in given:
        for name in short:
            faults.add((name,), "Stands in each of `pod_sets`, when they are given.")
        count = len(given["pod_sets"])
        faults.unless(
            1 <= count <= MAX_POD_SETS, ("pod_sets",), f"Give 1 to {MAX_POD_SETS} pod sets."
        )
        items = [
            {n: v for n, v in item.items() if v is not None}
            for item in given["pod_sets"][:MAX_POD_SETS]
        ]
        return [{"name": f"set-{i}" if i else "worker", **item} for i, item in enumerate(items)]
    item = {name: given[name] for name in short}
    if "replicas" in item:
        faults.unless("count" not in item, ("count",), "Give `replicas` or `count`, not both.")
        item["count"] = item.pop("replicas")
    if not short:
        faults.add(("gpus",), "Say what a pod needs, e.g. gpus: 8, or give `pod_sets`.")
    return [{"name": "worker", **item}]


def _check_pod_set(item: Mapping[str, Any], at: Path, faults: "_Faults") -> None:
    faults.unless(bool(SLUG.fullmatch(item["name"])), (*at, "name"), SLUG_RULE)
    faults.in_range(item, POD_SET_AMOUNTS, at)
    faults.unless(
        not ("gpu_type" in item and "gpu_types" in item),
        (*at, "gpu_types"),
        "Give `gpu_type` or `gpu_types`, not both.",
    )
    _check_shares(item, at, faults)
    count = _amount(item, "count", 1)
    faults.unless(
        _amount(item, "min_count", 1) <= count,
        (*at, "min_count"),
        f"Must be at most count ({count}).",
    )
    for name in ("required_level", "preferred_level"):
        faults.unless(
            item.get(name, "") in ("", *LEVELS),
            (*at, name),
            f"Choose one of {', '.join(LEVELS)}.",
        )
    faults.labels(item.get("node_selector", {}), (*at, "node_selector"))
    for name in item.get("annotations", {}):
        faults.unless(_is_label_key(name), (*at, "annotations", name), "Not an annotation name.")
    for name in item.get("env", {}):
        faults.unless(
            bool(ENV_NAME.fullmatch(name)), (*at, "env", name), "Not the name of a variable."
        )
    image = item.get("image", IMAGE)
    faults.unless(
        bool(image) and not re.search(r"\s", image), (*at, "image"), "Not the name of an image."
    )
    for index, toleration in enumerate(item.get("tolerations", [])):
        _check_toleration(toleration, (*at, "tolerations", index), faults)


def _check_shares(item: Mapping[str, Any], at: Path, faults: "_Faults") -> None:
    """Rules between the amounts of one pod."""
    gpus, milli = _amount(item, "gpus", 0), _amount(item, "gpu_milli", MILLI)
    memory = _amount(item, "gpu_memory_mib", 0)
    faults.unless(
        milli == MILLI or gpus == 1,
        (*at, "gpu_milli"),
        f"A share is of exactly one GPU: set gpus to 1, or gpu_milli to {MILLI}.",
    )
    faults.unless(
        not memory or (gpus == 1 and milli == MILLI),
        (*at, "gpu_memory_mib"),
        f"A share by memory is of one GPU: leave gpus at 1 and gpu_milli at {MILLI}.",
    )
    faults.unless(
        bool(gpus or _amount(item, "cpu_milli", 0) or _amount(item, "memory_mib", 0)),
        (*at, "gpus"),
        "The pod asks for nothing. Give gpus, or cpu_milli and memory_mib.",
    )


def _check_toleration(item: Mapping[str, Any], at: Path, faults: "_Faults") -> None:
    operator = item.get("operator", "Equal")
    faults.unless(operator in ("Equal", "Exists"), (*at, "operator"), "Choose Equal or Exists.")
    faults.unless(
        operator != "Exists" or not item.get("value"), (*at, "value"), "Exists takes no value."
    )
    key = item.get("key", "")
    faults.unless(
        _is_label_key(key) if key else operator == "Exists",
        (*at, "key"),
        "Must be a taint's key; only Exists may leave it out.",
    )
    faults.unless(
        item.get("effect", "") in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
        (*at, "effect"),
        "Choose NoSchedule, PreferNoSchedule or NoExecute, or leave it out.",
    )


def _pod_set(item: Mapping[str, Any]) -> PodSet:
    models = [item["gpu_type"]] if "gpu_type" in item else item.get("gpu_types", [])
    return PodSet(
        name=item["name"],
        count=item.get("count", 1),
        gpus=item.get("gpus", 0),
        gpu_models=tuple(dict.fromkeys(models)),
        gpu_milli=item.get("gpu_milli", MILLI),
        gpu_memory_mib=item.get("gpu_memory_mib", 0),
        cpu_milli=item.get("cpu_milli", 0),
        memory_mib=item.get("memory_mib", 0),
        nics=item.get("nics", 0),
        min_count=item.get("min_count"),
        node_selector=dict(item.get("node_selector", {})),
        tolerations=tuple(Toleration(**t) for t in item.get("tolerations", [])),
        required_level=item.get("required_level", ""),
        preferred_level=item.get("preferred_level", ""),
        max_per_node=item.get("max_per_node"),
    )


def _template(item: Mapping[str, Any]) -> PodTemplate:
    return PodTemplate(
        item.get("image", IMAGE),
        tuple(item.get("command", [])),
        dict(item.get("env", {})),
        dict(item.get("annotations", {})),
    )


def _amount(item: Mapping[str, Any], name: str, default: int) -> int:
    value: int = item.get(name, default)
    return value


def _is_label_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return bool(LABEL_NAME.fullmatch(name)) and (not slash or bool(DNS.fullmatch(prefix)))


class _Faults:
    """Collects faults, so that a document is corrected in one go."""

    def __init__(self) -> None:
        self.found: list[FieldError] = []

    def add(self, path: Path, detail: str) -> None:
        self.found.append(FieldError(path, detail))

    def unless(self, good: bool, path: Path, detail: str) -> None:
        if not good:
            self.add(path, detail)

    def in_range(self, item: Mapping[str, Any], names: tuple[str, ...], at: Path) -> None:
        for name in names:
            least, most = LIMITS[name]
            if name in item and not least <= item[name] <= most:
                self.add((*at, name), f"Must be from {least} to {most}.")

    def labels(self, labels: Mapping[str, str], at: Path) -> None:
        for key, value in labels.items():
            self.unless(_is_label_key(key), (*at, key), "Not the name of a Kubernetes label.")
            self.unless(
                not value or bool(LABEL_NAME.fullmatch(value)),
                (*at, key),
                "Not the value of a Kubernetes label: letters, digits, “-_.”, at most 63.",
            )

    def raise_if_any(self) -> None:
        if self.found:
            raise Invalid.fields(self.found)
