"""The status of a group object: how its pods are doing. Pure.

In Kubernetes' PodGroup (scheduling.k8s.io) and KAI's (scheduling.run.ai/v2alpha2) the scheduler
owns one condition. Those of coscheduling (scheduling.x-k8s.io/v1alpha1) and Volcano
(scheduling.volcano.sh/v1beta1) also have a phase and counts of pods, judged by the minimum that has
to run (`spec.minMember`). Sources: the API types of these projects.
"""

from collections.abc import Mapping
from typing import Any

from scheduling.kube.seam import TellGroup

NATIVE, KAI = "scheduling.k8s.io", "scheduling.run.ai"
COSCHEDULING, VOLCANO = "scheduling.x-k8s.io", "scheduling.volcano.sh"
COUNTED = frozenset({COSCHEDULING, VOLCANO})
TELLABLE = frozenset({NATIVE, KAI}) | COUNTED
# Volcano's CRD has no status subresource.
WITHOUT_SUBRESOURCE = frozenset({VOLCANO})
# The reason of a gang that waits for nodes; its quota is reserved by then.
FOR_NODES = "Unschedulable"
FINISHED, FAILED = "Finished", "Failed"


def status_of(effect: TellGroup, now: str) -> dict[str, Any]:
    """Return the merge patch of its status; nobody else writes these lists. `now`: RFC 3339."""
    condition: dict[str, Any] = {
        "reason": effect.reason,
        "message": effect.message,
        "lastTransitionTime": now,
    }
    if effect.api_version.startswith(f"{KAI}/"):
        # KAI's condition reports a problem; a placed group has none.
        wrong = {"type": "UnschedulableOnNodePool", "nodePool": "default", "transitionID": "1"}
        found = [] if effect.placed else [{**condition, **wrong, "status": "True"}]
        return {"schedulingConditions": found}
    said = {"type": "PodGroupScheduled", "status": "True" if effect.placed else "False"}
    return {"conditions": [{**condition, **said}]}


def counted_status(effect: TellGroup, found: Mapping[str, Any], now: str) -> dict[str, Any]:
    """As `status_of`, for a group with counts, given the object `found`.

    {} = it already says all of that, or its pods have ended.
    """
    spec, before = found.get("spec") or {}, found.get("status") or {}
    least = spec.get("minMember", 1)
    least = least if isinstance(least, int) else 1
    if effect.api_version.startswith(f"{VOLCANO}/"):
        status = _of_volcano(effect, least, before, now)
    elif before.get("phase") in (FINISHED, FAILED):
        return {}
    else:
        status = _of_coscheduling(effect, least)
    return {} if all(before.get(name, 0) == value for name, value in status.items()) else status


def _of_coscheduling(effect: TellGroup, least: int) -> dict[str, Any]:
    counts = effect.counts
    up = counts.running + counts.succeeded
    if counts.succeeded >= least:
        phase = FINISHED
    elif counts.failed and up + counts.failed >= least:
        phase = FAILED
    elif up >= least:
        phase = "Running"
    elif counts.scheduled >= least:
        phase = "Scheduled"
    else:
        phase = "Scheduling" if counts.pods >= least else "Pending"
    return {"phase": phase, "scheduled": counts.scheduled, **_ends(effect)}


def _of_volcano(
    effect: TellGroup, least: int, before: Mapping[str, Any], now: str
) -> dict[str, Any]:
    counts = effect.counts
    placed = counts.scheduled >= least
    if counts.running + counts.succeeded >= least:
        phase = "Running"
    else:
        phase = "Inqueue" if placed or effect.reason == FOR_NODES else "Pending"
    said = {
        "type": "Scheduled" if placed else "Unschedulable",
        "status": "True",
        "reason": effect.reason,
        "message": effect.message,
    }
    conditions = before.get("conditions") or [{}]
    if [{name: one.get(name) for name in said} for one in conditions] != [said]:
        conditions = [{**said, "transitionID": "1", "lastTransitionTime": now}]
    return {"phase": phase, **_ends(effect), "conditions": conditions}


def _ends(effect: TellGroup) -> dict[str, int]:
    counts = effect.counts
    return {
        "running": counts.running,
        "succeeded": counts.succeeded,
        "failed": counts.failed,
    }
