"""Network levels that other systems name by the node labels that define them."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from scheduling.kube.network.level_names import LevelNames
from scheduling.kube.seam import AskedLevel, AskedTier, PodLevels, Workload
from scheduling.kube.workloads.contradiction import Contradicts

KUEUE, KAI = "kueue.x-k8s.io/podset-{}-topology", "kai.scheduler/topology-{}-placement"
# Annotations that ask for a pod set to be split into several groups.
SLICES = (
    "kueue.x-k8s.io/podset-slice-required-topology",
    "kueue.x-k8s.io/podset-slice-required-topology-constraints",
    "kai.scheduler/segment-topology-required-placement",
    "kai.scheduler/segment-topology-preferred-placement",
)


def asked_by(
    found: Mapping[str, Any], required: str, preferred: str, where: str = "annotation {}"
) -> tuple[AskedLevel, ...]:
    """Return the levels that these fields ask for; `where`: the field's name for people."""
    return tuple(
        AskedLevel(where.format(key), str(found[key]), required=key == required)
        for key in (required, preferred)
        if found.get(key)
    )


def asked_of_pod(notes: Mapping[str, str]) -> tuple[AskedLevel, ...]:
    """Return the levels that Kueue's and KAI's annotations on a pod ask for, for its pod set.

    Raises Contradicts for what Kant does not support.
    """
    for slices in SLICES:
        if slices in notes:
            raise Contradicts(
                f"annotation {slices}",
                "Kant does not read it: it keeps all pods of a set in one group, or none. Remove "
                "it, or make each slice a set of pods of its own.",
            )
    return tuple(ask for by in (KUEUE, KAI) for ask in _asked(notes, by))


def asked_of_owner(notes: Mapping[str, str]) -> tuple[AskedLevel, ...]:
    """Return the levels that KAI's annotations on an owner ask for, for all its pods."""
    return _asked(notes, KAI)


def _asked(notes: Mapping[str, Any], by: str) -> tuple[AskedLevel, ...]:
    return asked_by(notes, by.format("required"), by.format("preferred"))


def levels_of_pod(notes: Mapping[str, str], names: LevelNames) -> PodLevels:
    """Return the levels that a pod's annotations name."""
    try:
        return known(asked_of_pod(notes), names)
    except Contradicts as wrong:
        return PodLevels(wrong=str(wrong))


def known(asked: Iterable[AskedLevel | AskedTier], names: LevelNames) -> PodLevels:
    """Resolve levels; the first required and the first preferred one count. Raises Contradicts."""
    required = preferred = ""
    for ask in asked:
        level = names.meant(ask)
        if ask.required:
            required = required or level
        else:
            preferred = preferred or level
    return PodLevels(required, preferred)


def with_levels(workload: Workload, names: LevelNames) -> Workload:
    """Return the workload with its requests resolved to Kant's levels. Raises Contradicts."""
    if not (workload.asked or workload.asked_of_group):
        return workload
    of_all = known(workload.asked, names)
    return msgspec.structs.replace(
        workload,
        required_level=of_all.required,
        preferred_level=of_all.preferred,
        of_group=known(workload.asked_of_group, names),
        asked=(),
        asked_of_group=(),
    )
