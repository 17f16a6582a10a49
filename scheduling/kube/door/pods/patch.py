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
    """DONE when the annotations are set."""
    return patched(client, effect, "", {"metadata": {"annotations": effect.annotations}})


def condition(client: Client, effect: PatchCondition) -> Request:
    """DONE when the condition is set."""
    condition = {
        "type": effect.type,
        "status": effect.status,
        "reason": effect.reason,
        "message": effect.message,
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    status: dict[str, Any] = {"conditions": [condition]}
    if effect.nominated is not None:
        status["nominatedNodeName"] = effect.nominated or None  # null takes it away
    return patched(client, effect, "/status", {"status": status})


def patched(
    client: Client,
    effect: Annotate | DeletePod | EvictPod | PatchCondition,
    subresource: str,
    patch: dict[str, Any],
) -> Request:
    """A patch of that incarnation. Repeating it does no harm, so looking only asks whether
    that incarnation still exists."""

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
