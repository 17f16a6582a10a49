"""Check the node groups of a cluster: what an autoscaler may add to it.

scheduling/kube/translate/node_groups.py says what Kant makes of them.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from scheduling.engine.cluster.facts import MAX_AMOUNT, MAX_GPUS
from scheduling.job_fields.faults import SLUG, SLUG_RULE, Faults, is_label_key
from scheduling.job_fields.values import EFFECTS, OWN_RESOURCES, check_labels
from scheduling.kube.translate.quantities import GPU_RESOURCES, parse
from tenants import texts
from tenants.errors import FieldError, Path, unknown_name
from tenants.models import GpuType

FIELD, CLASS_FIELD = "node_groups", "provisioning_class"
# As in the definition of ProvisioningRequest.
CLASS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MOST_GROUPS, MOST_NODES = 64, 10_000
# Whole numbers of a group, as (from, to); all but `gpus` are required.
NUMBERS = {
    "gpus": (0, MAX_GPUS),
    "cpu_milli": (1, MAX_AMOUNT),
    "memory_mib": (1, MAX_AMOUNT),
    "max_nodes": (1, MOST_NODES),
}
FIELDS = ("gpu_type", *NUMBERS, "labels", "taints", "extended")
# Not allowed as extended resources: these have fields of their own.
OWN = OWN_RESOURCES | dict.fromkeys(GPU_RESOURCES, "gpus")


def faults(document: Any) -> Iterator[FieldError]:
    """Yield the faults of a cluster's `node_groups`."""
    if not isinstance(document, dict) or not all(isinstance(g, dict) for g in document.values()):
        yield FieldError((FIELD,), 'Must be an object: {name: {"gpu_type": …, "max_nodes": …}}.')
        return
    if len(document) > MOST_GROUPS:
        yield FieldError((FIELD,), f"At most {MOST_GROUPS} groups.")
        return
    found = Faults()
    models = set(GpuType.objects.values_list("name", flat=True)) if document else set()
    for name, group in document.items():
        found.unless(bool(SLUG.fullmatch(name)), (FIELD, name), SLUG_RULE)
        _group(group, models, (FIELD, name), found)
    if not found.found:
        _together(document, found)
    yield from found.found


def class_faults(name: str, document: Any) -> Iterator[FieldError]:
    """Yield the faults of a cluster's `provisioning_class`, given its `node_groups`."""
    if name and not CLASS_NAME.fullmatch(name):
        detail = (
            "Must be the name of a class of ProvisioningRequests, e.g. "
            "best-effort-atomic-scale-up.autoscaling.x-k8s.io."
        )
        yield FieldError((CLASS_FIELD,), detail)
    elif name and not document:
        detail = f"Set in {FIELD} what the autoscaler may add, or leave this empty."
        yield FieldError((CLASS_FIELD,), detail)


def _group(group: Mapping[str, Any], models: set[str], at: Path, found: Faults) -> None:
    for name in group:
        found.unless(name in FIELDS, (*at, name), unknown_name("field", name, FIELDS))
    for name, (least, most) in NUMBERS.items():
        value = group.get(name, 0 if name == "gpus" else None)
        good = type(value) is int and least <= value <= most
        found.unless(good, (*at, name), f"Must be a whole number from {least} to {most}.")
    model = group.get("gpu_type", "")
    if not isinstance(model, str):
        found.add((*at, "gpu_type"), "Must be the name of a GPU type.")
    elif model and not group.get("gpus"):
        found.add((*at, "gpus"), "Give the number of GPUs of a node, or leave gpu_type out.")
    elif group.get("gpus") and model not in models:
        known = ", ".join(sorted(models)) or "none"
        found.add((*at, "gpu_type"), f"There is no GPU type “{model}”. There are: {known}.")
    labels = group.get("labels", {})
    if isinstance(labels, dict) and all(isinstance(value, str) for value in labels.values()):
        check_labels(labels, (*at, "labels"), found)
    else:
        found.add((*at, "labels"), "Must be an object: {label: text}.")
    _taints(group.get("taints", []), (*at, "taints"), found)
    _extended(group.get("extended", {}), (*at, "extended"), found)


def _taints(taints: Any, at: Path, found: Faults) -> None:
    if not isinstance(taints, list):
        found.add(at, 'Must be a list of {"key": …, "value": …, "effect": …}.')
        return
    for index, taint in enumerate(taints):
        here = (*at, index)
        texts_only = isinstance(taint, dict) and all(isinstance(v, str) for v in taint.values())
        if not texts_only or not taint.keys() <= {"key", "value", "effect"}:
            found.add(here, 'Must be an object of texts: {"key": …, "value": …, "effect": …}.')
            continue
        found.unless(is_label_key(taint.get("key", "")), (*here, "key"), "Not a valid taint key.")
        good = taint.get("effect", "") in EFFECTS
        found.unless(good, (*here, "effect"), texts.one_of(", ".join(EFFECTS)))


def _extended(extended: Any, at: Path, found: Faults) -> None:
    if not isinstance(extended, dict):
        found.add(at, "Must be an object: {resource: amount}.")
        return
    for resource, amount in extended.items():
        if resource in OWN and resource != "kant.io/gpu-milli":
            found.add((*at, resource), f"Use {OWN[resource]} for this.")
        elif not is_label_key(resource):
            found.add((*at, resource), "Not a valid resource name.")
        elif isinstance(amount, bool) or not isinstance(amount, int | str):
            found.add((*at, resource), "Must be an amount, e.g. 8 or 100Gi.")
        else:
            _amount(amount, (*at, resource), found)


def _amount(amount: int | str, at: Path, found: Faults) -> None:
    try:
        good = 0 < parse(amount) <= MAX_AMOUNT
    except ValueError:
        good = False
    found.unless(good, at, "Must be an amount above 0, e.g. 8 or 100Gi.")


def _together(document: Mapping[str, Mapping[str, Any]], found: Faults) -> None:
    """Check that no node could belong to two groups.

    Otherwise nobody knows how many more may come.
    """
    total = sum(group["max_nodes"] for group in document.values())
    found.unless(
        total <= MOST_NODES, (FIELD,), f"At most {MOST_NODES} nodes in all groups together."
    )
    for one, other in combinations(sorted(document), 2):
        mine, theirs = document[one], document[other]
        alike = all(mine.get(n) == theirs.get(n) for n in ("gpu_type", "gpus"))
        a, b = mine.get("labels", {}), theirs.get("labels", {})
        if alike and not any(a[key] != b[key] for key in a.keys() & b.keys()):
            detail = (
                f"A node could belong to this group and to “{one}”. Give both a label with "
                "different values."
            )
            found.add((FIELD, other, "labels"), detail)
