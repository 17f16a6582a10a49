"""Evicting and deleting a pod. Source: policy/v1 Eviction as the API server implements it."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from scheduling.kube.door.client import Client, Reply
from scheduling.kube.door.pods.patch import condition, patched
from scheduling.kube.door.pods.pod import look_at, other_incarnation, path_of
from scheduling.kube.door.requests import Judge, Request, gone_or_refused
from scheduling.kube.seam import CallOutcome, DeletePod, EvictPod, PatchCondition, Result
from scheduling.kube.translate.objects import KubePod, encode
from scheduling.kube.translate.pods import JOB_TRACKING

logger = logging.getLogger(__name__)


class Removals:
    """Deletes and evicts pods. `settled` sends a request until its outcome is known."""

    def __init__(
        self, client: Client, settled: Callable[[Request], Awaitable[CallOutcome]]
    ) -> None:
        self._client = client
        self._settled = settled

    async def delete(self, effect: DeletePod) -> CallOutcome:
        if effect.disrupted is not None:
            of = effect.key, effect.namespace, effect.name, effect.uid
            mark = PatchCondition(*of, *effect.disrupted, "True", "DisruptionTarget")
            marked = await self._settled(condition(self._client, mark))
            if marked.result in (Result.REFUSED, Result.FAILED):
                # Go on: its place is needed all the same.
                logger.warning("pod %s is not marked as disrupted: %s", effect.name, marked.message)
        if effect.tracked:
            await self._untrack(effect)
        return await self._settled(_deletion(self._client, effect))

    async def evict(self, effect: EvictPod) -> CallOutcome:
        if not effect.tracked:
            return await self._settled(_eviction(self._client, effect))
        # Ask first: if a pod stayed but was taken from its Job, the Job would never count its
        # success.
        asked = await self._settled(_eviction(self._client, effect, dry_run=True))
        if asked.result is not Result.DONE:
            return asked
        await self._untrack(effect)
        outcome = await self._settled(_eviction(self._client, effect))
        if outcome.result not in (Result.DONE, Result.GONE):
            await self._settled(_track(self._client, effect))
        return outcome

    async def _untrack(self, effect: DeletePod | EvictPod) -> None:
        outcome = await self._settled(_untrack(self._client, effect))
        if outcome.result in (Result.REFUSED, Result.FAILED):
            # Go on: its place is needed all the same.
            message = "the Job of pod %s will count it as failed: %s"
            logger.warning(message, effect.name, outcome.message)


def _deletion(client: Client, effect: DeletePod) -> Request:
    """Delete the pod: DONE once the deletion has begun, GONE if nothing was (left) to delete."""

    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code in (200, 202):
            return CallOutcome(Result.DONE, effect.uid)
        return gone_or_refused(reply, effect.uid)

    return Request(
        "DELETE",
        path_of(effect.namespace, effect.name),
        encode(_delete_options(effect)),
        settle,
        look_at(client, effect.namespace, effect.name, _deletion_judge(effect)),
    )


def _eviction(client: Client, effect: EvictPod, *, dry_run: bool = False) -> Request:
    """Evict the pod: as a deletion, but BLOCKED while a PodDisruptionBudget forbids it.

    `dry_run`: only ask whether the eviction is allowed.
    """

    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code in (200, 201):
            return CallOutcome(Result.DONE, effect.uid)
        if _forbidden_by_budget(reply):
            message = reply.status.message
            return CallOutcome(
                *(Result.BLOCKED, effect.uid, "", reply.code, message, reply.retry_after)
            )
        return gone_or_refused(reply, effect.uid)

    options = _delete_options(effect)
    if dry_run:
        options["dryRun"] = ["All"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": effect.name, "namespace": effect.namespace},
        "deleteOptions": options,
    }
    return Request(
        "POST",
        f"{path_of(effect.namespace, effect.name)}/eviction",
        encode(body),
        settle,
        look_at(client, effect.namespace, effect.name, _deletion_judge(effect)),
    )


# --- what its Job counts --------------------------------------------------------------------------
def _untrack(client: Client, effect: DeletePod | EvictPod) -> Request:
    """Take the pod from its Job: DONE once no Job will count how the pod ends."""
    finalizers = {"$deleteFromPrimitiveList/finalizers": [JOB_TRACKING]}
    return patched(client, effect, "", {"metadata": finalizers})


def _track(client: Client, effect: EvictPod) -> Request:
    """Give the pod back to its Job: DONE once the Job will count again how it ends."""
    return patched(client, effect, "", {"metadata": {"finalizers": [JOB_TRACKING]}})


def _delete_options(effect: DeletePod | EvictPod) -> dict[str, Any]:
    options: dict[str, Any] = {"preconditions": {"uid": effect.uid}}
    if effect.grace is not None:
        options["gracePeriodSeconds"] = effect.grace
    return {"apiVersion": "v1", "kind": "DeleteOptions", **options}


def _forbidden_by_budget(reply: Reply) -> bool:
    if reply.code not in (429, 500):
        return False
    status = reply.status
    if reply.code == 500:
        return "more than one PodDisruptionBudget" in status.message
    return status.details is not None and any(
        cause.reason == "DisruptionBudget" for cause in status.details.causes
    )


def _deletion_judge(effect: DeletePod | EvictPod) -> Judge:
    def judge(pod: KubePod | None) -> CallOutcome | None:
        if pod is not None and pod.metadata.uid == effect.uid and pod.metadata.deletion_timestamp:
            return CallOutcome(Result.DONE, effect.uid, pod.spec.node_name)
        return other_incarnation(pod, effect.uid)

    return judge
