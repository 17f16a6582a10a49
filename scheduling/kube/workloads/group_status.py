"""What the status of a group object says of how its pods fare. Pure.

Of Kubernetes' PodGroup (scheduling.k8s.io) and that of KAI (scheduling.run.ai/v2alpha2) one
condition is the scheduler's. Those of coscheduling (scheduling.x-k8s.io/v1alpha1) and Volcano
(scheduling.volcano.sh/v1beta1) have a phase, too, and count their pods, by the least that has to
run (`spec.minMember`). Sources: the API types of these projects.
"""

from collections.abc import Mapping
from typing import Any

from scheduling.kube.seam import TellGroup

NATIVE, KAI = "scheduling.k8s.io", "scheduling.run.ai"
COSCHEDULING, VOLCANO = "scheduling.x-k8s.io", "scheduling.volcano.sh"
COUNTED = frozenset({COSCHEDULING, VOLCANO})
TELLABLE = frozenset({NATIVE, KAI}) | COUNTED
# The definition of Volcano's has no subresource.
WITHOUT_SUBRESOURCE = frozenset({VOLCANO})
# What Kant says of a gang that waits for nodes; its quota is reserved then.
FOR_NODES = "Unschedulable"
FINISHED, FAILED = "Finished", "Failed"


def status_of(effect: TellGroup, now: str) -> dict[str, Any]:
    """The patch of its status, a merge patch of lists that nobody else writes. `now`: RFC 3339."""
    condition: dict[str, Any] = {
        "reason": effect.reason,
        "message": effect.message,
        "lastTransitionTime": now,
    }
    if effect.api_version.startswith(f"{KAI}/"):
        # A condition of what is wrong; a group that was placed has none.
        wrong = {"type": "UnschedulableOnNodePool", "nodePool": "default", "transitionID": "1"}
        found = [] if effect.placed else [{**condition, **wrong, "status": "True"}]
        return {"schedulingConditions": found}
    said = {"type": "PodGroupScheduled", "status": "True" if effect.placed else "False"}
    return {"conditions": [{**condition, **said}]}


def counted_status(effect: TellGroup, found: Mapping[str, Any], now: str) -> dict[str, Any]:
    """As `status_of`, of a group that counts its pods, by the object `found`; {} = it says all of
    that, or that its pods have ended."""
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
