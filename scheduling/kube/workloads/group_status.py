"""What the status of a group object says of how its pods fare. Pure.

Of those whose status is the scheduler's to write, and can be written without a right on the rest of
the object: scheduling.k8s.io PodGroup (Kubernetes 1.36) and scheduling.run.ai/v2alpha2 (KAI). The
phase of coscheduling is its own controller's; that of Volcano is no subresource.
"""

from typing import Any

from scheduling.kube.seam import TellGroup

NATIVE, KAI = "scheduling.k8s.io", "scheduling.run.ai"
TELLABLE = frozenset({NATIVE, KAI})


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
