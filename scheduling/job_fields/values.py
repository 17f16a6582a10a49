"""The kinds of values that a job's fields have, and checks of single values. Pure.

Whether a named object exists is checked elsewhere: what pods use may be created after the job.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any

from scheduling.engine.cluster.affinity import (
    NAME,
    OPERATORS,
    read_terms,
    write_terms,
    wrong_expression,
)
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.types import JobKind, NodeExpression, Toleration
from scheduling.job_fields.faults import (
    DNS,
    LABEL_NAME,
    LABEL_VALUE_RULE,
    LEVELS,
    SLUG,
    SLUG_RULE,
    Faults,
    is_label_key,
)
from scheduling.job_fields.parts import Kind
from scheduling.kube.dra.extended import OF_CLASS
from scheduling.kube.dra.selectors import WrongSelector, selector
from scheduling.kube.translate.quantities import GPU_RESOURCES, is_space
from tenants import texts
from tenants.errors import Path

MAX_DEPENDENCIES = 1000
# Of devices: claims per pod, devices per claim, expressions per request; the last two are limits of
# Kubernetes.
MAX_CLAIMS, MAX_CLAIMED, MAX_SELECTORS = 16, 32, 32
MAX_EXTENDED = 10**9
MAX_ENV = MAX_ENV_FROM_SECRETS = 256
MAX_NODE_LABELS = 64
MAX_PULL_SECRETS = 16
MAX_VOLUMES = 32
NAME_LENGTH = 253
PATH_LENGTH = 1024
# Of a node affinity: terms, expressions per term, values per expression.
MAX_TERMS, MAX_EXPRESSIONS, MAX_VALUES = 16, 256, 1000
# Kubernetes allows 256 KiB per pod; the rest is for annotations that Kant adds, mostly devices.
MAX_ANNOTATION_BYTES = 240 * 1024
# Kant requests these itself, according to the fields on the right.
OWN_RESOURCES = {
    **dict.fromkeys(GPU_RESOURCES, "gpus"),
    "kant.io/gpu-milli": "gpu_milli",
    "cpu": "cpu_milli",
    "memory": "memory_mib",
}
# Prefix of the labels and annotations that Kant writes on pods and reads from them.
OWN_PREFIX = "kant.io/"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
ENV_NAME = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]{0,252}")
SECRET_KEY = re.compile(r"(?!\.\.?\Z)(?!\.\.)[-._A-Za-z0-9]{1,253}")
NAME_RULE = "Not a name of Kubernetes: lower-case letters, digits, “-” and “.”, at most 253."


# --- checks ---------------------------------------------------------------------------------------
def check_name(name: str, at: Path, faults: Faults) -> None:
    faults.unless(bool(DNS.fullmatch(name)), at, NAME_RULE)


def _slug(value: str, at: Path, faults: Faults) -> None:
    faults.unless(bool(SLUG.fullmatch(value)), at, SLUG_RULE)


def _among(*names: str) -> Any:
    def check(value: str, at: Path, faults: Faults) -> None:
        faults.unless(value in names, at, texts.one_of(", ".join(filter(None, names))))

    return check


def _ids(value: Sequence[Any], at: Path, faults: Faults) -> None:
    faults.unless(len(value) <= MAX_DEPENDENCIES, at, f"At most {MAX_DEPENDENCIES} jobs.")


def check_labels(labels: Mapping[str, str], at: Path, faults: Faults) -> None:
    for key, value in labels.items():
        faults.unless(is_label_key(key), (*at, key), "Not the name of a Kubernetes label.")
        good = not value or bool(LABEL_NAME.fullmatch(value))
        faults.unless(good, (*at, key), LABEL_VALUE_RULE)


def _own_labels(labels: Mapping[str, str], at: Path, faults: Faults) -> None:
    check_labels(labels, at, faults)
    _refuse_own_names(labels, at, faults)


def _refuse_own_names(given: Mapping[str, str], at: Path, faults: Faults) -> None:
    for name in given:
        faults.unless(
            not name.startswith(OWN_PREFIX),
            (*at, name),
            f"Names that begin with {OWN_PREFIX} are Kant's own. Choose another.",
        )


def _affinity(terms: Sequence[Mapping[str, Any]], at: Path, faults: Faults) -> None:
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
            _expression(expression, (*at, index, part, next(numbers[expression.of_name])), faults)


def _expression(expression: NodeExpression, at: Path, faults: Faults) -> None:
    key, operator, values, of_name = expression
    if of_name:
        faults.unless(key == NAME, (*at, "key"), f"Must be {NAME}, the only field.")
    else:
        faults.unless(is_label_key(key), (*at, "key"), "Not the name of a Kubernetes label.")
    if wrong := wrong_expression(expression):
        faults.add((*at, "values" if operator in OPERATORS else "operator"), wrong)
    elif of_name:  # the API server accepts no more
        faults.unless(len(values) == 1, (*at, "values"), "Give one value.")
    faults.unless(
        len(values) <= MAX_VALUES, (*at, "values"), texts.no_longer_than(MAX_VALUES, "values")
    )
    shape, rule = (DNS, "Not the name of a node.") if of_name else (LABEL_NAME, LABEL_VALUE_RULE)
    for index, value in enumerate(values[:MAX_VALUES]):
        good = bool(shape.fullmatch(value)) or not (value or of_name)
        faults.unless(good, (*at, "values", index), rule)


def _tolerations(given: Sequence[Mapping[str, str]], at: Path, faults: Faults) -> None:
    for index, item in enumerate(given):
        _toleration(item, (*at, index), faults)


def _toleration(item: Mapping[str, Any], at: Path, faults: Faults) -> None:
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
        "Must be a taint key; only with Exists it may be left out.",
    )
    faults.unless(
        item.get("effect", "") in ("", *EFFECTS),
        (*at, "effect"),
        "Choose NoSchedule, PreferNoSchedule or NoExecute, or leave it out.",
    )


def _annotations(given: Mapping[str, str], at: Path, faults: Faults) -> None:
    for name in given:
        faults.unless(is_label_key(name), (*at, name), "Not an annotation name.")
    _refuse_own_names(given, at, faults)
    size = sum(len(text.encode()) for pair in given.items() for text in pair)
    faults.unless(
        size <= MAX_ANNOTATION_BYTES,
        at,
        f"Names and values are {size:,} bytes; at most {MAX_ANNOTATION_BYTES:,} are allowed a pod.",
    )


def _extended(amounts: Mapping[str, int], at: Path, faults: Faults) -> None:
    """Check extended resources of Kubernetes: qualified names, and disk and huge pages in MiB.

    Kubernetes counts them in quotas as `requests.NAME`, which has to be a qualified name, too.
    """
    for name in amounts:
        if name in OWN_RESOURCES:
            faults.add((*at, name), f"Use `{OWN_RESOURCES[name]}` for this resource.")
        elif not is_space(name) and (
            "/" not in name
            or not is_label_key(f"requests.{name}")
            or name.startswith("requests.")
            or ("kubernetes.io/" in name and not name.startswith(OF_CLASS))
        ):
            faults.add((*at, name), "Not the name of an extended resource, e.g. vendor.com/card.")


def _variables(given: Mapping[str, Any], at: Path, faults: Faults) -> None:
    for name in given:
        faults.unless(bool(ENV_NAME.fullmatch(name)), (*at, name), "Not the name of a variable.")


def _secret_keys(given: Mapping[str, Mapping[str, str]], at: Path, faults: Faults) -> None:
    _variables(given, at, faults)
    faults.unless(
        len(given) <= MAX_ENV_FROM_SECRETS, at, f"At most {MAX_ENV_FROM_SECRETS} variables."
    )
    for name, source in given.items():
        check_name(source["secret"], (*at, name, "secret"), faults)
        faults.unless(
            bool(SECRET_KEY.fullmatch(source["key"])),
            (*at, name, "key"),
            "Not a key of a secret: letters, digits, “-”, “_” and “.”, at most 253.",
        )


def _device_claims(given: Mapping[str, Mapping[str, Any]], at: Path, faults: Faults) -> None:
    faults.unless(len(given) <= MAX_CLAIMS, at, texts.no_longer_than(MAX_CLAIMS, "claims"))
    for name, claim in given.items():
        here = (*at, name)
        faults.unless(bool(SLUG.fullmatch(name)), here, SLUG_RULE)
        source = [field for field in ("template", "device_class") if field in claim]
        if len(source) != 1:
            faults.add(here, "Give exactly one of template, device_class.")
            continue
        check_name(claim[source[0]], (*here, source[0]), faults)
        for field in ("count", "selectors") if "template" in claim else ():
            faults.unless(
                field not in claim, (*here, field), "The template sets this. Leave it out."
            )
        for index, expression in enumerate(claim.get("selectors", ())):
            try:
                selector(expression)
            except WrongSelector as wrong:
                faults.add((*here, "selectors", index), f"Not a valid CEL expression: {wrong}.")


def check_image(image: str, at: Path, faults: Faults) -> None:
    good = bool(image) and not re.search(r"\s", image)
    faults.unless(good, at, "Not a valid image name.")


def _object(name: str, at: Path, faults: Faults) -> None:
    if name:
        check_name(name, at, faults)


def _names(names: Sequence[str], at: Path, faults: Faults) -> None:
    for index, name in enumerate(names):
        check_name(name, (*at, index), faults)
        faults.unless(name not in names[:index], (*at, index), f"{name!r} is named twice.")


# --- storage --------------------------------------------------------------------------------------
def _whole_tolerations(given: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    return [asdict(Toleration(**one)) for one in given]


def _short_tolerations(stored: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    none = asdict(Toleration())
    return [{name: v for name, v in one.items() if v != none[name]} for one in stored]


def _whole_volumes(given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Set `read_only`: only claims can be writable, and they are by default."""
    return [{**one, "read_only": one.get("read_only", _is_read_only(one))} for one in given]


