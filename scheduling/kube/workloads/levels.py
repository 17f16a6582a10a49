"""Network levels of Kant that others name by the label of nodes which tells them."""

from collections.abc import Mapping
from typing import Any

from scheduling.engine.placement.request import HYPER_NODE
from scheduling.engine.types import DEFAULT_LEVELS
from scheduling.kube.translate.labels import TABLE
from scheduling.kube.workloads.contradiction import Contradicts

# Each label names one level; where several could, the nearest to the nodes.
LEVELS = (HYPER_NODE, *DEFAULT_LEVELS)
LEVEL_OF_LABEL = {
    source.label: level for level in reversed(LEVELS) for source in TABLE[level.replace("-", "_")]
}


def required_level(found: Mapping[str, Any], key: str, where: str = "") -> str:
    """The level that the label under `key` stands for, "" = there is none. Raises Contradicts for a
    label that stands for none of Kant's."""
    label = str(found.get(key) or "")
    if label and label not in LEVEL_OF_LABEL:
        field = f"{where}.{key}" if where else f"annotation {key}"
        raise Contradicts(
            field,
            f"Kant knows no network level by the label {label}; name one of {_known()}, or say "
            f"{', '.join(LEVELS)} in the annotation kant.io/required-level instead.",
        )
    return LEVEL_OF_LABEL.get(label, "")


def preferred_level(found: Mapping[str, Any], key: str) -> str:
    """The same of a wish: one that Kant does not know is passed over."""
    return LEVEL_OF_LABEL.get(str(found.get(key) or ""), "")


def levels_of_pods(notes: Mapping[str, str]) -> dict[str, str]:
    """The levels that Kueue's annotations of a pod name, for the pods of its pod set. Raises
    Contradicts."""
    return _levels(notes, "kueue.x-k8s.io/podset-{}-topology")


def levels_of_owner(notes: Mapping[str, str]) -> dict[str, str]:
    """The levels that KAI's annotations of an owner name, for all its pods. Raises Contradicts."""
    return _levels(notes, "kai.scheduler/topology-{}-placement")


def _levels(notes: Mapping[str, str], annotation: str) -> dict[str, str]:
    found = {
        "required_level": required_level(notes, annotation.format("required")),
        "preferred_level": preferred_level(notes, annotation.format("preferred")),
    }
    return {name: level for name, level in found.items() if level}


def _known() -> str:
    return ", ".join(sorted(LEVEL_OF_LABEL))
