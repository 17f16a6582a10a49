"""Annotations and conditions of a pod."""

from datetime import UTC, datetime
from typing import Any

from scheduling.kube.door.client import STRATEGIC_PATCH, Client, Reply
from scheduling.kube.door.pods.pod import look_at, other_incarnation, path_of
from scheduling.kube.door.requests import Request, gone_or_refused, names_uid
from scheduling.kube.seam import (
    Annotate,
    CallOutcome,
    DeletePod,
    EvictPod,
    PatchCondition,
    Result,
)
from scheduling.kube.translate.objects import KubePod, encode


def annotate(client: Client, effect: Annotate) -> Request:
    """Set the annotations: DONE once they are set."""
    return patched(client, effect, "", {"metadata": {"annotations": effect.annotations}})


def condition(client: Client, effect: PatchCondition) -> Request:
    """Set the condition: DONE once it is set."""
    condition = {
        "type": effect.type,
        "status": effect.status,
        "reason": effect.reason,
        "message": effect.message,
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    status: dict[str, Any] = {"conditions": [condition]}
    if effect.nominated is not None:
        status["nominatedNodeName"] = effect.nominated or None  # null removes it
    return patched(client, effect, "/status", {"status": status})


def patched(
    client: Client,
    effect: Annotate | DeletePod | EvictPod | PatchCondition,
    subresource: str,
    patch: dict[str, Any],
) -> Request:
    """Patch this incarnation of the pod.

    Repeating the patch is harmless, so `look` only checks that this incarnation still exists.
    """

    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code == 200:
            return CallOutcome(Result.DONE, effect.uid)
        if reply.code == 422 and names_uid(reply):
            return None
        return gone_or_refused(reply, effect.uid)

    def judge(pod: KubePod | None) -> CallOutcome | None:
        return other_incarnation(pod, effect.uid)

    meta = {**patch.get("metadata", {}), "uid": effect.uid}
    return Request(
        "PATCH",
        f"{path_of(effect.namespace, effect.name)}{subresource}",
        encode({**patch, "metadata": meta}),
        settle,
        look_at(client, effect.namespace, effect.name, judge),
        STRATEGIC_PATCH,
    )
