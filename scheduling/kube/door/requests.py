"""The requests that act on pods: what is sent, what each reply means, and how to look.

`settle` reads a reply, `look` reads the pod itself when a reply left the question open. Both give
the outcome, or None: from `settle` it means "look", from `look` it means "send again".
Meanings of the replies: core/v1 Binding and policy/v1 Eviction as the API server implements them.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from scheduling.kube.door.client import JSON, STRATEGIC_PATCH, Client, NoReply, Reply
from scheduling.kube.seam import (
    Annotate,
    Bind,
    CallOutcome,
    CreateAndBind,
    CreatePod,
    CreateToBind,
    DeletePod,
    EvictPod,
    PatchCondition,
    Result,
)
from scheduling.kube.translate.objects import KubePod, encode
from scheduling.kube.translate.pods import JOB_TRACKING


class Request(Struct, frozen=True):
    method: str
    path: str
    body: bytes
    settle: Callable[[Reply], CallOutcome | None]
    look: Callable[[], Awaitable[CallOutcome | None]]
    content_type: str = JSON


class LookRefused(Exception):
    """Looking was refused."""

    def __init__(self, reply: Reply, outcome: CallOutcome) -> None:
        super().__init__(outcome.message)
        self.reply = reply
        self.outcome = outcome


class _Uid(Struct, gc=False):
    uid: str = ""


class _Created(Struct, gc=False):
    metadata: _Uid


created = msgspec.json.Decoder(_Created)
_pod = msgspec.json.Decoder(KubePod)

Seen = TypeVar("Seen")
Judge = Callable[[Seen | None], CallOutcome | None]
Look = Callable[[], Awaitable[CallOutcome | None]]


class PodRequests:
    """Builds the requests of one API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # --- create and bind ------------------------------------------------------------------------
    def create(self, effect: CreateAndBind | CreatePod | CreateToBind) -> Request:
        """DONE with the uid once a pod of that name with our own labels exists."""

        def settle(reply: Reply) -> CallOutcome | None:
            if reply.code == 201:
                return CallOutcome(Result.DONE, uid=created.decode(reply.body).metadata.uid)
            return refused_to_create(reply)

        def judge(pod: KubePod | None) -> CallOutcome | None:
            if pod is None:
                return None
            uid = pod.metadata.uid
            if not _same_pod(pod, effect.manifest):
                message = f"a pod named {effect.name} exists that this scheduler did not create"
                return CallOutcome(
                    Result.REFUSED, node=pod.spec.node_name, code=409, message=message
                )
            if pod.metadata.deletion_timestamp:
                return CallOutcome(Result.DELETING, uid, pod.spec.node_name, 409)
            return CallOutcome(Result.DONE, uid)

        return Request(
            "POST",
            f"/api/v1/namespaces/{effect.namespace}/pods",
            encode(effect.manifest),
            settle,
            self._look(effect.namespace, effect.name, judge),
        )

    def bind(self, effect: Bind) -> Request:
        """BOUND once the pod is on the wanted node with the wanted annotations."""

        def settle(reply: Reply) -> CallOutcome | None:
            if reply.code == 201:
                return CallOutcome(Result.BOUND, effect.uid, effect.node)
            if reply.code == 404:
                return CallOutcome(Result.GONE, effect.uid, code=404)
            return refused(reply)

        def judge(pod: KubePod | None) -> CallOutcome | None:
            if pod is None:
                return CallOutcome(Result.GONE, effect.uid, code=404)
            uid, node = pod.metadata.uid, pod.spec.node_name
            if uid != effect.uid:
                return CallOutcome(Result.NEW_INCARNATION, uid, node, 409)
            if node:
                mine = node == effect.node and _has(pod.metadata.annotations, effect.annotations)
                return CallOutcome(Result.BOUND if mine else Result.TAKEN, uid, node)
            if pod.metadata.deletion_timestamp:
                return CallOutcome(Result.DELETING, uid, code=409)
            if pod.spec.scheduling_gates:
                gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
                return CallOutcome(
                    Result.GATED, uid, code=409, message=f"scheduling gates: {gates}"
                )
            return None

        # The uid is a precondition; resourceVersion is left out, others change it for no reason.
        meta = {
            "name": effect.name,
            "namespace": effect.namespace,
            "uid": effect.uid,
            "annotations": effect.annotations,
        }
        target = {"apiVersion": "v1", "kind": "Node", "name": effect.node}
        return Request(
            "POST",
            f"{_path(effect.namespace, effect.name)}/binding",
            encode({"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}),
            settle,
            self._look(effect.namespace, effect.name, judge),
        )

    # --- delete and evict -----------------------------------------------------------------------
    def delete(self, effect: DeletePod) -> Request:
        """DONE when the deletion has begun, GONE when there was nothing (left) to delete."""

        def settle(reply: Reply) -> CallOutcome | None:
            if reply.code in (200, 202):
                return CallOutcome(Result.DONE, effect.uid)
            return gone_or_refused(reply, effect.uid)

        return Request(
            "DELETE",
            _path(effect.namespace, effect.name),
            encode(_delete_options(effect)),
            settle,
            self._look(effect.namespace, effect.name, _deletion_judge(effect)),
        )

    def evict(self, effect: EvictPod, *, dry_run: bool = False) -> Request:
        """Like delete, but BLOCKED while a PodDisruptionBudget forbids it. `dry_run`: only ask."""

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
            f"{_path(effect.namespace, effect.name)}/eviction",
            encode(body),
            settle,
            self._look(effect.namespace, effect.name, _deletion_judge(effect)),
        )

    # --- what its Job counts --------------------------------------------------------------------
    def untrack(self, effect: DeletePod | EvictPod) -> Request:
        """DONE when no Job will count how the pod ends."""
        finalizers = {"$deleteFromPrimitiveList/finalizers": [JOB_TRACKING]}
        return self._patch(effect, "", {"metadata": finalizers})

    def track(self, effect: EvictPod) -> Request:
        """DONE when its Job counts again how the pod ends."""
        return self._patch(effect, "", {"metadata": {"finalizers": [JOB_TRACKING]}})

    # --- annotations and conditions -------------------------------------------------------------
    def annotate(self, effect: Annotate) -> Request:
        """DONE when the annotations are set."""
        return self._patch(effect, "", {"metadata": {"annotations": effect.annotations}})

    def condition(self, effect: PatchCondition) -> Request:
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
        return self._patch(effect, "/status", {"status": status})

    def _patch(
        self,
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
            return _other_incarnation(pod, effect.uid)

        meta = {**patch.get("metadata", {}), "uid": effect.uid}
        return Request(
            "PATCH",
            f"{_path(effect.namespace, effect.name)}{subresource}",
            encode({**patch, "metadata": meta}),
            settle,
            self._look(effect.namespace, effect.name, judge),
            STRATEGIC_PATCH,
        )

    def _look(self, namespace: str, name: str, judge: Judge[KubePod]) -> Look:
        return looking(self._client, _path(namespace, name), _pod.decode, judge, "the pod")


def looking(
    client: Client, path: str, read: Callable[[bytes], Seen], judge: Judge[Seen], what: str
) -> Look:
    """How to look at one object of the API: `judge` gets it as `read`, None where there is none.
    Looking raises Refusal, and NoReply where the answer is neither."""

    async def look() -> CallOutcome | None:
        reply = await client.call("GET", path)
        if reply.code == 200:
            return judge(read(reply.body))
        if reply.code == 404:
            return judge(None)
        outcome = refused(reply)
        if outcome is not None:
            raise LookRefused(reply, outcome)
        raise NoReply(f"reading {what}: {reply.code} {reply.status.message}", sent=True)

    return look


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _delete_options(effect: DeletePod | EvictPod) -> dict[str, Any]:
    options: dict[str, Any] = {"preconditions": {"uid": effect.uid}}
    if effect.grace is not None:
        options["gracePeriodSeconds"] = effect.grace
    return {"apiVersion": "v1", "kind": "DeleteOptions", **options}


# --- what replies and pods say --------------------------------------------------------------------
def refused(reply: Reply) -> CallOutcome | None:
    """REFUSED for a 4xx that no retry and no look can help."""
    if 400 <= reply.code < 500 and reply.code not in (408, 409, 429):
        return CallOutcome(Result.REFUSED, code=reply.code, message=reply.status.message)
    return None


def refused_to_create(reply: Reply) -> CallOutcome | None:
    """As `refused`. A namespace that is going is waited for: it is made anew when it is gone."""
    if reply.code == 403 and "being terminated" in reply.status.message:
        return None
    return refused(reply)


def gone_or_refused(reply: Reply, uid: str) -> CallOutcome | None:
    if reply.code == 404:
        return CallOutcome(Result.GONE, uid, code=404)
    return refused(reply)


def _forbidden_by_budget(reply: Reply) -> bool:
    if reply.code not in (429, 500):
        return False
    status = reply.status
    if reply.code == 500:
        return "more than one PodDisruptionBudget" in status.message
    return status.details is not None and any(
        cause.reason == "DisruptionBudget" for cause in status.details.causes
    )


def names_uid(reply: Reply) -> bool:
    """A patch that names another uid than the object has is "invalid", not a conflict."""
    details = reply.status.details
    return details is not None and any(cause.field == "metadata.uid" for cause in details.causes)


def _other_incarnation(pod: KubePod | None, uid: str) -> CallOutcome | None:
    if pod is None:
        return CallOutcome(Result.GONE, uid, code=404)
    if pod.metadata.uid != uid:
        return CallOutcome(Result.NEW_INCARNATION, pod.metadata.uid, pod.spec.node_name, 409)
    return None


def _deletion_judge(effect: DeletePod | EvictPod) -> Judge:
    def judge(pod: KubePod | None) -> CallOutcome | None:
        if pod is not None and pod.metadata.uid == effect.uid and pod.metadata.deletion_timestamp:
            return CallOutcome(Result.DONE, effect.uid, pod.spec.node_name)
        return _other_incarnation(pod, effect.uid)

    return judge


def _same_pod(pod: KubePod, manifest: Mapping[str, Any]) -> bool:
    """Whether the pod was made from that manifest: same scheduler, and all of its labels."""
    labels = manifest["metadata"].get("labels", {})
    scheduler = manifest["spec"].get("schedulerName", "")
    return pod.spec.scheduler_name == scheduler and _has(pod.metadata.labels, labels)


def _has(all_of: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(all_of.get(key) == value for key, value in wanted.items())