def _short_volumes(stored: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {n: v for n, v in one.items() if n != "read_only" or v != _is_read_only(one)}
        for one in stored
    ]


def _is_read_only(volume: Mapping[str, Any]) -> bool:
    return "persistent_volume_claim" not in volume


# --- the kinds ------------------------------------------------------------------------------------
SLUGS = Kind(check=_slug)
LEVEL = Kind(check=_among("", *LEVELS))
STRATEGY = Kind(check=_among("", *STRATEGIES))
JOB_KIND = Kind(check=_among(*JobKind), noun=JobKind, one_of=tuple(kind.value for kind in JobKind))
JOB_IDS = Kind(check=_ids, stored=lambda ids: [str(one) for one in ids], noun=tuple)
LABELS = Kind(check=_own_labels, noun=dict)
NODE_LABELS = Kind(check=check_labels, noun=dict, written=dict)
CLUSTER_LABELS = Kind(check=check_labels)
NODE_AFFINITY = Kind(
    check=_affinity,
    stored=lambda given: write_terms(read_terms(given)),
    noun=read_terms,
    written=write_terms,
)
TOLERATIONS = Kind(
    check=_tolerations,
    stored=_whole_tolerations,
    noun=lambda stored: tuple(Toleration(**one) for one in stored),
    written=lambda tolerations: list(map(asdict, tolerations)),
    short=_short_tolerations,
)
GPU_TYPES = Kind(stored=lambda names: list(dict.fromkeys(names)), noun=tuple)
EXTENDED = Kind(
    check=_extended, stored=lambda given: {n: a for n, a in given.items() if a}, noun=dict
)
IMAGES = Kind(check=check_image)
ANNOTATIONS = Kind(check=_annotations)
VARIABLES = Kind(check=_variables)
SECRET_VARIABLES = Kind(check=_secret_keys)
DEVICE_CLAIMS = Kind(check=_device_claims)
OBJECT = Kind(check=_object)
NAMES = Kind(check=_names)
VOLUMES = Kind(stored=_whole_volumes, short=_short_volumes)
OPERATOR = Kind(one_of=("Equal", "Exists"))
EFFECT = Kind(one_of=("", *EFFECTS))
NODE_OPERATOR = Kind(one_of=OPERATORS)
