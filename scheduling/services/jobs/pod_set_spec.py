"""What one pod set of a job document means, and what can be wrong with it. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from scheduling.engine.cluster.affinity import NAME, OPERATORS, read_terms, wrong_expression
from scheduling.engine.types import MILLI, NodeExpression, PodSet, Toleration
from scheduling.kube.translate.manifests import PodSettings
from scheduling.services.common.faults import (
    DNS,
    LABEL_NAME,
    LABEL_VALUE_RULE,
    LEVELS,
    LIMITS,
    SLUG,
    SLUG_RULE,
    Faults,
    is_label_key,
)
from scheduling.services.jobs.pod_settings_spec import check_pod_settings, pod_settings
from tenants import texts
from tenants.errors import Path

MAX_EXTENDED = 10**9
MAX_ENV = 256
MAX_NODE_LABELS = 64
# Of a node affinity: terms, expressions of each, values of each of these.
MAX_TERMS, MAX_EXPRESSIONS, MAX_VALUES = 16, 256, 1000
IMAGE = "busybox:stable"
JOB_AMOUNTS = ("priority", "declared_s", "run_limit_s", "checkpoint_notice_s", "max_restarts")
POD_SET_AMOUNTS = tuple(name for name in LIMITS if name not in JOB_AMOUNTS)
# These stand in a pod set, and in a job that has pod sets for all of them together.
GROUP_LEVELS = ("required_level", "preferred_level")
# Kant asks for these itself, by the fields on the right.
OWN_RESOURCES = {
    "nvidia.com/gpu": "gpus",
    "kant.io/gpu-milli": "gpu_milli",
    "cpu": "cpu_milli",
    "memory": "memory_mib",
}
# What Kant says of a pod, and reads of it, in labels and annotations.
OWN_PREFIX = "kant.io/"
# Kubernetes allows 256 KiB a pod; the rest is for what Kant adds, devices above all.
MAX_ANNOTATION_BYTES = 240 * 1024
ENV_NAME = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]{0,252}")


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """What the containers of a pod set run."""

    image: str = IMAGE
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    settings: PodSettings = field(default_factory=PodSettings)


def check_pod_set(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    faults.unless(bool(SLUG.fullmatch(item["name"])), (*at, "name"), SLUG_RULE)
    faults.in_range(item, POD_SET_AMOUNTS, at)
    faults.unless(
        not ("gpu_type" in item and "gpu_types" in item),
        (*at, "gpu_types"),
        "Give `gpu_type` or `gpu_types`, not both.",
    )
    _check_shares(item, at, faults)
    count = amount(item, "count", 1)
    faults.unless(
        amount(item, "min_count", 1) <= count,
        (*at, "min_count"),
        f"Must be at most count ({count}).",
    )
    check_levels(item, (*GROUP_LEVELS, "balance_level"), at, faults)
    _check_slices(item, at, faults)
    _check_extended(item.get("extended", {}), (*at, "extended"), faults)
    faults.labels(item.get("node_selector", {}), (*at, "node_selector"))
    _check_affinity(item.get("node_affinity", []), (*at, "node_affinity"), faults)
    _check_annotations(item.get("annotations", {}), (*at, "annotations"), faults)
    for variables in ("env", "env_from_secrets"):
        for name in item.get(variables, {}):
            faults.unless(
                bool(ENV_NAME.fullmatch(name)),
                (*at, variables, name),
                "Not the name of a variable.",
            )
    check_pod_settings(item, at, faults)
    image = item.get("image", IMAGE)
    faults.unless(
        bool(image) and not re.search(r"\s", image), (*at, "image"), "Not the name of an image."
    )
    for index, toleration in enumerate(item.get("tolerations", [])):
        _check_toleration(toleration, (*at, "tolerations", index), faults)


def check_levels(item: Mapping[str, Any], names: Sequence[str], at: Path, faults: Faults) -> None:
    for name in names:
        faults.unless(
            item.get(name, "") in ("", *LEVELS),
            (*at, name),
            f"Choose one of {', '.join(LEVELS)}.",
        )


def refuse_own_names(given: Mapping[str, str], at: Path, faults: Faults) -> None:
    for name in given:
        faults.unless(
            not name.startswith(OWN_PREFIX),
            (*at, name),
            f"Names that begin with {OWN_PREFIX} are Kant's own. Choose another.",
        )


def _check_affinity(terms: Sequence[Mapping[str, Any]], at: Path, faults: Faults) -> None:
    faults.unless(len(terms) <= MAX_TERMS, at, texts.no_longer_than(MAX_TERMS, "terms"))
    for index, term in enumerate(terms[:MAX_TERMS]):
        (expressions,) = read_terms([term])
        faults.unless(
            bool(expressions),
            (*at, index),
            "Give match_expressions or match_fields: a term without any matches no node.",
        )
        faults.unless(
            len(expressions) <= MAX_EXPRESSIONS,
            (*at, index),
            texts.no_longer_than(MAX_EXPRESSIONS, "expressions"),
        )
        numbers = {False: count(), True: count()}
        for expression in expressions[:MAX_EXPRESSIONS]:
            part = "match_fields" if expression.of_name else "match_expressions"
            here = (*at, index, part, next(numbers[expression.of_name]))
            _check_expression(expression, here, faults)


def _check_expression(expression: NodeExpression, at: Path, faults: Faults) -> None:
    key, operator, values, of_name = expression
    if of_name:
        faults.unless(key == NAME, (*at, "key"), f"Must be {NAME}, the one field there is.")
    else:
        faults.unless(is_label_key(key), (*at, "key"), "Not the name of a Kubernetes label.")
    if wrong := wrong_expression(expression):
        faults.add((*at, "values" if operator in OPERATORS else "operator"), wrong)
    faults.unless(
        len(values) <= MAX_VALUES, (*at, "values"), texts.no_longer_than(MAX_VALUES, "values")
    )
    shape, rule = (DNS, "Not the name of a node.") if of_name else (LABEL_NAME, LABEL_VALUE_RULE)
    for index, value in enumerate(values[:MAX_VALUES]):
        good = bool(shape.fullmatch(value)) or not (value or of_name)
        faults.unless(good, (*at, "values", index), rule)


def _check_annotations(given: Mapping[str, str], at: Path, faults: Faults) -> None:
    for name in given:
        faults.unless(is_label_key(name), (*at, name), "Not an annotation name.")
    refuse_own_names(given, at, faults)
    size = sum(len(text.encode()) for pair in given.items() for text in pair)
    faults.unless(
        size <= MAX_ANNOTATION_BYTES,
        at,
        f"Names and values are {size:,} bytes; at most {MAX_ANNOTATION_BYTES:,} are allowed a pod.",
    )


def _check_slices(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    """Slices of pods that each stay inside one group (`engine.types.PodSet`)."""
    size = amount(item, "slice_size", 0)
    if size < 1:
        return
    for name in ("count", "min_count"):
        number = amount(item, name, 1 if name == "count" else size)
        faults.unless(
            number % size == 0, (*at, "slice_size"), f"Has to divide {name} ({number}) evenly."
        )
    faults.unless(
        bool(item.get("required_level")),
        (*at, "slice_size"),
        "Name in `required_level` the level that a slice has to stay inside.",
    )


def _check_extended(amounts: Mapping[str, int], at: Path, faults: Faults) -> None:
    """Extended resources of Kubernetes: qualified names, whole amounts.

    Kubernetes counts them in quotas as `requests.NAME`, which has to be a qualified name too.
    """
    for name, amount in amounts.items():
        if name in OWN_RESOURCES:
            faults.add((*at, name), f"Ask for it by `{OWN_RESOURCES[name]}`.")
        elif (
            "/" not in name
            or not is_label_key(f"requests.{name}")
            or name.startswith("requests.")
            or "kubernetes.io/" in name
        ):
            faults.add((*at, name), "Not the name of an extended resource, e.g. vendor.com/card.")
        elif not 0 <= amount <= MAX_EXTENDED:
            faults.add((*at, name), f"Must be from 0 to {MAX_EXTENDED}.")


def _check_shares(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    """Rules between the amounts of one pod."""
    gpus, milli = amount(item, "gpus", 0), amount(item, "gpu_milli", MILLI)
    memory = amount(item, "gpu_memory_mib", 0)
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


def _check_toleration(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    operator = item.get("operator", "Equal")
    faults.unless(operator in ("Equal", "Exists"), (*at, "operator"), "Choose Equal or Exists.")
    faults.unless(
        operator != "Exists" or not item.get("value"), (*at, "value"), "Exists takes no value."
    )
    value = item.get("value", "")
    faults.unless(not value or bool(LABEL_NAME.fullmatch(value)), (*at, "value"), LABEL_VALUE_RULE)
    key = item.get("key", "")
    faults.unless(
        is_label_key(key) if key else operator == "Exists",
        (*at, "key"),
        "Must be a taint's key; only Exists may leave it out.",
    )
    faults.unless(
        item.get("effect", "") in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
        (*at, "effect"),
        "Choose NoSchedule, PreferNoSchedule or NoExecute, or leave it out.",
    )


def pod_set(item: Mapping[str, Any]) -> PodSet:
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
        node_affinity=read_terms(item.get("node_affinity", [])),
        tolerations=tuple(Toleration(**t) for t in item.get("tolerations", [])),
        required_level=item.get("required_level", ""),
        preferred_level=item.get("preferred_level", ""),
        max_per_node=item.get("max_per_node"),
        max_per_leaf=item.get("max_per_leaf"),
        slice_size=item.get("slice_size", 0),
        balance_level=item.get("balance_level", ""),
        extended={name: n for name, n in item.get("extended", {}).items() if n},
    )


def template(item: Mapping[str, Any]) -> PodTemplate:
    return PodTemplate(
        item.get("image", IMAGE),
        tuple(item.get("command", [])),
        dict(item.get("env", {})),
        dict(item.get("annotations", {})),
        pod_settings(item),
    )


def amount(item: Mapping[str, Any], name: str, default: int) -> int:
    value: int = item.get(name, default)
    return value
